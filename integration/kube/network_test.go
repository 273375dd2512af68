package kube_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gaggle-cni/gaggle/integration/kube"
	"github.com/gaggle-cni/gaggle/integration/lab"
)

// patience bounds what takes a moment on a machine that is busy.
const patience = time.Minute

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// kubectl runs kubectl, which must succeed.
func kubectl(t *testing.T, c *kube.Cluster, args ...string) string {
	t.Helper()
	out, err := c.Kubectl(t.Context(), args...)
	must(t, err)
	return out
}

// nodesReady checks that all nodes say that they are ready, or that none is.
func nodesReady(t *testing.T, c *kube.Cluster, want bool) {
	t.Helper()
	if want {
		kubectl(t, c, "wait", "--for=condition=Ready", "node", "--all", "--timeout="+patience.String())
		return
	}
	for _, n := range c.Nodes {
		// Waited for, as the kubelet's first word of it may come after the node's registration.
		kubectl(t, c, "wait", "--for=condition=Ready=false", "node/"+n.Name, "--timeout="+patience.String())
	}
}

// A server is a pod with the guest's server.
type server struct {
	name  string
	node  *kube.Node
	addrs []netip.Addr // one a family
}

// startServers runs a server on each node. That they are ready means that the kubelets reach them: it is what their probes ask.
func startServers(t *testing.T, c *kube.Cluster) (servers []server) {
	t.Helper()
	var manifests strings.Builder
	for _, n := range c.Nodes {
		fmt.Fprintf(&manifests, `---
apiVersion: v1
kind: Pod
metadata: {name: server-%[1]s, labels: {app: server}}
spec:
  nodeSelector: {kubernetes.io/hostname: %[1]s}
  terminationGracePeriodSeconds: 1
  containers:
  - name: guest
    image: %[2]s
    args: [serve, ":8080"]
    ports: [{containerPort: 8080, hostPort: 18080}]
    readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
    livenessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
    startupProbe: {exec: {command: [/guest, get, "http://[::1]:8080/"]}, periodSeconds: 1}
`, n.Name, kube.GuestImage)
		servers = append(servers, server{name: "server-" + n.Name, node: n})
	}
	must(t, c.Apply(t.Context(), manifests.String()))
	kubectl(t, c, "wait", "--for=condition=Ready", "pod", "--selector=app=server", "--timeout="+patience.String())
	for i, s := range servers {
		for text := range strings.FieldsSeq(kubectl(t, c, "get", "pod", s.name, "-o=jsonpath={.status.podIPs[*].ip}")) {
			addr, err := netip.ParseAddr(text)
			must(t, err)
			servers[i].addrs = append(servers[i].addrs, addr)
		}
		if addrs := servers[i].addrs; len(addrs) != 2 || addrs[0].Is4() == addrs[1].Is4() {
			t.Fatalf("%s has the addresses %v, want one of each family", s.name, addrs)
		}
	}
	return servers
}

// addr is the server's address of the family of another.
func (s server) addr(like netip.Addr) netip.Addr {
	if s.addrs[0].Is4() == like.Is4() {
		return s.addrs[0]
	}
	return s.addrs[1]
}

// A place is where a request comes from.
type place struct {
	name string
	addr func(to netip.Addr) netip.Addr // by which a server should know it; the zero Addr if any will do
	exec func(ctx context.Context, args ...string) (string, error)
}

func clientPlace(c *kube.Cluster) place {
	return place{"the client", func(to netip.Addr) netip.Addr {
		if to.Is4() {
			return netip.MustParseAddr(kube.Client4)
		}
		return netip.MustParseAddr(kube.Client6)
	}, func(ctx context.Context, args ...string) (string, error) {
		return c.ClientExec(ctx, append([]string{c.Guest()}, args...)...)
	}}
}

func nodePlace(c *kube.Cluster, n *kube.Node) place {
	return place{n.Name, func(netip.Addr) netip.Addr { return netip.Addr{} }, func(ctx context.Context, args ...string) (string, error) {
		return n.Exec(ctx, append([]string{c.Guest()}, args...)...)
	}}
}

func podPlace(c *kube.Cluster, s server) place {
	return place{s.name, s.addr, func(ctx context.Context, args ...string) (string, error) {
		return c.Kubectl(ctx, append([]string{"exec", s.name, "--", "/guest"}, args...)...)
	}}
}

// answers returns what a place gets for an answer at an address.
func answers(t *testing.T, from place, to netip.AddrPort) (answer string) {
	t.Helper()
	var err error
	// The first answer may take until the routers know of a pod.
	if waitErr := lab.WaitFor(within(t, patience), fmt.Sprintf("%s to answer %s", to, from.name), func() bool {
		answer, err = from.exec(t.Context(), "get", "http://"+to.String()+"/")
		return err == nil
	}); waitErr != nil {
		t.Fatalf("%v; last: %v", waitErr, err) // and not one minute for each of the others too
	}
	return answer
}

// reaches checks that a place reaches a server at an address, and that no address is translated underway.
func reaches(t *testing.T, from place, s server, to netip.AddrPort) {
	t.Helper()
	want := s.name + " saw "
	if addr := from.addr(to.Addr()); addr.IsValid() {
		want += strings.TrimSuffix(netip.AddrPortFrom(addr, 0).String(), "0")
	}
	if got := answers(t, from, to); !strings.HasPrefix(got, want) {
		t.Errorf("%s asked %s: got %q, want %q", from.name, to, got, want)
	}
}

// checkTraffic checks that everybody reaches every server at each of its addresses.
func checkTraffic(t *testing.T, c *kube.Cluster, servers []server) {
	t.Helper()
	for _, s := range servers {
		places := []place{clientPlace(c)}
		for _, n := range c.Nodes {
			places = append(places, nodePlace(c, n))
		}
		for _, other := range servers {
			places = append(places, podPlace(c, other))
		}
		for _, addr := range s.addrs {
			for _, p := range places {
				reaches(t, p, s, netip.AddrPortFrom(addr, 8080))
			}
		}
	}
}

// checkKubectl checks what kubectl does by way of the kubelets, and the API server's own way to pods.
func checkKubectl(t *testing.T, c *kube.Cluster, s server) {
	t.Helper()
	if out := kubectl(t, c, "logs", s.name); !strings.Contains(out, "serving on :8080") {
		t.Errorf("kubectl logs: got %q", out)
	}
	if out := kubectl(t, c, "get", "--raw=/api/v1/namespaces/default/pods/"+s.name+":8080/proxy/"); !strings.HasPrefix(out, s.name) {
		t.Errorf("the API server's proxy: got %q", out)
	}
	forward, err := c.StartKubectl("port-forward", "port-forward", s.name, "28080:8080")
	must(t, err)
	defer forward.Kill()
	var out string
	must(t, forward.Await(within(t, patience), "kubectl port-forward", func() bool {
		out, err = c.ControlPlane.Exec(t.Context(), c.Guest(), "get", "http://127.0.0.1:28080/")
		return err == nil
	}))
	if !strings.HasPrefix(out, s.name+" saw ") {
		t.Errorf("kubectl port-forward: got %q", out)
	}
}

// stopServers deletes the pods, which ends only when each runtime has torn down what was set up for them.
func stopServers(t *testing.T, c *kube.Cluster) {
	t.Helper()
	kubectl(t, c, "delete", "pod", "--selector=app=server", "--timeout="+patience.String())
}
