package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/node"
)

// linkLocalBits is the length of the link-local subnet (RFC 4291 section 2.5.6).
const linkLocalBits = 64

func hasIPv6(a node.Attachment) bool { return slices.ContainsFunc(a.Addrs, netip.Addr.Is6) }

// podAddrs are the addresses of the container's end: the attachment's, and a link-local one for IPv6.
func podAddrs(a node.Attachment) []netip.Prefix {
	var out []netip.Prefix
	if hasIPv6(a) {
		out = append(out, netip.PrefixFrom(eui64(a.MAC), linkLocalBits))
	}
	return append(out, hostPrefixes(a.Addrs)...)
}

// addSecondary adds addresses that are never chosen as a source: deprecated ones in IPv6 (RFC 6724 section 5, rule 3), in IPv4
// of a scope that reaches no further than the host.
func addSecondary(h *handle, link netlink.Link, addrs []netip.Addr) error {
	for _, p := range hostPrefixes(addrs) {
		addr := &netlink.Addr{IPNet: ipNet(p), Scope: int(netlink.SCOPE_HOST)}
		if p.Addr().Is6() {
			addr.Scope, addr.Flags = 0, unix.IFA_F_NODAD
			addr.ValidLft, addr.PreferedLft = forever, 0
		}
		if err := h.AddrAdd(link, addr); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add address %s to %s: %w", p, link.Attrs().Name, err)
		}
	}
	return nil
}

// forever is the lifetime of an address that does not end (INFINITY_LIFE_TIME, linux/if_addr.h).
const forever = 1<<32 - 1

// The addresses of a host's end.
var (
	gateway4 = netip.PrefixFrom(node.Gateway4, node.Gateway4.BitLen())
	gateway6 = netip.PrefixFrom(node.Gateway6, linkLocalBits)
)

// gatewayAddrs are those that an end has.
func gatewayAddrs(end node.End) []netip.Prefix {
	var out []netip.Prefix
	if end.IPv6 {
		out = append(out, gateway6)
	}
	if end.IPv4 {
		out = append(out, gateway4)
	}
	return out
}

// eui64 is the link-local address that belongs to a MAC (RFC 4291 appendix A).
func eui64(m node.MAC) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
}

// addAddrs adds addresses that can be used at once: duplicate address detection would take a second, and there is nobody
// on a veth to have a duplicate.
func addAddrs(h *handle, link netlink.Link, addrs []netip.Prefix) error {
	for _, p := range addrs {
		addr := &netlink.Addr{IPNet: ipNet(p)}
		if p.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if p.Addr().IsLinkLocalUnicast() {
			addr.Scope = int(netlink.SCOPE_LINK)
		}
		if err := h.AddrAdd(link, addr); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add address %s to %s: %w", p, link.Attrs().Name, err)
		}
	}
	return nil
}

func setNeighbour(h *handle, link netlink.Link, addr netip.Addr, mac node.MAC, state int) error {
	family := netlink.FAMILY_V6
	if addr.Is4() {
		family = netlink.FAMILY_V4
	}
	err := h.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: family, State: state, IP: addr.AsSlice(), HardwareAddr: mac[:],
	})
	if err != nil {
		return fmt.Errorf("set neighbour %s on %s: %w", addr, link.Attrs().Name, err)
	}
	return nil
}
