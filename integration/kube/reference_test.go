package kube_test

import (
	"fmt"
	"testing"

	"github.com/gaggle-cni/gaggle/integration/kube"
)

// The cluster itself works: with the reference plugins and a router on each node, pods and client reach each other.
func TestReferencePlugins(t *testing.T) {
	c := kube.Start(t, kube.Options{Nodes: 2, KubeProxy: true})
	nodesReady(t, c, false)
	for _, n := range c.Nodes {
		installReference(t, n)
	}
	nodesReady(t, c, true)
	servers := startServers(t, c)
	checkTraffic(t, c, servers)
	checkKubectl(t, c, servers[0])
	stopServers(t, c)
}

// installReference makes a node's pods reachable by means that are not under test.
func installReference(t *testing.T, n *kube.Node) {
	t.Helper()
	four, six, err := n.PodCIDRs(t.Context())
	must(t, err)
	_, err = n.Exec(t.Context(), "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
	must(t, err)
	must(t, n.WriteFile("/etc/bird-node.conf", fmt.Sprintf(`router id %s;
log stderr all;
protocol device { }
protocol static pods4 { ipv4; route %s unreachable; }
protocol static pods6 { ipv6; route %s unreachable; }
template bgp tor { local as %d; connect delay time 1; error wait time 1, 10; }
protocol bgp tor4 from tor { neighbor %s as %d; ipv4 { import none; export all; }; }
protocol bgp tor6 from tor { neighbor %s as %[6]d; ipv6 { import none; export all; }; }
`, kube.Node4(n.Number), four, six, kube.NodeASN, kube.ToR4(1), kube.ToRASN, kube.ToR6(1))))
	_, err = n.Start("bird", "bird", "-f", "-c", "/etc/bird-node.conf", "-s", "/run/bird/bird.ctl")
	must(t, err)
	must(t, n.InstallPlugins("ptp", "host-local", "portmap"))
	must(t, n.WriteFile("/etc/cni/net.d/10-reference.conflist", fmt.Sprintf(`{
  "cniVersion": "1.0.0", "name": "reference", "plugins": [
    {"type": "ptp", "ipMasq": false, "ipam": {
      "type": "host-local", "ranges": [[{"subnet": "%s"}], [{"subnet": "%s"}]], "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
    }},
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}`, four, six)))
}
