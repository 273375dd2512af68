package datapath

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/node"
)

// Check implements [node.Datapath]. What plugins that are chained after us may have changed is tolerated: a smaller MTU in the
// container, further addresses, and routes that were moved to another table.
func (d *Datapath) Check(ctx context.Context, ns *os.File, a node.Attachment) (differences []error, err error) {
	c := &checker{a: a}
	done, err := c.open(d, ns)
	if err != nil {
		return nil, err
	}
	defer done()
	if c.hostEnd == nil || c.podEnd == nil {
		return c.differences, nil
	}
	inside := a.ID.IfName + " in the container"
	if err := c.pair(int(ns.Fd())); err != nil {
		return nil, err
	}
	c.link(c.hostEnd, a.HostIf, a.HostMAC)
	c.link(c.podEnd, inside, a.MAC)
	c.mtu()
	if err := c.addrs(ctx, c.host, c.hostEnd, a.HostIf, gatewayAddrs(a.End())); err != nil {
		return nil, err
	}
	if err := c.addrs(ctx, c.pod, c.podEnd, inside, hostPrefixes(a.Bound())); err != nil {
		return nil, err
	}
	if err := c.gateways(ctx); err != nil {
		return nil, err
	}
	return c.differences, nil
}

// Attached implements [node.Datapath].
func (d *Datapath) Attached(_ context.Context, ns *os.File, a node.Attachment) (bool, error) {
	c := &checker{a: a}
	done, err := c.open(d, ns)
	if err != nil {
		return false, err
	}
	defer done()
	if c.hostEnd == nil || c.podEnd == nil {
		return false, nil
	}
	err = c.pair(int(ns.Fd()))
	return err == nil && len(c.differences) == 0, err
}

// A checker looks at one attachment. Its methods note differences, and return an error only when they could not see.
type checker struct {
	a               node.Attachment
	host, pod       *handle
	hostEnd, podEnd netlink.Link // nil when missing

	differences []error
}

func (c *checker) differ(format string, args ...any) {
	c.differences = append(c.differences, fmt.Errorf(format, args...))
}

// open finds both ends.
func (c *checker) open(d *Datapath, ns *os.File) (done func(), err error) {
	if err := d.checkNamespace(ns); err != nil {
		return nil, err
	}
	host, giveBack, err := d.handle()
	if err != nil {
		return nil, err
	}
	pod, err := d.handleAt(netns.NsHandle(ns.Fd()))
	if err != nil {
		giveBack()
		return nil, fmt.Errorf("open netlink socket in the container: %w", err)
	}
	done = func() { giveBack(); pod.Close() }
	c.host, c.pod = host, pod
	c.hostEnd, err = c.find(host, c.a.HostIf, "")
	if err == nil {
		c.podEnd, err = c.find(pod, c.a.ID.IfName, " in the container")
	}
	if err != nil {
		done()
		return nil, err
	}
	return done, nil
}

func (c *checker) find(h *handle, name, where string) (netlink.Link, error) {
	link, err := h.LinkByName(name)
	if gone(err) {
		c.differ("link %s%s is missing", name, where)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for link %s%s: %w", name, where, err)
	}
	return link, nil
}

// pair makes sure that the two are each other's ends, in these two namespaces: the same numbers may exist elsewhere.
func (c *checker) pair(pod int) error {
	h, p := c.hostEnd.Attrs(), c.podEnd.Attrs()
	if !ours(c.hostEnd) {
		c.differ("link %s is not ours: its type is %s and its group %d", h.Name, c.hostEnd.Type(), h.Group)
		return nil
	}
	if c.podEnd.Type() != "veth" || h.ParentIndex != p.Index || p.ParentIndex != h.Index {
		c.differ("links %s and %s in the container are not ends of one veth pair", h.Name, p.Name)
		return nil
	}
	id, err := c.host.GetNetNsIdByFd(pod)
	if err != nil {
		return fmt.Errorf("find the container's network namespace: %w", err)
	}
	if h.NetNsID != id {
		c.differ("the other end of %s is in another network namespace", h.Name)
	}
	return nil
}

func (c *checker) link(link netlink.Link, name string, mac node.MAC) {
	if !isUp(link) {
		c.differ("link %s is down", name)
	}
	if got := link.Attrs().HardwareAddr.String(); got != mac.String() {
		c.differ("MAC of %s is %s, want %s", name, got, mac)
	}
}

func (c *checker) mtu() {
	if got := c.hostEnd.Attrs().MTU; got != c.a.MTU {
		c.differ("MTU of %s is %d, want %d", c.a.HostIf, got, c.a.MTU)
	}
	if got := c.podEnd.Attrs().MTU; got > c.a.MTU {
		c.differ("MTU of %s in the container is %d, want %d at most", c.a.ID.IfName, got, c.a.MTU)
	}
}

func hostPrefixes(addrs []netip.Addr) (out []netip.Prefix) {
	for _, a := range addrs {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}

func (c *checker) addrs(ctx context.Context, h *handle, link netlink.Link, name string, want []netip.Prefix) error {
	have, err := addresses(ctx, h, link)
	if err != nil {
		return err
	}
	for _, p := range want {
		i := slices.IndexFunc(have, func(a netlink.Addr) bool { return addrPrefix(a) == p })
		switch {
		case i < 0:
			c.differ("address %s of %s is missing", p, name)
		case p.Addr().Is6() && have[i].Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0:
			c.differ("address %s of %s cannot be used yet", p, name)
		}
	}
	return nil
}

// gateways looks for the ways out of the container, and at the neighbours they lead to.
func (c *checker) gateways(ctx context.Context) error {
	for _, addr := range c.a.Addrs {
		family, gateway := netlink.FAMILY_V6, node.Gateway6
		if addr.Is4() {
			family, gateway = netlink.FAMILY_V4, node.Gateway4
		}
		routes, err := allRoutes(ctx, c.pod, family)
		if err != nil {
			return err
		}
		if !c.a.NoDefault && !slices.ContainsFunc(routes, func(r netlink.Route) bool {
			return prefixOf(r.Dst, family).Bits() == 0 && r.LinkIndex == c.podEnd.Attrs().Index && addrOf(r.Gw) == gateway
		}) {
			c.differ("default route via %s in the container is missing", gateway)
		}
		neighbours, err := neighbours(ctx, c.pod, c.podEnd, family)
		if err != nil {
			return err
		}
		for _, n := range neighbours {
			// A missing one does no harm: the host answers for it. The kernel drops them when the link's MAC changes.
			if mac := n.HardwareAddr.String(); addrOf(n.IP) == gateway && mac != "" && mac != c.a.HostMAC.String() {
				c.differ("neighbour %s in the container is %s, want %s", gateway, mac, c.a.HostMAC)
			}
		}
	}
	return nil
}
