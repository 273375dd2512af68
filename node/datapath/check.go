package datapath

import (
	"context"
	"errors"
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
func (d *Datapath) Check(ctx context.Context, ns *os.File, a node.Attachment) error {
	if err := d.checkNamespace(ns); err != nil {
		return err
	}
	fd := netns.NsHandle(ns.Fd())
	host, giveBack, err := d.handle()
	if err != nil {
		return err
	}
	defer giveBack()
	pod, err := netlink.NewHandleAt(fd, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink socket in the container: %w", err)
	}
	defer pod.Close()

	hostEnd, err := host.LinkByName(a.HostIf)
	if err != nil {
		return missing("link "+a.HostIf, err)
	}
	podEnd, err := pod.LinkByName(a.ID.IfName)
	if err != nil {
		return missing("link "+a.ID.IfName+" in the container", err)
	}
	return errors.Join(
		checkPair(host, hostEnd, podEnd, int(fd)),
		checkLink(hostEnd, a.HostIf, a.HostMAC),
		checkLink(podEnd, a.ID.IfName+" in the container", a.MAC),
		checkMTU(hostEnd, podEnd, a),
		checkAddrs(ctx, host, hostEnd, a.HostIf, gatewayAddrs(a)),
		checkAddrs(ctx, pod, podEnd, a.ID.IfName+" in the container", hostPrefixes(a.Addrs)),
		checkGateways(ctx, pod, podEnd, a),
	)
}

// Attached implements [node.Datapath].
func (d *Datapath) Attached(_ context.Context, ns *os.File, a node.Attachment) (bool, error) {
	if err := d.checkNamespace(ns); err != nil {
		return false, err
	}
	fd := netns.NsHandle(ns.Fd())
	host, giveBack, err := d.handle()
	if err != nil {
		return false, err
	}
	defer giveBack()
	pod, err := netlink.NewHandleAt(fd, unix.NETLINK_ROUTE)
	if err != nil {
		return false, fmt.Errorf("open netlink socket in the container: %w", err)
	}
	defer pod.Close()
	hostEnd, err := host.LinkByName(a.HostIf)
	if err != nil {
		return false, unlessGone(err)
	}
	podEnd, err := pod.LinkByName(a.ID.IfName)
	if err != nil {
		return false, unlessGone(err)
	}
	return checkPair(host, hostEnd, podEnd, int(fd)) == nil, nil
}

func unlessGone(err error) error {
	if gone(err) {
		return nil
	}
	return err
}

func missing(what string, err error) error {
	if gone(err) {
		return fmt.Errorf("%s is missing", what)
	}
	return fmt.Errorf("look for %s: %w", what, err)
}

// checkPair makes sure that the two are each other's ends, in these two namespaces: the same numbers may exist elsewhere.
func checkPair(host *netlink.Handle, hostEnd, podEnd netlink.Link, pod int) error {
	h, p := hostEnd.Attrs(), podEnd.Attrs()
	if !ours(hostEnd) {
		return fmt.Errorf("link %s is not ours: its type is %s and its group %d", h.Name, hostEnd.Type(), h.Group)
	}
	if podEnd.Type() != "veth" || h.ParentIndex != p.Index || p.ParentIndex != h.Index {
		return fmt.Errorf("links %s and %s in the container are not ends of one veth pair", h.Name, p.Name)
	}
	id, err := host.GetNetNsIdByFd(pod)
	if err != nil {
		return fmt.Errorf("find the container's network namespace: %w", err)
	}
	if h.NetNsID != id {
		return fmt.Errorf("the other end of %s is in another network namespace", h.Name)
	}
	return nil
}

func checkLink(link netlink.Link, name string, mac node.MAC) error {
	var errs []error
	a := link.Attrs()
	if !isUp(link) {
		errs = append(errs, fmt.Errorf("link %s is down", name))
	}
	if got := a.HardwareAddr.String(); got != mac.String() {
		errs = append(errs, fmt.Errorf("MAC of %s is %s, want %s", name, got, mac))
	}
	return errors.Join(errs...)
}

func checkMTU(hostEnd, podEnd netlink.Link, a node.Attachment) error {
	var errs []error
	if got := hostEnd.Attrs().MTU; got != a.MTU {
		errs = append(errs, fmt.Errorf("MTU of %s is %d, want %d", a.HostIf, got, a.MTU))
	}
	if got := podEnd.Attrs().MTU; got > a.MTU {
		errs = append(errs, fmt.Errorf("MTU of %s in the container is %d, want %d at most", a.ID.IfName, got, a.MTU))
	}
	return errors.Join(errs...)
}

func hostPrefixes(addrs []netip.Addr) (out []netip.Prefix) {
	for _, a := range addrs {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}

func checkAddrs(ctx context.Context, h *netlink.Handle, link netlink.Link, name string, want []netip.Prefix) error {
	have, err := addresses(ctx, h, link)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range want {
		i := slices.IndexFunc(have, func(a netlink.Addr) bool {
			bits, _ := a.Mask.Size()
			return netip.PrefixFrom(addrOf(a.IP), bits) == p
		})
		switch {
		case i < 0:
			errs = append(errs, fmt.Errorf("address %s of %s is missing", p, name))
		case p.Addr().Is6() && have[i].Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0:
			errs = append(errs, fmt.Errorf("address %s of %s cannot be used yet", p, name))
		}
	}
	return errors.Join(errs...)
}

// checkGateways looks for the ways out of the container, and at the neighbours they lead to.
func checkGateways(ctx context.Context, pod *netlink.Handle, link netlink.Link, a node.Attachment) error {
	var errs []error
	for _, addr := range a.Addrs {
		family, gateway := netlink.FAMILY_V6, node.Gateway6
		if addr.Is4() {
			family, gateway = netlink.FAMILY_V4, node.Gateway4
		}
		routes, err := allRoutes(ctx, pod, family)
		if err != nil {
			return err
		}
		if !a.NoDefault && !slices.ContainsFunc(routes, func(r netlink.Route) bool {
			return prefixOf(r.Dst, family).Bits() == 0 && r.LinkIndex == link.Attrs().Index && addrOf(r.Gw) == gateway
		}) {
			errs = append(errs, fmt.Errorf("default route via %s in the container is missing", gateway))
		}
		neighbours, err := neighbours(ctx, pod, link, family)
		if err != nil {
			return err
		}
		for _, n := range neighbours {
			// A missing one does no harm: the host answers for it. The kernel drops them when the link's MAC changes.
			if mac := n.HardwareAddr.String(); addrOf(n.IP) == gateway && mac != "" && mac != a.HostMAC.String() {
				errs = append(errs, fmt.Errorf("neighbour %s in the container is %s, want %s", gateway, mac, a.HostMAC))
			}
		}
	}
	return errors.Join(errs...)
}
