package lab

import (
	"context"
	"fmt"
)

// The addresses of a lab. The example configurations in docs/routers use the same.
//
//	client 192.0.2.10 ─── .1 router .1 ─── rack 198.51.100.0/24 ─── .11 node1, .12 node2 …
//	  2001:db8:c::10     ::1        ::1       2001:db8:31::/64       ::11       ::12
const (
	Router4   = "198.51.100.1"
	Router6   = "2001:db8:31::1"
	Client4   = "192.0.2.10"
	Client6   = "2001:db8:c::10"
	RouterASN = 64500
	NodeASN   = 64501
)

// Node4 and Node6 are the addresses of node n, counted from 1.
func Node4(n int) string { return fmt.Sprintf("198.51.100.%d", 10+n) }

// Node6 is the IPv6 address of node n.
func Node6(n int) string { return fmt.Sprintf("2001:db8:31::%d", 10+n) }

// Pool4 and Pool6 are the pools of node n.
func Pool4(n int) string { return fmt.Sprintf("10.244.%d.0/24", n) }

// Pool6 is the IPv6 pool of node n.
func Pool6(n int) string { return fmt.Sprintf("2001:db8:44:%d::/64", n) }

func (l *Lab) build(ctx context.Context, nodes int) (err error) {
	if l.Router, err = l.Namespace(ctx, "tor"); err != nil {
		return err
	}
	if l.Client, err = l.Namespace(ctx, "client"); err != nil {
		return err
	}
	// The uplinks of real machines have been up for long: their link-local addresses, which routers use as next hops, are
	// not tentative. Pods' links are left to the program.
	if err := l.Router.Sysctl("net/ipv6/conf/default/accept_dad", "0"); err != nil {
		return err
	}
	for _, cmd := range []string{
		"link add rack type bridge mcast_snooping 0", "link set rack up",
		"addr add " + Router4 + "/24 dev rack", "addr add " + Router6 + "/64 dev rack nodad",
	} {
		if err := l.Router.IP(ctx, cmd); err != nil {
			return err
		}
	}
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := l.Router.Sysctl(name, "1"); err != nil {
			return err
		}
	}
	if err := l.wire(ctx, l.Client, "client", "192.0.2.1", Client4, "2001:db8:c::1", Client6); err != nil {
		return err
	}
	for _, cmd := range []string{"addr add 192.0.2.1/24 dev client", "addr add 2001:db8:c::1/64 dev client nodad"} {
		if err := l.Router.IP(ctx, cmd); err != nil {
			return err
		}
	}
	for n := 1; n <= nodes; n++ {
		node := &Node{lab: l, Name: fmt.Sprintf("node%d", n), Number: n}
		node.RunDir = l.o.Dir + "/" + node.Name
		if node.NS, err = l.Namespace(ctx, node.Name); err != nil {
			return err
		}
		if err := l.wire(ctx, node.NS, node.Name, Router4, Node4(n), Router6, Node6(n)); err != nil {
			return err
		}
		if err := l.Router.IP(ctx, "link set "+node.Name+" master rack"); err != nil {
			return err
		}
		l.Nodes = append(l.Nodes, node)
	}
	return nil
}

// wire connects a machine's eth0 with a link of the router's of the machine's name, and gives it addresses and default
// routes. The machine does not forward: that is for the program to turn on.
func (l *Lab) wire(ctx context.Context, ns NS, name, gateway4, addr4, gateway6, addr6 string) error {
	if err := l.Router.IP(ctx, "link add "+name+" type veth peer name eth0 netns "+ns.Name); err != nil {
		return err
	}
	if err := l.Router.IP(ctx, "link set "+name+" up"); err != nil {
		return err
	}
	if err := ns.Sysctl("net/ipv6/conf/eth0/accept_dad", "0"); err != nil {
		return err
	}
	for _, cmd := range []string{
		"addr add " + addr4 + "/24 dev eth0", "addr add " + addr6 + "/64 dev eth0 nodad", "link set eth0 up",
		"route add default via " + gateway4, "-6 route add default via " + gateway6,
	} {
		if err := ns.IP(ctx, cmd); err != nil {
			return err
		}
	}
	return nil
}
