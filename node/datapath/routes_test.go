package datapath_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/node"
	"github.com/gaggle-cni/gaggle/node/datapath"
)

type routes = map[netip.Prefix]node.Route

var (
	own6, own4 = netip.MustParseAddr("2001:db8::10"), netip.MustParseAddr("192.0.2.10")
	aggregate  = node.Route{Kind: node.RouteAggregate}
)

// learned is a route that is learned from the given next hops.
func learned(source netip.Addr, hops ...string) node.Route {
	var addrs []netip.Addr
	for _, h := range hops {
		addrs = append(addrs, netip.MustParseAddr(h))
	}
	return node.Route{Kind: node.RouteLearned, Source: source, Hops: bgp.MakeHops(addrs)}
}

func hostRoute(link string) node.Route { return node.Route{Kind: node.RouteHost, Link: link} }

// What is put is listed, and one value after the other takes the place; each is put twice.
func TestRoutesPutWhatTheyList(t *testing.T) {
	pod1, pod2 := attachment(1, pod6, pod4), attachment(2, pod6.Next(), pod4.Next())
	shared := func(first netip.Addr) []node.Route { // one address of several pods
		one, two := node.Via{Addr: first, Link: pod1.HostIf}, node.Via{Addr: first.Next(), Link: pod2.HostIf}
		anycast := func(vias ...node.Via) node.Route {
			return node.Route{Kind: node.RouteAnycast, Vias: node.MakeVias(vias)}
		}
		return []node.Route{anycast(one), anycast(two, one), anycast(two), hostRoute(pod1.HostIf), anycast(one, two), aggregate, anycast(one)}
	}
	own := []node.Route{
		hostRoute(pod1.HostIf), hostRoute(pod2.HostIf), aggregate, hostRoute(pod1.HostIf), aggregate,
	}
	for _, tt := range []struct {
		prefix string
		values []node.Route
	}{
		{"2001:db8:1::1/128", own},
		{"10.1.0.1/32", own},
		{"2001:db8:f::7/128", shared(pod6)},
		{"203.0.113.7/32", shared(pod4)},
		{"2001:db8:1::/64", own},
		{"10.1.0.0/24", own},
		{"2001:db8:f::/48", []node.Route{
			learned(own6, "2001:db8::1"), learned(netip.Addr{}, "2001:db8::1"),
			learned(own6, "2001:db8::1", "2001:db8::2"), learned(own6, "2001:db8::2", "2001:db8::3", "2001:db8::4"),
			learned(own6, "fe80::1%up0", "2001:db8::2"), learned(own6, "fe80::1%up0"), learned(own6, "fe80::1%up0", "fe80::2%up0"),
			learned(own6, "2001:db8::4"),
		}},
		{"198.51.100.0/24", []node.Route{
			learned(own4, "192.0.2.1"), learned(netip.Addr{}, "192.0.2.1"),
			learned(own4, "192.0.2.1", "192.0.2.2"), learned(own4, "192.0.2.2", "192.0.2.3", "192.0.2.4"),
			learned(own4, "fe80::1%up0"), learned(own4, "fe80::1%up0", "fe80::2%up0"), // RFC 8950
			learned(own4, "192.0.2.4"),
		}},
		{"::/0", []node.Route{learned(own6, "fe80::1%up0"), learned(own6, "fe80::1%up0", "fe80::2%up0")}},
		{"0.0.0.0/0", []node.Route{learned(own4, "192.0.2.2"), learned(own4, "192.0.2.1", "192.0.2.2")}},
	} {
		t.Run(tt.prefix, func(t *testing.T) {
			w := newWorld(t)
			w.uplink()
			w.attach(pod1)
			w.attach(pod2)
			target := w.d.Routes()
			if tt.values[0].Kind == node.RouteLearned {
				target = w.d.Learned()
			}
			before, p := w.visible(w.ns), netip.MustParsePrefix(tt.prefix)
			for _, v := range tt.values {
				for range 2 {
					w.must(target.Put(t.Context(), p, v))
					w.lists(target, routes{p: v})
				}
			}
			for range 2 { // absent is no error
				w.must(target.Delete(t.Context(), p))
				w.lists(target, routes{})
			}
			w.compare("node", before, w.visible(w.ns))
		})
	}
}

func (w *world) lists(target *datapath.Routes, want routes) {
	w.Helper()
	got, err := target.List(w.Context())
	w.must(err)
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		w.Errorf("List() (-want +got):\n%s", diff)
	}
}

// Everything that is not ours is neither listed nor touched: B-059, B-060. The two targets do not see each other. C51, I04.
func TestRoutesLeaveOthersAlone(t *testing.T) {
	w := newWorld(t)
	w.uplink()
	mine, theirs := netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("198.51.100.0/24")
	w.must(w.host.RouteAdd(&netlink.Route{Dst: network("203.0.113.0/24"), Gw: rtr4.AsSlice(), Protocol: unix.RTPROT_BIRD}))
	for _, protocol := range []netlink.RouteProtocol{datapath.Protocol, datapath.ProtocolLearned} {
		w.must(w.host.RouteAdd(&netlink.Route{Dst: network("203.0.113.0/24"), Gw: rtr4.AsSlice(), Protocol: protocol, Table: 100 + int(protocol)}))
	}
	before := w.visible(w.ns)
	w.lists(w.d.Routes(), routes{})
	w.lists(w.d.Learned(), routes{})

	w.must(w.d.Routes().Put(t.Context(), mine, aggregate))
	w.must(w.d.Learned().Put(t.Context(), theirs, learned(own4, "192.0.2.1")))
	w.lists(w.d.Routes(), routes{mine: aggregate})
	w.lists(w.d.Learned(), routes{theirs: learned(own4, "192.0.2.1")})

	for _, p := range []string{"10.1.0.0/24", "198.51.100.0/24", "203.0.113.0/24", "0.0.0.0/0", "::/0", "192.0.2.0/24", "fe80::/64"} {
		w.must(w.d.Routes().Delete(t.Context(), netip.MustParsePrefix(p)))
		w.must(w.d.Learned().Delete(t.Context(), netip.MustParsePrefix(p)))
	}
	w.compare("node", before, w.visible(w.ns))
}

// A place that is taken by somebody else is not taken over.
func TestPutRefusesAForeignRoutesPlace(t *testing.T) {
	for _, tt := range []struct {
		prefix, gateway string
		protocol        netlink.RouteProtocol
		metric          int
		value           node.Route
	}{
		{"10.1.0.0/24", "192.0.2.1", unix.RTPROT_STATIC, 0, aggregate},
		{"2001:db8:1::/64", "2001:db8::1", unix.RTPROT_STATIC, 1024, aggregate},
		{"198.51.100.0/24", "192.0.2.1", unix.RTPROT_STATIC, 200, learned(own4, "192.0.2.2")},
		{"2001:db8:f::/48", "2001:db8::1", unix.RTPROT_STATIC, 200, learned(own6, "2001:db8::2")},
		{"0.0.0.0/0", "192.0.2.1", unix.RTPROT_DHCP, 200, learned(own4, "192.0.2.2")},
		{"::/0", "2001:db8::1", unix.RTPROT_RA, 200, learned(own6, "2001:db8::2")},
	} {
		t.Run(tt.prefix, func(t *testing.T) {
			w := newWorld(t)
			w.uplink()
			gw := netip.MustParseAddr(tt.gateway)
			w.must(w.host.RouteAdd(&netlink.Route{Dst: network(tt.prefix), Gw: gw.AsSlice(), Protocol: tt.protocol, Priority: tt.metric}))
			target, p := w.d.Routes(), netip.MustParsePrefix(tt.prefix)
			if tt.value.Kind == node.RouteLearned {
				target = w.d.Learned()
			}
			before := w.visible(w.ns)
			if err := target.Put(t.Context(), p, tt.value); err == nil {
				t.Error("Put() = nil, want that somebody else has the place")
			}
			w.must(target.Delete(t.Context(), p))
			w.compare("node", before, w.visible(w.ns))
		})
	}
}

// A learned default route and the operator's own live side by side, and the own one stays when the learned one goes: B-060.
func TestLearnedDefaultRouteBesideTheOwnOne(t *testing.T) {
	w := newWorld(t)
	w.uplink()
	before := w.visible(w.ns)
	for p, v := range map[string]node.Route{"0.0.0.0/0": learned(own4, "192.0.2.2"), "::/0": learned(own6, "2001:db8::2")} {
		w.must(w.d.Learned().Put(t.Context(), netip.MustParsePrefix(p), v))
	}
	w.compare("what was there", before, intersect(before, w.visible(w.ns)))
	for _, p := range []string{"0.0.0.0/0", "::/0"} {
		w.must(w.d.Learned().Delete(t.Context(), netip.MustParsePrefix(p)))
	}
	w.compare("node", before, w.visible(w.ns))
}

// A route with our number that we would not have made so is seen as different, and goes when a right one is put. Both are
// there for a moment, as the kernel tells routes of different metrics apart.
func TestRoutesRepairTheirOwn(t *testing.T) {
	for prefix, gw := range map[string]netip.Addr{"198.51.100.0/24": rtr4, "2001:db8:f::/48": rtr6} {
		t.Run(prefix, func(t *testing.T) {
			w := newWorld(t)
			w.uplink()
			before, p, ctx := w.visible(w.ns), netip.MustParsePrefix(prefix), t.Context()
			w.must(w.host.RouteAdd(&netlink.Route{Dst: network(prefix), Gw: gw.AsSlice(), Protocol: datapath.ProtocolLearned, Priority: 7}))
			w.lists(w.d.Learned(), routes{p: {}})
			want := routes{p: learned(netip.Addr{}, gw.String())}
			w.must(reconcile(ctx, w.d.Learned(), want))
			w.must(reconcile(ctx, w.d.Learned(), want))
			w.lists(w.d.Learned(), want)
			if there := only(w.visible(w.ns), "route table 254 unicast "+prefix); len(there) != 1 {
				t.Errorf("routes to %s: %q, want one", prefix, there)
			}
			w.must(reconcile(ctx, w.d.Learned(), routes{}))
			w.compare("node", before, w.visible(w.ns))
		})
	}
}

// reconcile is a pass that trusts nothing.
func reconcile(ctx context.Context, target *datapath.Routes, want routes) error {
	s := node.NewSyncer("route", target)
	return errors.Join(s.Ensure(ctx, want).Err(), s.Prune(ctx, want).Err())
}

func TestPutRefusesWhatIsNoRoute(t *testing.T) {
	w := newWorld(t)
	w.uplink()
	before := w.visible(w.ns)
	for name, v := range map[string]node.Route{
		"no kind": {}, "no such link": hostRoute("absent"), "no next hop": learned(own4),
		"no such zone": learned(own4, "fe80::1%absent"), "a next hop nobody knows": learned(own4, "198.51.100.1"),
	} {
		if err := w.d.Learned().Put(t.Context(), netip.MustParsePrefix("203.0.113.0/24"), v); err == nil {
			t.Errorf("%s: Put() = nil, want an error", name)
		}
	}
	w.compare("node", before, w.visible(w.ns))
}

// What no pod has does not leave the node, and what a pod has gets there.
func TestAggregateIsUnreachable(t *testing.T) {
	w := newWorld(t)
	w.uplink() // with a default route
	a := attachment(1, pod6, pod4)
	w.attach(a)
	for _, p := range []string{"2001:db8:1::/64", "10.1.0.0/24"} {
		w.must(w.d.Routes().Put(t.Context(), netip.MustParsePrefix(p), aggregate))
	}
	w.routeTo(a)
	for _, addr := range a.Addrs {
		w.reaches(w.ns, addr)
		if _, err := w.host.RouteGet(addr.Next().AsSlice()); !errors.Is(err, unix.EHOSTUNREACH) {
			t.Errorf("way to %s: %v, want %v", addr.Next(), err, unix.EHOSTUNREACH)
		}
	}
}

// intersect keeps the lines of got that are in want.
func intersect(want, got []string) (out []string) {
	wanted := make(map[string]bool)
	for _, line := range want {
		wanted[line] = true
	}
	for _, line := range got {
		if wanted[line] {
			out = append(out, line)
		}
	}
	return out
}
