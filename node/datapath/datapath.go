// Package datapath wires pods and knows the kernel: veth pairs, addresses, routes, neighbours and sysctls. It decides
// nothing. It is the only package that knows netlink, and it touches nothing that does not carry our mark: links have the
// group [Group], routes the protocol [Protocol] or [ProtocolLearned].
package datapath

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/node"
)

// The marks by which everything of ours can be found: ip link show group 103, ip route show proto 103.
const (
	Group           = 103 // of host links
	Protocol        = 103 // of host routes and aggregates
	ProtocolLearned = 186 // of learned routes; the number that others use for BGP
)

// maxHandles bounds the netlink sockets kept for later use.
const maxHandles = 16

// Options are what a [Datapath] needs.
type Options struct {
	Log *slog.Logger
	// Changed is called when something outside has changed what the node must look at. It must not block.
	Changed func()
	// Sysctl is where the kernel's settings are mounted; default /proc/sys.
	Sysctl string
	// Before, if set, is called before each single change of the kernel, and its error is that of the change. Tests fail,
	// delay or end the process there.
	Before func(op string) error
}

// A Datapath works in the network namespace in which it was made. Its methods may be called concurrently.
type Datapath struct {
	o  Options
	ns netns.NsHandle // the node's

	// handles are idle netlink sockets in the node's namespace. Each call takes its own, as a request holds its socket
	// until the kernel has answered, and the removal of a link waits for tens of milliseconds.
	handles chan *handle

	expected expected
	purger   purger
	nft      nftState
}

var _ node.Datapath = (*Datapath)(nil)

// New returns a Datapath of the calling thread's network namespace.
func New(o Options) (*Datapath, error) {
	if o.Sysctl == "" {
		o.Sysctl = "/proc/sys"
	}
	if o.Before == nil {
		o.Before = func(string) error { return nil }
	}
	ns, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("open own network namespace: %w", err)
	}
	return &Datapath{o: o, ns: ns, handles: make(chan *handle, maxHandles)}, nil
}

// Close releases the sockets. Nothing in the kernel changes.
func (d *Datapath) Close() {
	d.purger.all.Wait()
	d.nft.mu.Lock()
	d.dropNft()
	d.nft.mu.Unlock()
	for {
		select {
		case h := <-d.handles:
			h.Close()
		default:
			_ = d.ns.Close()
			return
		}
	}
}

// inNamespace runs do on a thread in the given network namespace. A thread that cannot be brought back is thrown away: none
// is ever left in a pod's namespace.
func inNamespace(ns netns.NsHandle, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- onThreadIn(ns, do) }()
	return <-done
}

func onThreadIn(ns netns.NsHandle, do func() error) error {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open own network namespace: %w", err)
	}
	defer func() { _ = home.Close() }()
	if err := netns.Set(ns); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter network namespace: %w", err)
	}
	err = do()
	if restored := netns.Set(home); restored == nil {
		runtime.UnlockOSThread()
	} // else the thread ends with this goroutine
	return err
}

// ours reports whether a host link carries our mark.
func ours(l netlink.Link) bool {
	return l.Type() == "veth" && l.Attrs().Group == Group && strings.HasPrefix(l.Attrs().Name, node.HostIfPrefix)
}

func isUp(l netlink.Link) bool { return l.Attrs().RawFlags&unix.IFF_UP != 0 }

// gone reports whether an error says that what was to be removed is not there.
func gone(err error) bool {
	_, notFound := errors.AsType[netlink.LinkNotFoundError](err)
	return notFound || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func hostNet(a netip.Addr) *net.IPNet { return ipNet(netip.PrefixFrom(a, a.BitLen())) }

// prefixOf turns a driver's network into a prefix. family tells 0.0.0.0/0 from ::/0, both of which may come as nil.
func prefixOf(n *net.IPNet, family int) netip.Prefix {
	if n == nil {
		if family == netlink.FAMILY_V4 {
			return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		}
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	a, _ := netip.AddrFromSlice(n.IP)
	if family == netlink.FAMILY_V4 {
		a = a.Unmap()
	}
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(a, bits)
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// addrPrefix is an address of a link with the length of its subnet.
func addrPrefix(a netlink.Addr) netip.Prefix {
	bits, _ := a.Mask.Size()
	return netip.PrefixFrom(addrOf(a.IP), bits)
}
