package datapath_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/node"
)

// What leaves the node from a masqueraded prefix has the node's address, but not towards the exceptions nor from pod to pod; a
// prefix beside it keeps its own. A connection that goes on keeps its translation when the table is made anew.
func TestMasquerade(t *testing.T) {
	w := newCheckedWorld(t)
	w.settle()
	second6, second4 := netip.MustParseAddr("2001:db8::2"), netip.MustParseAddr("192.0.2.2")
	w.address(w.router, "node", second6.String()+"/64", second4.String()+"/24")
	masquerade := w.d.Masquerade()
	syncer := node.NewSyncer("masquerade", masquerade)
	want := map[netip.Prefix]bgp.Prefixes{
		netip.MustParsePrefix("10.1.0.0/31"):      bgp.MakePrefixes([]netip.Prefix{host(second4)}),
		netip.MustParsePrefix("2001:db8:1::/127"): bgp.MakePrefixes([]netip.Prefix{host(second6), netip.MustParsePrefix("2001:db8:77::/48")}),
	}
	settle := func() {
		t.Helper()
		syncer.Doubt()
		w.must(syncer.Ensure(t.Context(), want).Err())
		w.must(syncer.Prune(t.Context(), want).Err())
	}
	seen := func(from, to, as netip.Addr) {
		t.Helper()
		ns, pod := w.router, w.pod
		switch to {
		case next6, next4:
			ns = w.other
		}
		if from == next6 || from == next4 {
			pod = w.other
		}
		at, next := w.hears(ns, to)
		w.says(pod, "hello", from, at)
		if got := next(); got != "hello from "+as.String() {
			t.Errorf("%s hears %q of %s, want it from %s", to, got, from, as)
		}
	}
	settle()
	for range 2 {
		seen(pod6, rtr6, own6)
		seen(pod4, rtr4, own4)
		seen(pod6, second6, pod6)
		seen(pod4, second4, pod4)
		seen(pod6, next6, pod6)
		seen(pod4, next4, pod4)
		seen(next6, rtr6, next6) // it is of no masqueraded prefix
		seen(next4, rtr4, next4)
		w.nft("flush", "ruleset")
		w.settle()
		settle()
	}
	whole := w.nft("--stateless", "list", "ruleset")
	for _, damage := range []string{
		"flush chain inet gaggle-masquerade postrouting",
		"insert rule inet gaggle-masquerade postrouting accept",
		"add rule inet gaggle-masquerade postrouting accept comment \"masquerade 10.9.0.0/24\"",
		"delete table inet gaggle-masquerade",
	} {
		w.nft(damage)
		settle()
		if diff := cmp.Diff(whole, w.nft("--stateless", "list", "ruleset")); diff != "" {
			t.Errorf("after %q (-want +got):\n%s", damage, diff)
		}
	}
	clear(want)
	w.nft("flush chain inet gaggle-masquerade postrouting")
	settle()
	seen(pod4, rtr4, pod4)
	w.want = nil
	w.settle()
	if got := w.nft("list", "ruleset"); got != "" {
		t.Errorf("without any the rule set is\n%s", got)
	}
}
