package kube_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gaggle-cni/gaggle/integration/kube"
	"github.com/gaggle-cni/gaggle/integration/lab"
)

// Our image and manifest make nodes Ready that had no network, with pools that the cluster assigns and routers that a
// NodeConfig names; and everything works that users expect of pods, also while the API server is away, over a start of the node
// process then, and over an update. C43, I18, I20.
func TestDaemonSet(t *testing.T) {
	c := kube.Start(t, kube.Options{Nodes: 2, ToRs: 2, Router: "bird", Containerd: 2})
	nodesReady(t, c, false)
	bin := deploy(t, c)
	apply(t, c, nodeConfig(c, ""))
	nodesReady(t, c, true)
	kubectl(t, c, "--namespace=gaggle-system", "rollout", "status", "daemonset/gaggle", "--timeout="+patience.String())
	servers := startServers(t, c)
	checkTraffic(t, c, servers)
	checkKubectl(t, c, servers[0])

	t.Run("condition", func(t *testing.T) {
		const path = `-o=jsonpath={.items[*].status.conditions[?(@.type=="NetworkUnavailable")].status}`
		if out := kubectl(t, c, "get", "nodes", path); out != "False False" {
			t.Errorf("NetworkUnavailable is %q, want it False on both nodes", out)
		}
	})
	t.Run("grants and readiness", func(t *testing.T) { checkAnycast(t, c) })
	t.Run("bad configuration", func(t *testing.T) { checkBadConfig(t, c, servers) })
	t.Run("API server away", func(t *testing.T) { checkAPIServerAway(t, c, bin, servers) })
	t.Run("rolling update", func(t *testing.T) { checkRollout(t, c, servers) })
	stopServers(t, c)
}

// deploy installs the chart with an image of this tree. There are no services, so that the API server is named.
func deploy(t *testing.T, c *kube.Cluster) (bin string) {
	t.Helper()
	bin = buildGaggle(t)
	archive, err := c.Image(t.Context(), "localhost/gaggle:test", "/gaggle", "linux/"+runtime.GOARCH+"="+bin)
	must(t, err)
	must(t, c.Import(t.Context(), archive))
	helm := exec.CommandContext(t.Context(), "go", "tool", "-modfile=../../.ci/helm.mod", "helm", "template", "gaggle", "../../deploy/helm/gaggle",
		"--namespace=gaggle-system", "--include-crds", "--kube-version=1.36.0", "--set=image.repository=localhost/gaggle", "--set=image.tag=test",
		"--set=apiServer.host="+kube.APIServer, "--set-string=apiServer.port=6443", "--set=rbac.namespaceSelectors=true")
	var trouble strings.Builder
	helm.Stderr = &trouble
	manifests, err := helm.Output()
	if err != nil {
		t.Fatalf("helm template: %v\n%s", err, trouble.String())
	}
	kubectl(t, c, "create", "namespace", "gaggle-system")
	apply(t, c, string(manifests))
	t.Cleanup(func() { // before the cluster goes
		if t.Failed() {
			lastWords(t, c)
		}
	})
	kubectl(t, c, "wait", "--for=condition=Established", "crd/nodeconfigs.gaggle.dev", "--timeout="+patience.String())
	return bin
}

// lastWords logs what our pods said.
func lastWords(t *testing.T, c *kube.Cluster) {
	t.Helper()
	for _, n := range c.Nodes {
		out, _ := n.Exec(context.WithoutCancel(t.Context()), "sh", "-c", "tail -n 40 /var/log/pods/gaggle-system_*/*/*.log")
		t.Logf("%s:\n%s", n.Name, out)
	}
}

func apply(t *testing.T, c *kube.Cluster, manifests string) {
	t.Helper()
	must(t, c.Apply(t.Context(), manifests))
}

// nodeConfig peers with all routers; more goes into its spec.
func nodeConfig(c *kube.Cluster, more string) string {
	var text strings.Builder
	fmt.Fprintf(&text, `apiVersion: gaggle.dev/v1alpha1
kind: NodeConfig
metadata: {name: all}
spec:
%s
  bgp:
    asn: %d
    peers:
`, more, kube.NodeASN)
	for i := range c.ToRs {
		// Routers are reached over one family each, and carry both.
		addr := kube.ToR4(i + 1)
		if i%2 == 1 {
			addr = kube.ToR6(i + 1)
		}
		fmt.Fprintf(&text, "    - {name: tor%d, address: \"%s\", asn: %d, holdTime: 9s, import: {defaultRoute: true}}\n", i+1, addr, kube.ToRASN)
	}
	return text.String()
}

const shared = "10.244.255.9"

// anycastPod serves an anycast address, and is ready while its readiness says so.
func anycastPod(name, namespace string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata:
  name: %s
  namespace: %s
  labels: {app: anycast}
  annotations: {gaggle.dev/anycast: %s}
spec:
  terminationGracePeriodSeconds: 1
  readinessGates: [{conditionType: example.com/serving}]
  containers: [{name: guest, image: %s, args: [serve, ":8080"]}]
`, name, namespace, shared, kube.GuestImage)
}

// serving says for a pod, as a controller would, whether it serves.
func serving(t *testing.T, c *kube.Cluster, name, status string) {
	t.Helper()
	kubectl(t, c, "patch", "pod", name, "--subresource=status", "--type=strategic",
		`--patch={"status":{"conditions":[{"type":"example.com/serving","status":"`+status+`"}]}}`)
}

// checkAnycast checks that what is not granted is refused and told, and that an anycast address follows readiness.
func checkAnycast(t *testing.T, c *kube.Cluster) {
	apply(t, c, anycastPod("anycast", "default"))
	eventTold(t, c, "pod/anycast", "ClaimRefused")
	// The grant is by the namespace's labels, and counts for kubelet's next try.
	apply(t, c, nodeConfig(c, `  grants: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}, prefixes: [10.244.255.0/24], uses: [Anycast]}]`))
	kubectl(t, c, "wait", "--for=condition=ContainersReady", "pod/anycast", "--timeout="+patience.String())
	prefix := netip.MustParsePrefix(shared + "/32")
	routed := func(want bool) {
		t.Helper()
		must(t, lab.WaitFor(within(t, patience), fmt.Sprintf("the route to %s to be there: %v", prefix, want), func() bool {
			_, ok, err := c.Core.KernelRoute(t.Context(), prefix)
			return err == nil && ok == want
		}))
	}
	routed(false)
	serving(t, c, "anycast", "True")
	routed(true)
	answers(t, clientPlace(c), netip.MustParseAddrPort(shared+":8080"))
	serving(t, c, "anycast", "False")
	routed(false)
	serving(t, c, "anycast", "True")
	routed(true)
	apply(t, c, nodeConfig(c, "")) // the grant is revoked
	routed(false)
	kubectl(t, c, "delete", "pod", "anycast", "--timeout="+patience.String())
}

// eventTold waits for an Event of an object.
func eventTold(t *testing.T, c *kube.Cluster, object, reason string) {
	t.Helper()
	var out string
	if err := lab.WaitFor(within(t, patience), reason+" of "+object, func() bool {
		var err error
		out, err = c.Kubectl(t.Context(), "get", "events", "--all-namespaces", "--field-selector=reason="+reason, "--output=wide")
		return err == nil && strings.Contains(out, object)
	}); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// checkBadConfig checks that a configuration that is no good changes nothing, and is told.
func checkBadConfig(t *testing.T, c *kube.Cluster, servers []server) {
	// The API server lets it pass: only together with other values it is wrong.
	apply(t, c, nodeConfig(c, `  pools: [{name: a, cidr: 10.99.0.0/24}, {name: b, cidr: 10.99.0.0/25}]`))
	eventTold(t, c, "node/node1", "ConfigRefused")
	checkTraffic(t, c, servers)
	apply(t, c, nodeConfig(c, ""))
}

// checkAPIServerAway checks that without the API server traffic goes on, also over the end of the node process, and that what
// the runtime asks for is done.
func checkAPIServerAway(t *testing.T, c *kube.Cluster, bin string, servers []server) {
	n := c.Node(1)
	type status struct {
		Started    time.Time
		Kubernetes struct{ Error string }
	}
	ask := func() (s status) {
		// It exits with 1 while there is trouble, and says nothing while the process is away.
		out, err := n.Exec(t.Context(), "sh", "-c", filepath.Join(bin, "gaggle")+" status -o=json 2>/dev/null || true")
		must(t, err)
		_ = json.Unmarshal([]byte(out), &s)
		return s
	}
	before := ask()
	_, err := c.ControlPlane.Exec(t.Context(), "nft", "add table inet away { chain in { type filter hook input priority -400; tcp dport 6443 ip saddr 198.51.100.0/24 drop; }; }")
	must(t, err)
	defer func() {
		_, err := c.ControlPlane.Exec(t.Context(), "nft", "delete table inet away")
		must(t, err)
		nodesReady(t, c, true)
	}()
	_, err = n.Exec(t.Context(), "pkill", "-KILL", "-f", "^/gaggle node")
	must(t, err)
	var after status
	if err := lab.WaitFor(within(t, patience), "the node process to serve again, and to say what it lacks", func() bool {
		after = ask()
		return after.Started.After(before.Started) && after.Kubernetes.Error != ""
	}); err != nil {
		t.Errorf("%v: %+v, before %+v", err, after, before)
		lastWords(t, c)
	}
	for _, s := range servers {
		for _, addr := range s.addrs {
			reaches(t, clientPlace(c), s, netip.AddrPortFrom(addr, 8080))
		}
	}
}

// checkRollout checks that an update of the DaemonSet loses no request.
func checkRollout(t *testing.T, c *kube.Cluster, servers []server) {
	var stops []func() (lab.Loss, error)
	for _, s := range servers {
		for _, addr := range s.addrs {
			stop, err := lab.Probe(c.Client, addr)
			must(t, err)
			stops = append(stops, stop)
		}
	}
	kubectl(t, c, "--namespace=gaggle-system", "rollout", "restart", "daemonset/gaggle")
	kubectl(t, c, "--namespace=gaggle-system", "rollout", "status", "daemonset/gaggle", "--timeout=3m")
	for _, stop := range stops {
		loss, err := stop()
		must(t, err)
		if loss.Lost > 0 {
			t.Errorf("%d of %d requests were lost", loss.Lost, loss.Sent)
		}
	}
}
