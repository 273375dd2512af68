package datapath_test

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/integration/netnstest"
)

// C38, B-022, B-110: with a pod goes what the node remembers of its connections, before and after translation, in both families;
// other connections stay.
func TestDetachForgetsConnections(t *testing.T) {
	w := newWorld(t)
	table := conntrack(w)
	client6, client4 := netip.MustParseAddr("2001:db8::99"), netip.MustParseAddr("192.0.2.99")
	other6, other4 := netip.MustParseAddr("2001:db8:1::77"), netip.MustParseAddr("10.1.0.77")
	for _, f := range []struct{ from, to, backFrom, backTo netip.Addr }{
		{client6, pod6, pod6, client6},
		{client4, pod4, pod4, client4},
		{pod4, client4, client4, pod4},
		{client4, rtr4, pod4, client4}, // a port of the node that leads to the pod
		{pod4, client4, client4, rtr4}, // from the pod, masqueraded
		{client6, other6, other6, client6},
		{client4, other4, other4, client4},
	} {
		table.add(w, f.from, f.to, f.backFrom, f.backTo)
	}
	a := attachment(1, pod6, pod4)
	w.attach(a)
	w.must(w.d.Detach(t.Context(), a))
	if n6, n4 := table.len(w, unix.AF_INET6), table.len(w, unix.AF_INET); n6 != 1 || n4 != 1 {
		t.Errorf("%d IPv6 and %d IPv4 connections are left, want the one of another pod each", n6, n4)
	}

	// Many at once, each with its own.
	const pods = 20
	done := make(chan error, pods)
	for n := range byte(pods) {
		addr := netip.AddrFrom4([4]byte{10, 1, 1, n + 1})
		table.add(w, client4, addr, addr, client4)
		go func() { done <- w.d.Detach(t.Context(), attachment(n+10, addr)) }()
	}
	for range pods {
		w.must(<-done)
	}
	if n := table.len(w, unix.AF_INET); n != 1 {
		t.Errorf("%d IPv4 connections are left, want one", n)
	}
}

// conntracker is the table of connections of a namespace.
type conntracker struct {
	h    *netlink.Handle
	port uint16 // of the last client
}

func conntrack(w *world) *conntracker {
	c := &conntracker{port: 1000}
	netnstest.Do(w.T, w.ns, func() {
		var err error
		c.h, err = netlink.NewHandle(unix.NETLINK_NETFILTER)
		w.must(err)
		// The kernel tracks once something asks for it; the module comes with the first request.
		_, err = c.h.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		w.must(err)
		if _, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_count"); err != nil {
			w.Fatal(err)
		}
	})
	w.Cleanup(c.h.Close)
	return c
}

func (c *conntracker) add(w *world, from, to, backFrom, backTo netip.Addr) {
	w.Helper()
	family := netlink.InetFamily(unix.AF_INET6)
	if from.Is4() {
		family = unix.AF_INET
	}
	c.port++
	ip := func(a netip.Addr) net.IP { return net.IP(a.AsSlice()) }
	w.must(c.h.ConntrackCreate(netlink.ConntrackTable, family, &netlink.ConntrackFlow{
		FamilyType: uint8(family),
		Forward:    netlink.IPTuple{SrcIP: ip(from), DstIP: ip(to), SrcPort: c.port, DstPort: 53, Protocol: unix.IPPROTO_UDP},
		Reverse:    netlink.IPTuple{SrcIP: ip(backFrom), DstIP: ip(backTo), SrcPort: 53, DstPort: c.port, Protocol: unix.IPPROTO_UDP},
		TimeOut:    uint32(time.Hour / time.Second),
	}))
}

func (c *conntracker) len(w *world, family netlink.InetFamily) int {
	w.Helper()
	flows, err := c.h.ConntrackTableList(netlink.ConntrackTable, family)
	w.must(err)
	return len(flows)
}
