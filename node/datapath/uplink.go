package datapath

import (
	"context"
	"errors"
	"fmt"
	"net"
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
		way, err := wayTo(ctx, h, dst)
		if err != nil {
			return nil, err
		}
		if way.index == 0 {
			continue
		}
		up, err := uplink(ctx, h, way)
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

// A way is how the kernel would send to a destination. No way has index 0.
type way struct {
	index           int        // of the link
	source, gateway netip.Addr // what the kernel would take; invalid when it is not known
}

func wayTo(ctx context.Context, h *handle, dst netip.Addr) (way, error) {
	if dst.IsUnspecified() {
		return defaultWay(ctx, h, dst)
	}
	if zone := dst.Zone(); zone != "" {
		link, err := h.LinkByName(zone)
		if gone(err) {
			return way{}, nil
		}
		if err != nil {
			return way{}, fmt.Errorf("find %s: %w", zone, err)
		}
		return way{index: link.Attrs().Index}, nil
	}
	routes, err := h.RouteGet(dst.AsSlice())
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINVAL) {
		return way{}, nil // no route, or one of type unreachable, prohibit or blackhole
	}
	if err != nil || len(routes) == 0 {
		return way{}, fmt.Errorf("find the way to %s: %w", dst, err)
	}
	return way{routes[0].LinkIndex, addrOf(routes[0].Src), gateway(routes[0].Gw, routes[0].Via)}, nil
}

// defaultWay is that of the best default route.
func defaultWay(ctx context.Context, h *handle, unspecified netip.Addr) (way, error) {
	family := netlink.FAMILY_V6
	if unspecified.Is4() {
		family = netlink.FAMILY_V4
	}
	routes, err := mainRoutes(ctx, h, family, 0)
	if err != nil {
		return way{}, err
	}
	var found way
	best := 0
	for _, r := range routes {
		if prefixOf(r.Dst, family).Bits() != 0 || r.Type != unix.RTN_UNICAST {
			continue
		}
		out := way{index: r.LinkIndex, gateway: gateway(r.Gw, r.Via)}
		if len(r.MultiPath) > 0 {
			first := r.MultiPath[0]
			out = way{index: first.LinkIndex, gateway: gateway(first.Gw, first.Via)}
		}
		if found.index == 0 || r.Priority < best {
			found, best = out, r.Priority
		}
	}
	return found, nil
}

// gateway returns the next hop of a route. One of the other family (RFC 8950) is link-local.
func gateway(gw net.IP, via netlink.Destination) netip.Addr {
	if v, ok := via.(*netlink.Via); ok {
		return addrOf(v.Addr)
	}
	return addrOf(gw)
}

// uplink describes a link: its addresses are the node's own on it or, where it has none (unnumbered), those of the loopback.
func uplink(ctx context.Context, h *handle, w way) (node.Uplink, error) {
	link, err := h.LinkByIndex(w.index)
	if err != nil {
		return node.Uplink{}, err
	}
	up := node.Uplink{Link: link.Attrs().Name, MTU: link.Attrs().MTU, Gateway: w.gateway}
	if w.source.Is4() {
		up.IPv4 = w.source
	} else if w.source.IsValid() {
		up.IPv6 = w.source
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

// LinkNames tells which link has each of the node's own global addresses.
func (d *Datapath) LinkNames(ctx context.Context) (map[netip.Addr]string, error) {
	h, giveBack, err := d.handle()
	if err != nil {
		return nil, err
	}
	defer giveBack()
	names, err := linkNames(ctx, h)
	if err != nil {
		return nil, err
	}
	addrs, err := addresses(ctx, h, nil)
	if err != nil {
		return nil, err
	}
	out := make(map[netip.Addr]string)
	for _, a := range addrs {
		if addr := addrOf(a.IP); addr.IsGlobalUnicast() {
			out[addr] = names[a.LinkIndex]
		}
	}
	return out, nil
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
	out := make([]netip.Prefix, 0, len(addrs))
	for _, a := range addrs {
		own := addrPrefix(a)
		if !own.Addr().IsGlobalUnicast() {
			continue // every link has the link-local subnet, pods' links too
		}
		out = append(out, own)
		if a.Peer != nil {
			bits, _ := a.Peer.Mask.Size()
			out = append(out, netip.PrefixFrom(addrOf(a.Peer.IP), bits))
		}
	}
	return out, nil
}
