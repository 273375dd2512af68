package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/node"
)

// maxAlias is what the kernel takes for a link's description (IFALIASZ less one).
const maxAlias = 255

// addrGenNone keeps the kernel from making a link-local address of its own, which would be tentative for a second
// (IN6_ADDR_GEN_MODE_NONE, linux/if_link.h).
const addrGenNone = 1

// Bounds of the wait for the kernel to serve an address; it takes less than a millisecond on an idle machine.
const (
	localLimit = 5 * time.Second
	localGap   = 200 * time.Microsecond
)

// Attach implements [node.Datapath].
func (d *Datapath) Attach(ctx context.Context, ns *os.File, a node.Attachment) (id node.NetnsID, err error) {
	if err := d.checkNamespace(ns); err != nil {
		return node.NoNetns, err
	}
	host, giveBack, err := d.handle()
	if err != nil {
		return node.NoNetns, err
	}
	defer giveBack()
	fd := netns.NsHandle(ns.Fd())
	pod, err := d.handleAt(fd)
	if err != nil {
		return node.NoNetns, fmt.Errorf("open netlink socket in the container: %w", err)
	}
	defer pod.Close()

	if err := d.makePair(host, pod, fd, a); err != nil {
		return node.NoNetns, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.removeOurs(host, a.HostIf))
		}
	}()
	for _, step := range []func() error{
		func() error { return d.preparePod(pod, fd, a) },
		func() error { return d.wireHost(host, a) },
		func() error { return wirePod(pod, a) },
		func() error { return waitLocal(ctx, pod, a) },
	} {
		if err := ctx.Err(); err != nil {
			return node.NoNetns, fmt.Errorf("attach %s: %w", a.HostIf, context.Cause(ctx))
		}
		if err := step(); err != nil {
			return node.NoNetns, err
		}
	}
	number, err := host.GetNetNsIdByFd(int(fd)) // the kernel gave it one when the pair was made
	if err != nil {
		return node.NoNetns, fmt.Errorf("find the number of the container's network namespace: %w", err)
	}
	return node.NetnsID(number), nil
}

// checkNamespace refuses what is no network namespace, and the node's own.
func (d *Datapath) checkNamespace(ns *os.File) error {
	fd := int(ns.Fd())
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fmt.Errorf("%w: %w", node.ErrNetns, err)
	}
	if fs.Type != unix.NSFS_MAGIC {
		return fmt.Errorf("%w: it is a file", node.ErrNetns)
	}
	if kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		return fmt.Errorf("%w: it is a namespace of another kind", node.ErrNetns)
	}
	if d.ns.Equal(netns.NsHandle(fd)) {
		return fmt.Errorf("%w: it is the node's own", node.ErrNetns)
	}
	return nil
}

// makePair makes the veth pair in one message, each end with its name, MAC and MTU, the host's with our mark. So nothing
// can be there without the mark, and no udev rule finds a MAC that it may change (systemd's MACAddressPolicy leaves alone
// what was set at creation).
func (d *Datapath) makePair(host, pod *handle, ns netns.NsHandle, a node.Attachment) error {
	// First, as with what an earlier attempt left goes its end in the container.
	if err := d.removeOurs(host, a.HostIf); err != nil {
		return err
	}
	if _, err := pod.LinkByName(a.ID.IfName); err == nil {
		return fmt.Errorf("%w: %s in the container", node.ErrInterfaceExists, a.ID.IfName)
	} else if !gone(err) {
		return fmt.Errorf("look for %s in the container: %w", a.ID.IfName, err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr, attrs.Group = a.HostIf, a.MTU, a.HostMAC[:], Group
	err := host.LinkAdd(&netlink.Veth{
		LinkAttrs: attrs, PeerName: a.ID.IfName, PeerHardwareAddr: a.MAC[:], PeerMTU: uint32(a.MTU), PeerNamespace: netlink.NsFd(ns),
	})
	if err != nil {
		return fmt.Errorf("make veth %s: %w", a.HostIf, err)
	}
	return nil
}

// preparePod sets what must hold before the container's end comes up: IPv6 may be off in a new namespace, the pod takes
// its routes from nobody, and no address is ever tentative.
func (d *Datapath) preparePod(pod *handle, ns netns.NsHandle, a node.Attachment) error {
	var settings []setting
	if hasIPv6(a) {
		settings = append(settings,
			setting{"ipv6", "lo", "disable_ipv6", "0"},
			setting{"ipv6", a.ID.IfName, "disable_ipv6", "0"})
	}
	settings = append(settings,
		setting{"ipv6", a.ID.IfName, "accept_ra", "0"},
		setting{"ipv6", a.ID.IfName, "accept_dad", "0"})
	if err := d.setLinks(ns, settings); err != nil {
		return err
	}
	link, err := pod.LinkByName(a.ID.IfName)
	if err != nil {
		return fmt.Errorf("find %s in the container: %w", a.ID.IfName, err)
	}
	return withoutOwnLinkLocal(pod, link)
}

func withoutOwnLinkLocal(h *handle, link netlink.Link) error {
	// A link with an MTU below 1280 has no IPv6 at all (RFC 8200 section 5); an IPv4-only pod needs none.
	if err := h.LinkSetIP6AddrGenMode(link, addrGenNone); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("set address generation of %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// wireHost brings up the host's end. It has the gateways' addresses, as proxies would not answer for them on a host without
// a default route.
func (d *Datapath) wireHost(host *handle, a node.Attachment) error {
	link, err := host.LinkByName(a.HostIf)
	if err != nil {
		return fmt.Errorf("find %s: %w", a.HostIf, err)
	}
	// The kernel takes no description at creation (net/core/rtnetlink.c, rtnl_create_link).
	if err := host.LinkSetAlias(link, alias(a)); err != nil {
		return fmt.Errorf("describe %s: %w", a.HostIf, err)
	}
	if err := withoutOwnLinkLocal(host, link); err != nil {
		return err
	}
	if err := d.setEnd(host, link, a.End()); err != nil {
		return err
	}
	for _, addr := range a.Own() {
		// Stale, not permanent: it is used at once, and heals when a chained plugin changes the pod's MAC.
		if err := setNeighbour(host, link, addr, a.MAC, netlink.NUD_STALE); err != nil {
			return err
		}
	}
	return nil
}

// wirePod gives the container's end its addresses and the way out.
func wirePod(pod *handle, a node.Attachment) error {
	link, err := pod.LinkByName(a.ID.IfName)
	if err != nil {
		return fmt.Errorf("find %s in the container: %w", a.ID.IfName, err)
	}
	if err := addAddrs(pod, link, podAddrs(a)); err != nil {
		return err
	}
	if err := addSecondary(pod, link, slices.Concat(a.Extra, a.Anycast)); err != nil {
		return err
	}
	if err := pod.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up %s in the container: %w", a.ID.IfName, err)
	}
	for _, addr := range a.Addrs {
		gateway := node.Gateway6
		if addr.Is4() {
			gateway = node.Gateway4
		}
		// The gateway's MAC is ours and does not change while the pair lives.
		if err := setNeighbour(pod, link, gateway, a.HostMAC, netlink.NUD_PERMANENT); err != nil {
			return err
		}
		if a.NoDefault {
			continue
		}
		if err := addDefaultRoute(pod, link, gateway); err != nil {
			return err
		}
	}
	return nil
}

func addDefaultRoute(pod *handle, link netlink.Link, gateway netip.Addr) error {
	all := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	if gateway.Is4() {
		all = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		err := pod.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: hostNet(gateway)})
		if errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("%w: the container has a route to %s already", node.ErrRouteExists, gateway)
		}
		if err != nil {
			return fmt.Errorf("add route to the gateway %s in the container: %w", gateway, err)
		}
	}
	err := pod.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(all), Gw: gateway.AsSlice()})
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%w: the container has a default route already", node.ErrRouteExists)
	}
	if err != nil {
		return fmt.Errorf("add default route via %s in the container: %w", gateway, err)
	}
	return nil
}

// waitLocal waits until packets to the pod's IPv6 addresses are taken for the pod's. The kernel makes the routes for that in
// the background, even without duplicate address detection (net/ipv6/addrconf.c, addrconf_dad_work); until then it drops what
// comes. In IPv4 they are there with the address.
func waitLocal(ctx context.Context, pod *handle, a node.Attachment) error {
	ctx, cancel := context.WithTimeout(ctx, localLimit)
	defer cancel()
	for _, addr := range a.Bound() {
		for addr.Is6() {
			routes, err := pod.RouteGet(addr.AsSlice())
			if err != nil {
				return fmt.Errorf("find the way to %s in the container: %w", addr, err)
			}
			if len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
				break
			}
			select {
			case <-time.After(localGap):
			case <-ctx.Done():
				return fmt.Errorf("wait for %s in the container: %w", addr, context.Cause(ctx))
			}
		}
	}
	return nil
}

// Detach implements [node.Datapath]. The neighbours, and the routes that are left, go with the link.
func (d *Datapath) Detach(ctx context.Context, a node.Attachment) error {
	host, giveBack, err := d.handle()
	if err != nil {
		return err
	}
	defer giveBack()
	if err := d.removeOurs(host, a.HostIf); err != nil && !errors.Is(err, node.ErrForeignLink) { // that is not ours to remove
		return err
	}
	if a.Namespace == node.NoNetns {
		return nil // it was never wired, and nobody has spoken with it
	}
	if err := d.purge(ctx, a.Bound()); err != nil {
		// A pod must be able to go on a kernel that tracks and does not let us look. The addresses rest, and meanwhile most of
		// what is remembered runs out.
		d.o.Log.WarnContext(ctx, "connections with addresses that are free again are remembered", "addr", a.Addrs, "err", err)
	}
	return nil
}

// removeOurs removes a link if it is ours, and complains if it is not.
func (d *Datapath) removeOurs(host *handle, name string) error {
	link, err := host.LinkByName(name)
	if gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for %s: %w", name, err)
	}
	if !ours(link) {
		return fmt.Errorf("%w: %s, of type %s, not of group %d", node.ErrForeignLink, name, link.Type(), Group)
	}
	d.expected.add(linkEvent(name))
	d.expected.add(addrEvent(link.Attrs().Index))
	if err := host.LinkDel(link); err != nil && !gone(err) {
		d.expected.take(linkEvent(name))
		return fmt.Errorf("remove link %s: %w", name, err)
	}
	return nil
}
