package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// A floor wires a container of both families with the fewest requests to the kernel, from one process that keeps nothing,
// decides nothing and is not asked over a socket. Nothing that attaches such a container can be faster.
type floor struct {
	node lab.NS
	last *atomic.Uint32 // address given
}

func newFloor(node lab.NS) floor { return floor{node, new(atomic.Uint32)} }

var (
	hostMAC, podMAC    = net.HardwareAddr{2, 1, 0, 0, 0, 1}, net.HardwareAddr{2, 2, 0, 0, 0, 1}
	gateway6, gateway4 = net.ParseIP("fe80::1"), net.IPv4(169, 254, 1, 1).To4()
)

func linkName(ns lab.NS) string {
	sum := sha256.Sum256([]byte(ns.Name))
	return "flo" + hex.EncodeToString(sum[:6])
}

// addresses are those of the next container.
func (f floor) addresses() (six, four net.IP) {
	n := f.last.Add(1)
	four = binary.BigEndian.AppendUint32(nil, 10<<24|97<<16|n&0xffff)
	six = net.ParseIP("2001:db8:97::")
	binary.BigEndian.PutUint32(six[12:], n)
	return six, four
}

func (f floor) add(ns lab.NS) error {
	host, err := open(f.node)
	if err != nil {
		return err
	}
	defer host.Close()
	file, err := os.Open(ns.Path())
	if err != nil {
		return err
	}
	defer file.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU = linkName(ns), hostMAC, 1400
	veth := &netlink.Veth{
		LinkAttrs: attrs, PeerName: "eth0", PeerHardwareAddr: podMAC, PeerMTU: 1400, PeerNamespace: netlink.NsFd(file.Fd()),
	}
	if err := host.LinkAdd(veth); err != nil {
		return fmt.Errorf("add link: %w", err)
	}
	pod, err := netlink.NewHandleAt(netns.NsHandle(file.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer pod.Close()
	eth0, err := pod.LinkByName("eth0")
	if err != nil {
		return err
	}
	six, four := f.addresses()
	return errors.Join(
		setUp(host, veth, subnet(gateway6, 64), single(gateway4)),
		setUp(pod, eth0, single(six), single(four)),
		host.RouteAdd(&netlink.Route{LinkIndex: veth.Index, Dst: single(six)}),
		host.RouteAdd(&netlink.Route{LinkIndex: veth.Index, Dst: single(four), Scope: netlink.SCOPE_LINK}),
		neighbour(host, veth, six, podMAC), neighbour(host, veth, four, podMAC),
		neighbour(pod, eth0, gateway6, hostMAC), neighbour(pod, eth0, gateway4, hostMAC),
		pod.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Dst: single(gateway4), Scope: netlink.SCOPE_LINK}),
		pod.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: gateway4}),
		pod.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: gateway6}),
	)
}

func (f floor) del(ns lab.NS) error {
	host, err := open(f.node)
	if err != nil {
		return err
	}
	defer host.Close()
	link, err := host.LinkByName(linkName(ns))
	if err != nil {
		return err
	}
	return host.LinkDel(link)
}

func open(ns lab.NS) (*netlink.Handle, error) {
	fd, err := netns.GetFromPath(ns.Path())
	if err != nil {
		return nil, err
	}
	defer func() { _ = fd.Close() }()
	return netlink.NewHandleAt(fd, unix.NETLINK_ROUTE)
}

// setUp gives a link its addresses, without duplicate address detection, and brings it up.
func setUp(h *netlink.Handle, link netlink.Link, addrs ...*net.IPNet) error {
	for _, a := range addrs {
		addr := &netlink.Addr{IPNet: a}
		if a.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := h.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("add address %s: %w", a, err)
		}
	}
	return h.LinkSetUp(link)
}

func neighbour(h *netlink.Handle, link netlink.Link, ip net.IP, mac net.HardwareAddr) error {
	return h.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: ip, HardwareAddr: mac})
}

func single(ip net.IP) *net.IPNet { return subnet(ip, len(ip)*8) }

func subnet(ip net.IP, bits int) *net.IPNet {
	return &net.IPNet{IP: ip, Mask: net.CIDRMask(bits, len(ip)*8)}
}
