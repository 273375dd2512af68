package datapath_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/integration/netnstest"
	"github.com/gaggle-cni/gaggle/node"
	"github.com/gaggle-cni/gaggle/node/datapath"
)

// watch watches until the test ends or stop is called, and waits until it has begun.
func (w *world) watch() (stop func()) {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan error, 1)
	before := w.changes.Load()
	go func() { done <- w.d.Watch(ctx) }()
	w.changed(before + 1) // whatever happened before
	stop = func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				w.Errorf("Watch() = %v, want none: that it was ended is no failure", err)
			}
			done <- nil
		case <-time.After(patience):
			w.Error("Watch does not end with its context")
		}
	}
	w.Cleanup(stop)
	return stop
}

// changed waits until so many changes were reported in all.
func (w *world) changed(total int32) {
	w.Helper()
	w.eventually(func() bool { return w.changes.Load() >= total }, func() string {
		return fmt.Sprintf("%d changes were reported, want %d", w.changes.Load(), total)
	})
}

// B-030, B-057: what others do to our entries, and to the node's way to the world, is reported.
func TestWatchReportsWhatOthersDo(t *testing.T) {
	w := newWorld(t)
	w.uplink()
	a := attachment(1, pod6, pod4)
	pod := w.attach(a)
	w.routeTo(a)
	theirs6, theirs4 := netip.MustParsePrefix("2001:db8:f::/48"), netip.MustParsePrefix("198.51.100.0/24")
	w.must(w.d.Learned().Put(t.Context(), theirs6, learned(own6, "2001:db8::1")))
	w.must(w.d.Learned().Put(t.Context(), theirs4, learned(own4, "192.0.2.1")))
	w.watch()
	up0 := w.link(w.ns, "up0")
	address := &netlink.Addr{IPNet: network("2001:db8:77::1/64"), Flags: unix.IFA_F_NODAD}
	static := &netlink.Route{Dst: network("0.0.0.0/0"), Gw: rtr4.AsSlice(), Priority: 77}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"a host route goes, IPv6", func() error { return w.host.RouteDel(&netlink.Route{Dst: network("2001:db8:1::1/128")}) }},
		{"a host route goes, IPv4", func() error {
			return w.host.RouteDel(&netlink.Route{Dst: network("10.1.0.1/32"), Scope: netlink.SCOPE_LINK})
		}},
		{"a learned route goes, IPv6", func() error { return w.host.RouteDel(&netlink.Route{Dst: network("2001:db8:f::/48")}) }},
		{"a learned route goes, IPv4", func() error { return w.host.RouteDel(&netlink.Route{Dst: network("198.51.100.0/24")}) }},
		{"a default route comes", func() error { return w.host.RouteAdd(static) }},
		{"a default route goes", func() error { return w.host.RouteDel(static) }},
		{"an address comes", func() error { return w.host.AddrAdd(up0, address) }},
		{"an address goes", func() error { return w.host.AddrDel(up0, address) }},
		{"the MTU changes", func() error { return w.host.LinkSetMTU(up0, 1450) }},
		{"the uplink goes down", func() error { return w.host.LinkSetDown(up0) }},
		{"a link comes", func() error {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "new"
			return w.host.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
		}},
		{"a link of ours goes", func() error { return w.host.LinkDel(w.link(w.ns, a.HostIf)) }},
	} {
		before := w.settled()
		w.must(step.do())
		w.eventually(func() bool { return w.changes.Load() > before }, func() string { return step.name + ": not reported" })
	}
	w.compare("pod", nil, of("eth0", w.describe(pod)))
}

// settled waits until nothing has been reported for a while, and returns how much has been.
func (w *world) settled() int32 {
	w.Helper()
	const calm = 100 * time.Millisecond
	seen, since := w.changes.Load(), time.Now()
	w.eventually(func() bool {
		if now := w.changes.Load(); now != seen {
			seen, since = now, time.Now()
		}
		return time.Since(since) > calm
	}, func() string { return "changes without end" })
	return seen
}

// What the Datapath does itself is not reported, and hides nothing that others do.
func TestWatchIsSilentAboutOurOwnChanges(t *testing.T) {
	w := newWorld(t)
	w.uplink()
	w.watch()
	marker := attachment(99, pod6.Next(), pod4.Next())
	w.attach(marker)
	quiet := w.settled()
	ctx := t.Context()
	theirs6, theirs4 := netip.MustParsePrefix("2001:db8:f::/48"), netip.MustParsePrefix("198.51.100.0/24")
	for n := range byte(10) {
		a := attachment(n, pod6, pod4)
		w.attach(a)
		w.routeTo(a)
		for _, v := range []node.Route{aggregate, hostRoute(a.HostIf), aggregate} { // each needs that the other goes
			w.must(w.d.Routes().Put(ctx, netip.MustParsePrefix("2001:db8:2::/64"), v))
			w.must(w.d.Routes().Put(ctx, netip.MustParsePrefix("10.2.0.0/24"), v))
		}
		for _, hops := range [][]string{{"2001:db8::1"}, {"2001:db8::1", "2001:db8::2"}, {"2001:db8::3"}} {
			w.must(w.d.Learned().Put(ctx, theirs6, learned(own6, hops...)))
		}
		for _, hops := range [][]string{{"192.0.2.1"}, {"192.0.2.1", "192.0.2.2"}, {"192.0.2.3"}} {
			w.must(w.d.Learned().Put(ctx, theirs4, learned(own4, hops...)))
		}
		for _, p := range []netip.Prefix{host(pod6), host(pod4), netip.MustParsePrefix("2001:db8:2::/64"), netip.MustParsePrefix("10.2.0.0/24")} {
			w.must(w.d.Routes().Delete(ctx, p))
		}
		for _, p := range []netip.Prefix{theirs6, theirs4} {
			w.must(w.d.Learned().Delete(ctx, p))
		}
		w.must(w.d.Detach(ctx, a))
	}
	if got := w.settled(); got != quiet {
		t.Errorf("%d of our own changes were reported, want none", got-quiet)
	}
	// The same entries, by another's hand.
	a := attachment(0, pod6)
	w.attach(a)
	w.routeTo(a)
	quiet = w.settled()
	w.must(w.host.RouteDel(&netlink.Route{Dst: network("2001:db8:1::1/128")}))
	w.changed(quiet + 1)
	w.must(w.host.LinkDel(w.link(w.ns, a.HostIf)))
	w.changed(quiet + 2)
	// The link's address and its state went with it, which may be told too; nothing else did.
	if got := w.settled(); got > quiet+4 {
		t.Errorf("%d changes were reported, want 4 at most", got-quiet)
	}
}

func TestWatchEndsWithItsContext(t *testing.T) {
	w := newWorld(t)
	fds := count(w, "/proc/self/fd")
	for range 3 {
		stop := w.watch()
		stop() // nothing happens in the kernel that would wake it
	}
	w.eventually(func() bool { return count(w, "/proc/self/fd") <= fds }, func() string { return "sockets are left open" })
	w.atHome()
	// Nothing is reported after the end.
	before := w.changes.Load()
	w.addVeth(w.ns, "up0", netnstest.New(t), "peer")
	if got := w.settled(); got != before {
		t.Errorf("%d changes were reported after the end", got-before)
	}
}

// When so much happens that the kernel drops events, everything counts as changed.
func TestWatchReportsLostEvents(t *testing.T) {
	w := newWorld(t)
	up := attachment(1, pod6)
	w.attach(up)
	w.watch()
	w.settled()
	// Whoever is told of the change does not come back for the next event, as on a machine that is busy.
	gate := make(chan struct{})
	w.hold.Store(&gate)
	first := &netlink.Route{Dst: network("2001:db8:3::/64"), Protocol: datapath.Protocol, LinkIndex: w.link(w.ns, up.HostIf).Attrs().Index}
	w.must(w.host.RouteAdd(first))
	w.must(w.host.RouteDel(first))
	w.eventually(func() bool { return w.held.Load() > 0 }, func() string { return "nothing is reported" })
	for n := range 20_000 {
		r := *first
		r.Dst = network(fmt.Sprintf("2001:db8:4:%x::/64", n))
		w.must(w.host.RouteAdd(&r))
	}
	w.hold.Store(nil)
	before := w.changes.Load()
	close(gate) // none of these routes' events is one to report
	w.changed(before + 1)
}
