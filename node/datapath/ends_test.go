package datapath_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/gaggle-cni/gaggle/integration/netnstest"
	"github.com/gaggle-cni/gaggle/node"
)

// E09, I02: what was changed on a host's end is seen, and put right without touching the rest. Watch tells of what it can hear
// of: the kernel says nothing of settings.
func TestEnds(t *testing.T) {
	whole := node.End{IPv4: true, IPv6: true, Up: true, Settings: true}
	for _, tt := range []struct {
		name  string
		spoil func(w *world, link netlink.Link)
		want  node.End
		heard bool
	}{
		{"nothing", func(*world, netlink.Link) {}, whole, false},
		{"IPv4 gateway", func(w *world, link netlink.Link) {
			w.must(w.host.AddrDel(link, &netlink.Addr{IPNet: network("169.254.1.1/32"), Scope: int(netlink.SCOPE_LINK)}))
		}, node.End{IPv6: true, Up: true, Settings: true}, true},
		{"IPv6 gateway", func(w *world, link netlink.Link) {
			w.must(w.host.AddrDel(link, &netlink.Addr{IPNet: network("fe80::1/64"), Scope: int(netlink.SCOPE_LINK)}))
		}, node.End{IPv4: true, Up: true, Settings: true}, true},
		{"down", func(w *world, link netlink.Link) { // the kernel takes the IPv6 address away with it
			w.must(w.host.LinkSetDown(link))
		}, node.End{IPv4: true, Settings: true}, true},
		{"forwarding", func(w *world, link netlink.Link) {
			netnstest.Sysctl(w.T, w.ns, "net/ipv4/conf/"+link.Attrs().Name+"/forwarding", "0")
		}, node.End{IPv4: true, IPv6: true, Up: true}, false},
		{"router advertisements", func(w *world, link netlink.Link) {
			netnstest.Sysctl(w.T, w.ns, "net/ipv6/conf/"+link.Attrs().Name+"/accept_ra", "2")
		}, node.End{IPv4: true, IPv6: true, Up: true}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			a, other := attachment(1, pod6, pod4), attachment(2, rtr6, rtr4)
			w.attach(a)
			w.attach(other)
			w.addVeth(w.ns, "foreign0", netnstest.New(t), "peer") // no end of ours
			before, settings := of(a.HostIf, w.describe(w.ns)), w.settings(w.ns)
			w.watch()
			link := w.link(w.ns, a.HostIf)
			changes := w.settled()
			tt.spoil(w, link)
			if tt.heard {
				w.eventually(func() bool { return w.changes.Load() > changes }, func() string { return "nobody is told" })
			}
			got, err := w.d.Ends().List(t.Context())
			w.must(err)
			want := map[node.LinkName]node.End{node.LinkName(a.HostIf): tt.want, node.LinkName(other.HostIf): whole}
			w.same("ends", want, got)

			for range 2 {
				w.must(w.d.Ends().Put(t.Context(), node.LinkName(a.HostIf), whole))
			}
			got, err = w.d.Ends().List(t.Context())
			w.must(err)
			want[node.LinkName(a.HostIf)] = whole
			w.same("ends put right", want, got)
			w.same("settings", settings, w.settings(w.ns))
			w.routeTo(a)
			w.reaches(w.ns, pod6)
			w.reaches(w.ns, pod4)
			w.must(w.d.Detach(t.Context(), a))
			if diff := cmp.Diff(0, len(of(a.HostIf, w.describe(w.ns)))); diff != "" || len(before) == 0 {
				t.Errorf("something is left (-want +got):\n%s", diff)
			}
		})
	}
}

// What is not ours is not put right. I04.
func TestEndsAreOursOnly(t *testing.T) {
	w := newWorld(t)
	w.addVeth(w.ns, "ggl000000000009", netnstest.New(t), "peer")
	before := w.describe(w.ns)
	for _, name := range []node.LinkName{"ggl000000000009", "none"} {
		if err := w.d.Ends().Put(t.Context(), name, node.End{IPv4: true, IPv6: true, Up: true, Settings: true}); err == nil {
			t.Errorf("Put(%s) succeeded", name)
		}
	}
	w.compare("node", before, w.describe(w.ns))
}
