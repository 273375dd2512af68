package kube_test

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gaggle-cni/gaggle/integration/kube"
	"github.com/gaggle-cni/gaggle/integration/lab"
)

// With a node process without Kubernetes and `gaggle install` on each node, a real kubelet and a real containerd find a
// network, and everything works that users expect of pods. For each router, runtime and number of routers once.
func TestStandalone(t *testing.T) {
	for name, o := range map[string]kube.Options{
		"bird-containerd1": {Nodes: 2, ToRs: 2, Router: "bird", Containerd: 1},
		"frr-containerd2":  {Nodes: 2, ToRs: 1, Router: "frr", Containerd: 2, KubeProxy: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := kube.Start(t, o)
			nodesReady(t, c, false)
			bin := buildGaggle(t)
			gaggle := make(map[*kube.Node]*lab.Process)
			for _, n := range c.Nodes {
				gaggle[n] = installStandalone(t, c, n, bin)
			}
			nodesReady(t, c, true)
			servers := startServers(t, c)
			checkTraffic(t, c, servers)
			checkHostPort(t, c, servers[0])
			if o.KubeProxy {
				checkService(t, c, servers[0])
			}
			checkKubectl(t, c, servers[0])
			checkImage(t, c, bin)
			for n, p := range gaggle {
				p.Kill()
				startStandalone(t, n, bin)
				must(t, n.RestartContainerd(t.Context()))
			}
			checkTraffic(t, c, servers)
			if len(c.ToRs) > 1 {
				checkFailover(t, c, servers)
			}
			stopServers(t, c)
			for _, n := range c.Nodes {
				checkEmpty(t, n, bin)
			}
		})
	}
}

// buildGaggle builds the programs as they are shipped.
func buildGaggle(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	must(t, lab.BuildStatic("../..", dir, "./cmd/gaggle", "./cmd/gaggle-cni"))
	return dir
}

// installStandalone runs the node process on a node, and installs plugin and conflist as an operator does.
func installStandalone(t *testing.T, c *kube.Cluster, n *kube.Node, bin string) *lab.Process {
	t.Helper()
	four, six, err := n.PodCIDRs(t.Context())
	must(t, err)
	var config strings.Builder
	fmt.Fprintf(&config, `apiVersion: gaggle.dev/v1alpha1
kind: NodeConfig
metadata: {name: %s}
spec:
  pools:
  - {name: pods6, cidr: "%s"}
  - {name: pods4, cidr: %s}
  bgp:
    asn: %d
    peers:
`, n.Name, six, four, kube.NodeASN)
	for i := range c.ToRs {
		// Routers are reached over one family each, and carry both.
		addr := kube.ToR4(i + 1)
		if i%2 == 1 {
			addr = kube.ToR6(i + 1)
		}
		fmt.Fprintf(&config, "    - {name: tor%d, address: \"%s\", asn: %d, holdTime: 9s, import: {defaultRoute: true}}\n", i+1, addr, kube.ToRASN)
	}
	must(t, n.WriteFile("/etc/gaggle/node.yaml", config.String()))
	p := startStandalone(t, n, bin)
	must(t, n.InstallPlugins("portmap"))
	conflist, err := filepath.Abs("../../deploy/standalone/10-gaggle.conflist")
	must(t, err)
	_, err = n.Exec(t.Context(), filepath.Join(bin, "gaggle"), "install", "--conflist="+conflist)
	must(t, err)
	return p
}

func startStandalone(t *testing.T, n *kube.Node, bin string) *lab.Process {
	t.Helper()
	p, err := n.Start("gaggle", filepath.Join(bin, "gaggle"), "node", "--standalone", "--config=/etc/gaggle/node.yaml", "--node-name="+n.Name)
	must(t, err)
	return p
}

// checkHostPort checks that a plugin chained after ours does its work.
func checkHostPort(t *testing.T, c *kube.Cluster, s server) {
	t.Helper()
	reaches(t, clientPlace(c), s, netip.MustParseAddrPort(kube.Node4(s.node.Number)+":18080"))
}

// checkService checks that pods and nodes reach a service, where kube-proxy knows pods by the names of our links.
func checkService(t *testing.T, c *kube.Cluster, s server) {
	t.Helper()
	must(t, c.Apply(t.Context(), `apiVersion: v1
kind: Service
metadata: {name: server}
spec:
  type: NodePort
  ipFamilyPolicy: RequireDualStack
  selector: {app: server}
  ports: [{port: 80, targetPort: 8080}]
`))
	out := kubectl(t, c, "get", "service", "server", "-o=jsonpath={.spec.clusterIPs[*]} {.spec.ports[0].nodePort}")
	fields := strings.Fields(out)
	port, err := strconv.ParseUint(fields[2], 10, 16)
	must(t, err)
	for _, text := range fields[:2] {
		for _, from := range []place{podPlace(c, s), nodePlace(c, s.node)} {
			answers(t, from, netip.AddrPortFrom(netip.MustParseAddr(text), 80))
		}
	}
	for _, text := range []string{kube.Node4(s.node.Number), kube.Node6(s.node.Number)} {
		answers(t, clientPlace(c), netip.AddrPortFrom(netip.MustParseAddr(text), uint16(port)))
	}
}

// checkFailover checks that both ways are used, and that traffic goes on by one of them when the other's link breaks.
func checkFailover(t *testing.T, c *kube.Cluster, servers []server) {
	t.Helper()
	four, six, err := c.Node(1).PodCIDRs(t.Context())
	must(t, err)
	for _, prefix := range []netip.Prefix{four, six} {
		hops := make(map[netip.Addr]bool)
		must(t, lab.WaitFor(within(t, patience), "two ways to "+prefix.String(), func() bool {
			route, ok, err := c.Core.KernelRoute(t.Context(), prefix)
			for _, hop := range route.Hops() {
				hops[hop] = true
			}
			return err == nil && ok && len(hops) == len(c.ToRs)
		}))
	}
	_, err = c.ToR(1).Exec(t.Context(), "ip", "link", "set", "rack", "down")
	must(t, err)
	for _, s := range servers {
		for _, addr := range s.addrs {
			reaches(t, clientPlace(c), s, netip.AddrPortFrom(addr, 8080))
		}
	}
	_, err = c.ToR(1).Exec(t.Context(), "ip", "link", "set", "rack", "up")
	must(t, err)
}

// checkImage runs our image, of two platforms, on the cluster.
func checkImage(t *testing.T, c *kube.Cluster, bin string) {
	t.Helper()
	const name = "localhost/gaggle:test"
	archive, err := c.Image(t.Context(), name, "/gaggle", "linux/arm64="+bin, "linux/amd64="+bin)
	must(t, err)
	must(t, c.Import(t.Context(), archive))
	must(t, c.Apply(t.Context(), fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: version}
spec:
  restartPolicy: Never
  containers: [{name: gaggle, image: %s, args: [version], imagePullPolicy: Never}]
`, name)))
	kubectl(t, c, "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/version", "--timeout="+patience.String())
	if out := kubectl(t, c, "logs", "version"); !strings.Contains(out, "gaggle") {
		t.Errorf("gaggle version in a container: got %q", out)
	}
	kubectl(t, c, "delete", "pod", "version", "--timeout="+patience.String())
}

// checkEmpty checks that nothing is left of pods that were deleted.
func checkEmpty(t *testing.T, n *kube.Node, bin string) {
	t.Helper()
	var links, pods string
	err := lab.WaitFor(within(t, patience), "nothing to be left of pods on "+n.Name, func() bool {
		var linksErr, podsErr error
		links, linksErr = n.Exec(t.Context(), "ip", "-o", "link", "show", "type", "veth")
		pods, podsErr = n.Exec(t.Context(), filepath.Join(bin, "gaggle"), "pods", "-o=json")
		return linksErr == nil && podsErr == nil && !strings.Contains(links, "ggl") && !strings.Contains(pods, "containerID")
	})
	if err != nil {
		t.Errorf("%v\n%s\n%s", err, links, pods)
	}
}
