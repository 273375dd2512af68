package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/node"
)

// Uplinks implements [node.Datapath].
func (d *Datapath) Uplinks(ctx context.Context, dsts []netip.Addr) (map[netip.Addr]node.Uplink, error) {
	h, giveBack, err := d.handle()
	if err != nil {
		return nil, err
	}
	defer giveBack()
	out := make(map[netip.Addr]node.Uplink)
	for _, dst := range dsts {
		index, source, err := wayTo(ctx, h, dst)
		if err != nil {
			return nil, err
		}
		if index == 0 {
			continue
		}
		up, err := uplink(ctx, h, index, source)
		if gone(err) {
			continue // the link went meanwhile; an event will tell
		}
		if err != nil {
			return nil, err
		}
		out[dst] = up
	}
	return out, nil
}

// wayTo finds the link towards a destination, and the source address the kernel would take. No way is index 0.
func wayTo(ctx context.Context, h *handle, dst netip.Addr) (index int, source netip.Addr, err error) {
	if dst.IsUnspecified() {
		index, err := defaultLink(ctx, h, dst)
		return index, netip.Addr{}, err
	}
	if zone := dst.Zone(); zone != "" {
		link, err := h.LinkByName(zone)
		if gone(err) {
			return 0, netip.Addr{}, nil
		}
		if err != nil {
			return 0, netip.Addr{}, fmt.Errorf("find %s: %w", zone, err)
		}
		return link.Attrs().Index, netip.Addr{}, nil
	}
	routes, err := h.RouteGet(dst.AsSlice())
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINVAL) {
		return 0, netip.Addr{}, nil // no route, or one of type unreachable, prohibit or blackhole
	}
	if err != nil || len(routes) == 0 {
		return 0, netip.Addr{}, fmt.Errorf("find the way to %s: %w", dst, err)
	}
	return routes[0].LinkIndex, addrOf(routes[0].Src), nil
}

// defaultLink returns the link of the best default route.
func defaultLink(ctx context.Context, h *handle, unspecified netip.Addr) (int, error) {
	family := netlink.FAMILY_V6
	if unspecified.Is4() {
		family = netlink.FAMILY_V4
	}
	routes, err := mainRoutes(ctx, h, family, 0)
	if err != nil {
		return 0, err
	}
	index, best := 0, 0
	for _, r := range routes {
		if prefixOf(r.Dst, family).Bits() != 0 || r.Type != unix.RTN_UNICAST {
			continue
		}
		out := r.LinkIndex
		if len(r.MultiPath) > 0 {
			out = r.MultiPath[0].LinkIndex
		}
		if index == 0 || r.Priority < best {
			index, best = out, r.Priority
		}
	}
	return index, nil
}

// uplink describes a link: its addresses are the node's own on it or, where it has none (unnumbered), those of the loopback.
func uplink(ctx context.Context, h *handle, index int, source netip.Addr) (node.Uplink, error) {
	link, err := h.LinkByIndex(index)
	if err != nil {
		return node.Uplink{}, err
	}
	up := node.Uplink{Link: link.Attrs().Name, MTU: link.Attrs().MTU}
	if source.Is4() {
		up.IPv4 = source
	} else if source.IsValid() {
		up.IPv6 = source
	}
	loopback, err := h.LinkByName("lo")
	if err != nil {
		return node.Uplink{}, err
	}
	for _, l := range []netlink.Link{link, loopback} {
		addrs, err := addresses(ctx, h, l)
		if err != nil {
			return node.Uplink{}, err
		}
		for _, a := range addrs {
			addr := addrOf(a.IP)
			if !usable(a, addr) {
				continue
			}
			if addr.Is4() && !up.IPv4.IsValid() {
				up.IPv4 = addr
			}
			if addr.Is6() && !up.IPv6.IsValid() {
				up.IPv6 = addr
			}
		}
	}
	return up, nil
}

// usable reports whether others can be told to send to an address.
func usable(a netlink.Addr, addr netip.Addr) bool {
	const bad = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_DEPRECATED | unix.IFA_F_TEMPORARY
	flags := a.Flags
	if addr.Is4() {
		flags &^= unix.IFA_F_SECONDARY // the same bit as TEMPORARY
	}
	return addr.IsGlobalUnicast() && flags&bad == 0
}

// Connected implements [node.Datapath].
func (d *Datapath) Connected(ctx context.Context) ([]netip.Prefix, error) {
	h, giveBack, err := d.handle()
	if err != nil {
		return nil, err
	}
	defer giveBack()
	addrs, err := addresses(ctx, h, nil)
	if err != nil {
		return nil, err
	}
	var out []netip.Prefix
	for _, a := range addrs {
		addr := addrOf(a.IP)
		if !addr.IsGlobalUnicast() {
			continue // every link has the link-local subnet, pods' links too
		}
		out = append(out, addrPrefix(a).Masked())
	}
	return out, nil
}
