package kube

import (
	"context"
	_ "embed" // for the configurations
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// The daemons' configurations.
var (
	//go:embed templates/containerd1.toml
	containerd1Config string
	//go:embed templates/containerd2.toml
	containerd2Config string
	//go:embed templates/kubelet.yaml
	kubeletConfig string
	//go:embed templates/kube-proxy.yaml
	kubeProxyConfig string
)

// A Node is a machine with containerd and a kubelet. /etc, /opt, /run and /var/lib are its own, so that a CNI can be installed
// on it as on any node; what else is on the machine that runs the test can be used there.
type Node struct {
	*lab.Machine
	Number int // from 1, as in its name

	c                 *Cluster
	containerdProcess *lab.Process
}

// addNode makes node i: its network, and its namespaces with their first process.
func (c *Cluster) addNode(ctx context.Context, rack lab.NS, i int) error {
	name := fmt.Sprintf("node%d", i)
	ns, err := c.lab.Namespace(ctx, name)
	if err != nil {
		return err
	}
	var hops4, hops6 strings.Builder
	for t := 1; t <= c.o.ToRs; t++ {
		hops4.WriteString(" nexthop via " + ToR4(t))
		hops6.WriteString(" nexthop via " + ToR6(t))
	}
	if err := errors.Join(
		connect(ctx, rack, netLink{name: name}, ns, netLink{"eth0", Node4(i) + "/24", Node6(i) + "/64"}),
		ipAll(ctx, rack, "link set "+name+" master rack"),
		// With a metric, so that a default route that a node learns is preferred.
		ipAll(ctx, ns, "route add default metric 1024"+hops4.String(), "-6 route add default metric 1024"+hops6.String()),
	); err != nil {
		return err
	}
	dir := filepath.Join(c.dir, "machines", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	m, err := c.lab.Machine(ctx, name, ns, filepath.Join(dir, "ready"), c.Guest(), "init", name, dir)
	if err != nil {
		return err
	}
	c.Nodes = append(c.Nodes, &Node{Machine: m, Number: i, c: c})
	return nil
}

// eachNode does the same on all nodes at once.
func (c *Cluster) eachNode(do func(n *Node) error) error {
	var group errgroup.Group
	for _, n := range c.Nodes {
		group.Go(func() error { return do(n) })
	}
	return group.Wait()
}

// startRuntimes starts containerd on all nodes and gives them the guest's image.
func (c *Cluster) startRuntimes(ctx context.Context) error {
	image, err := c.guestArchive(ctx)
	if err != nil {
		return err
	}
	return c.eachNode(func(n *Node) error {
		if err := n.startContainerd(ctx); err != nil {
			return err
		}
		return n.importImage(ctx, image)
	})
}

func (n *Node) startContainerd(ctx context.Context) error {
	// containerd itself brings a sandbox's loopback up with this plugin.
	if err := n.InstallPlugins("loopback"); err != nil {
		return err
	}
	config := containerd1Config
	if n.c.o.Containerd == 2 {
		config = containerd2Config
	}
	if err := n.WriteFile("/etc/containerd/config.toml", fill(config, GuestImage)); err != nil {
		return err
	}
	return n.runContainerd(ctx)
}

func (n *Node) runContainerd(ctx context.Context) (err error) {
	n.containerdProcess, err = n.Start("containerd", n.containerd("containerd")...)
	if err != nil {
		return err
	}
	return n.containerdProcess.Await(ctx, "containerd on "+n.Name, func() bool {
		_, err := n.Exec(ctx, n.containerd("ctr", "version")...)
		return err == nil
	})
}

// RestartContainerd kills containerd and starts it again.
func (n *Node) RestartContainerd(ctx context.Context) error {
	n.containerdProcess.Kill()
	return n.runContainerd(ctx)
}

// containerd is the command line of one of containerd's programs, which find each other by PATH.
func (n *Node) containerd(program string, args ...string) []string {
	if n.c.programs.containerd == "" {
		return append([]string{program}, args...)
	}
	path := n.c.programs.containerd + ":" + os.Getenv("PATH")
	return append([]string{"env", "PATH=" + path, program}, args...)
}

// InstallPlugins puts reference plugins where containerd looks for them.
func (n *Node) InstallPlugins(names ...string) error {
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(lab.ReferencePlugins, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(n.Path("/opt/cni/bin/"+name), data, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// startKubelets starts kubelet and, if it is wanted, kube-proxy on all nodes, and waits until the nodes are registered and have
// their parts of the pods' networks.
func (c *Cluster) startKubelets(ctx context.Context) error {
	if err := c.eachNode(func(n *Node) error { return n.startKubelet(ctx) }); err != nil {
		return err
	}
	// Pods need their namespace's account.
	_, err := c.Kubectl(ctx, "wait", "--for=create", "serviceaccount/default", "--timeout=60s")
	return err
}

func (n *Node) startKubelet(ctx context.Context) error {
	group := n.NS.Name
	if err := makeCgroup(group); err != nil {
		return err
	}
	values := map[string]string{
		"Node": n.Name, "CA": n.c.etc("ca.crt"), "Cgroup": "/" + group, "DNS": dnsIP, "Kubeconfig": n.c.etc("kube-proxy.kubeconfig"),
	}
	if err := errors.Join(
		n.WriteFile("/etc/kubernetes/kubelet.yaml", fill(kubeletConfig, values)),
		n.WriteFile("/etc/kubernetes/kube-proxy.yaml", fill(kubeProxyConfig, values)),
	); err != nil {
		return err
	}
	p, err := n.Start("kubelet", n.c.programs.kube("kubelet"), "--config=/etc/kubernetes/kubelet.yaml",
		"--kubeconfig="+n.c.etc(n.Name+".kubeconfig"), "--hostname-override="+n.Name,
		"--node-ip="+Node4(n.Number)+","+Node6(n.Number), "-v=2")
	if err != nil {
		return err
	}
	if n.c.o.KubeProxy {
		if _, err := n.Start("kube-proxy", n.c.programs.kube("kube-proxy"), "--config=/etc/kubernetes/kube-proxy.yaml"); err != nil {
			return err
		}
	}
	return p.Await(ctx, n.Name+" to be registered", func() bool {
		four, six, err := n.PodCIDRs(ctx)
		return err == nil && four.IsValid() && six.IsValid()
	})
}

// PodCIDRs returns the node's parts of the pods' networks.
func (n *Node) PodCIDRs(ctx context.Context) (four, six netip.Prefix, err error) {
	out, err := n.c.Kubectl(ctx, "get", "node", n.Name, "-o=jsonpath={.spec.podCIDRs[*]}")
	if err != nil {
		return four, six, err
	}
	for text := range strings.FieldsSeq(out) {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return four, six, fmt.Errorf("podCIDRs of %s: %w", n.Name, err)
		}
		if p.Addr().Is4() {
			four = p
		} else {
			six = p
		}
	}
	return four, six, nil
}
