package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// The network. Rack, client and pods have the addresses that the example configurations in docs/routers use.
//
//	client .10 ─┐              ┌─ .1 tor1 .1 ─┐
//	            ├─ .1 core ────┤              ├─ rack ─── .11 node1, .12 node2 …
//	cp     .20 ─┘   AS 64510   └─ .5 tor2 .2 ─┘
//	192.0.2.0/24    203.0.113.0/28  AS 64500    198.51.100.0/24    AS 64501
//	2001:db8:c::/64 2001:db8:fe::/48            2001:db8:31::/64
//
// core is a router above the ToRs, so that what the client reaches follows what both ToRs announce. Nodes have default routes
// through the ToRs. Pods are in 10.244.0.0/16 and 2001:db8:44::/48, of which nodes get a /24 and a /64 in the order in which
// they register.
const (
	ToRASN  = 64500
	NodeASN = 64501
	coreASN = 64510

	Client4 = "192.0.2.10"
	Client6 = "2001:db8:c::10"
	// APIServer is the API server's address, on port 6443. Pods of the nodes' network need it while nothing implements services.
	APIServer  = "192.0.2.20"
	apiServer6 = "2001:db8:c::20"

	podCIDRs     = "10.244.0.0/16,2001:db8:44::/48"
	serviceCIDRs = "10.96.0.0/16,2001:db8:96::/108"
	dnsIP        = "10.96.0.10"

	maxNodes = 80
	maxToRs  = 2
)

// ToR4 is the address of router i, counted from 1, on the rack.
func ToR4(i int) string { return fmt.Sprintf("198.51.100.%d", i) }

// ToR6 is the IPv6 address of router i on the rack.
func ToR6(i int) string { return fmt.Sprintf("2001:db8:31::%d", i) }

// Node4 is the address of node i, counted from 1.
func Node4(i int) string { return fmt.Sprintf("198.51.100.%d", 10+i) }

// Node6 is the IPv6 address of node i.
func Node6(i int) string { return fmt.Sprintf("2001:db8:31::%d", 10+i) }

// uplink4 and uplink6 are the addresses on router i's link to the core: end 1 is the router's, 2 the core's.
func uplink4(i, end int) string { return fmt.Sprintf("203.0.113.%d", 4*(i-1)+end) }

func uplink6(i, end int) string { return fmt.Sprintf("2001:db8:fe:%d::%d", i, end) }

// netLink is one end of a link, and the addresses there.
type netLink struct{ name, addr4, addr6 string }

// buildNetwork makes everything but the nodes' insides.
func (c *Cluster) buildNetwork(ctx context.Context) (err error) {
	core, err := c.router(ctx, "core")
	if err != nil {
		return err
	}
	c.Core = core
	if err := bridge(ctx, core, "lan", "192.0.2.1/24", "2001:db8:c::1/64"); err != nil {
		return err
	}
	if c.Client, err = c.host(ctx, core, "client", Client4, Client6); err != nil {
		return err
	}
	if c.ControlPlane, err = c.host(ctx, core, "cp", APIServer, apiServer6); err != nil {
		return err
	}
	rack, err := c.lab.Namespace(ctx, "rack")
	if err != nil {
		return err
	}
	if err := bridge(ctx, rack, "rack"); err != nil {
		return err
	}
	for i := 1; i <= c.o.ToRs; i++ {
		if err := c.addToR(ctx, core, rack, i); err != nil {
			return err
		}
	}
	if _, err := c.lab.StartRouterOn(ctx, core, "core", "bird", coreConfig(c.o.ToRs)); err != nil {
		return err
	}
	for i := 1; i <= c.o.Nodes; i++ {
		if err := c.addNode(ctx, rack, i); err != nil {
			return err
		}
	}
	return nil
}

// router makes a namespace that forwards.
func (c *Cluster) router(ctx context.Context, name string) (lab.NS, error) {
	ns, err := c.lab.Namespace(ctx, name)
	if err != nil {
		return ns, err
	}
	for setting, value := range map[string]string{
		"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1", "net/ipv6/conf/default/accept_dad": "0",
		// Equal paths are chosen by connection, not by pair of hosts.
		"net/ipv4/fib_multipath_hash_policy": "1", "net/ipv6/fib_multipath_hash_policy": "1",
		// Nodes talk to each other through the ToR's one link to the rack, and may go on doing so.
		"net/ipv4/conf/all/send_redirects": "0", "net/ipv4/conf/default/send_redirects": "0",
	} {
		if err := ns.Sysctl(setting, value); err != nil {
			return ns, err
		}
	}
	return ns, nil
}

// bridge makes a bridge, with addresses if it is a router's.
func bridge(ctx context.Context, ns lab.NS, name string, addrs ...string) error {
	commands := []string{"link add " + name + " type bridge mcast_snooping 0", "link set " + name + " up"}
	for _, a := range addrs {
		commands = append(commands, addAddr(a, name))
	}
	return ipAll(ctx, ns, commands...)
}

func addAddr(addr, link string) string {
	command := "addr add " + addr + " dev " + link
	if strings.Contains(addr, ":") {
		command += " nodad"
	}
	return command
}

func ipAll(ctx context.Context, ns lab.NS, commands ...string) error {
	for _, command := range commands {
		if err := ns.IP(ctx, command); err != nil {
			return err
		}
	}
	return nil
}

// connect makes a link between two namespaces, up and with the addresses of its ends.
func connect(ctx context.Context, a lab.NS, endA netLink, b lab.NS, endB netLink) error {
	if err := a.IP(ctx, fmt.Sprintf("link add %s type veth peer name %s netns %s", endA.name, endB.name, b.Name)); err != nil {
		return err
	}
	for end, ns := range map[netLink]lab.NS{endA: a, endB: b} {
		// Links of real machines have been up for long: their addresses are not tentative.
		if err := ns.Sysctl("net/ipv6/conf/"+end.name+"/accept_dad", "0"); err != nil {
			return err
		}
		var commands []string
		for _, addr := range []string{end.addr4, end.addr6} {
			if addr != "" {
				commands = append(commands, addAddr(addr, end.name))
			}
		}
		if err := ipAll(ctx, ns, append(commands, "link set "+end.name+" up")...); err != nil {
			return err
		}
	}
	return nil
}

// host makes a namespace on the core's bridge.
func (c *Cluster) host(ctx context.Context, core lab.NS, name, addr4, addr6 string) (lab.NS, error) {
	ns, err := c.lab.Namespace(ctx, name)
	if err != nil {
		return ns, err
	}
	return ns, errors.Join(
		connect(ctx, core, netLink{name: name}, ns, netLink{"eth0", addr4 + "/24", addr6 + "/64"}),
		ipAll(ctx, core, "link set "+name+" master lan"),
		ipAll(ctx, ns, "route add default via 192.0.2.1", "-6 route add default via 2001:db8:c::1"),
	)
}
