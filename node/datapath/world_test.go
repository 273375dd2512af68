package datapath_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/cni"
	"github.com/gaggle-cni/gaggle/integration/netnstest"
	"github.com/gaggle-cni/gaggle/node"
	"github.com/gaggle-cni/gaggle/node/datapath"
)

// patience bounds every wait for the kernel.
const patience = 20 * time.Second

var (
	pod6, pod4 = netip.MustParseAddr("2001:db8:1::1"), netip.MustParseAddr("10.1.0.1")
	rtr6, rtr4 = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.0.2.1")
)

// A world is the namespace of a node with a Datapath in it. The Datapath is made in that namespace, while the process is in
// another: what it does anywhere else does not pass for done.
type world struct {
	*testing.T
	ns   *os.File
	host *netlink.Handle
	d    *datapath.Datapath

	pairs int // made by addVeth

	before atomic.Pointer[func(op string) error] // Options.Before; nil for none

	changes atomic.Int32                  // calls of Options.Changed
	hold    atomic.Pointer[chan struct{}] // while set, such a call waits until it is closed
	held    atomic.Int32                  // calls that wait or have waited
}

func (w *world) changedCall() {
	w.changes.Add(1)
	if gate := w.hold.Load(); gate != nil {
		w.held.Add(1)
		<-*gate
	}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, ns: netnstest.New(t)}
	w.host = netnstest.Handle(t, w.ns)
	netnstest.Do(t, w.ns, func() {
		var err error
		w.d, err = datapath.New(datapath.Options{
			Log: slog.New(slog.DiscardHandler), Changed: w.changedCall, Before: func(op string) error {
				if before := w.before.Load(); before != nil {
					return (*before)(op)
				}
				return nil
			},
		})
		w.must(err)
	})
	t.Cleanup(w.d.Close)
	return w
}

// uplink connects the node to a router: link up0, 2001:db8::10/64 and 192.0.2.10/24, and default routes.
func (w *world) uplink() (router *os.File) {
	w.Helper()
	router = netnstest.New(w.T)
	w.addVeth(w.ns, "up0", router, "node")
	w.address(w.ns, "up0", "2001:db8::10/64", "192.0.2.10/24")
	w.address(router, "node", "2001:db8::1/64", "192.0.2.1/24")
	for _, gw := range []netip.Addr{rtr6, rtr4} {
		w.must(w.host.RouteAdd(&netlink.Route{Dst: everything(gw), Gw: gw.AsSlice(), Protocol: unix.RTPROT_STATIC}))
	}
	return router
}

// addVeth makes a pair that is not ours, brings both ends up, and waits until the kernel has nothing more to add to them.
func (w *world) addVeth(ns *os.File, name string, peerNS *os.File, peer string) {
	w.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	// The kernel notices a carrier at once if the ends' indexes differ, else within a second (net/core/link_watch.c).
	w.pairs++
	attrs.Index = 1000 + w.pairs
	w.must(netnstest.Handle(w.T, ns).LinkAdd(&netlink.Veth{
		LinkAttrs: attrs, PeerName: peer, PeerNamespace: netlink.NsFd(peerNS.Fd()),
	}))
	for end, in := range map[string]*os.File{name: ns, peer: peerNS} {
		netnstest.Sysctl(w.T, in, "net/ipv6/conf/"+end+"/accept_dad", "0")
		w.must(netnstest.Handle(w.T, in).LinkSetUp(w.link(in, end)))
	}
	for end, in := range map[string]*os.File{name: ns, peer: peerNS} {
		// With the carrier, which the kernel notices late, come the link-local address and, last, the route for multicast.
		w.eventually(func() bool {
			return len(only(w.describe(in), "route table 255 multicast ff00::/8 dev "+end+" ")) > 0
		}, func() string { return end + " has no carrier" })
	}
}

func (w *world) address(ns *os.File, link string, addrs ...string) {
	w.Helper()
	for _, text := range addrs {
		addr, err := netlink.ParseAddr(text)
		w.must(err)
		if addr.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}
		w.must(netnstest.Handle(w.T, ns).AddrAdd(w.link(ns, link), addr))
		w.eventually(func() bool {
			return len(only(w.describe(ns), "route table 255 local "+addr.IP.String()+"/")) > 0
		}, func() string { return text + " is not served" })
	}
}

func (w *world) link(ns *os.File, name string) netlink.Link {
	w.Helper()
	link, err := netnstest.Handle(w.T, ns).LinkByName(name)
	w.must(err)
	return link
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// wired is must for Attach: the number of a namespace that is wired is known.
func (w *world) wired(ns node.NetnsID, err error) node.NetnsID {
	w.Helper()
	w.must(err)
	if ns == node.NoNetns {
		w.Fatal("the namespace has no number")
	}
	return ns
}

// attach makes a pod of its own for an attachment.
func (w *world) attach(a node.Attachment) (pod *os.File) {
	w.Helper()
	pod = netnstest.New(w.T)
	w.wired(w.d.Attach(w.Context(), pod, a))
	return pod
}

// routeTo puts the host routes of an attachment, as the pass does after Attach.
func (w *world) routeTo(a node.Attachment) {
	w.Helper()
	for _, addr := range a.Addrs {
		w.must(w.d.Routes().Put(w.Context(), host(addr), node.Route{Kind: node.RouteHost, Link: a.HostIf}))
	}
}

// reaches waits until a packet to the address, and the answer to it, get through. A connection to a port where nobody
// listens is refused, by the one who has the address.
func (w *world) reaches(from *os.File, to netip.Addr) {
	w.Helper()
	var err error
	w.eventually(func() bool {
		netnstest.Do(w.T, from, func() {
			var c net.Conn
			if c, err = net.DialTimeout("tcp", net.JoinHostPort(to.String(), "9"), patience/10); err == nil {
				c.Close()
			}
		})
		return errors.Is(err, unix.ECONNREFUSED)
	}, func() string { return fmt.Sprintf("%s cannot be reached: %v", to, err) })
}

// eventually waits until something holds.
func (w *world) eventually(holds func() bool, complaint func() string) {
	w.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			w.Fatalf("after %s: %s", patience, complaint())
		}
	}
}

// attachment makes one of several that have nothing in common.
func attachment(n byte, addrs ...netip.Addr) node.Attachment {
	name := fmt.Sprintf("c%d", n)
	return node.Attachment{
		ID:     cni.ID{Network: "gaggle", ContainerID: name, IfName: "eth0"},
		Pod:    node.Pod{Key: node.PodKey{Namespace: "default", Name: name}},
		HostIf: fmt.Sprintf("ggl%012x", n), HostMAC: node.MAC{2, 1, 0, 0, 0, n}, MAC: node.MAC{2, 2, 0, 0, 0, n},
		MTU: 1400, Addrs: addrs,
	}
}

func host(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, addr.BitLen()) }

func everything(like netip.Addr) *net.IPNet {
	return &net.IPNet{IP: make(net.IP, like.BitLen()/8), Mask: make(net.IPMask, like.BitLen()/8)}
}

func network(text string) *net.IPNet {
	p := netip.MustParsePrefix(text)
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
