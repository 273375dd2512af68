package gobgp

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/osrg/gobgp/v4/api"

	"github.com/gaggle-cni/gaggle/bgp"
)

func communities(t *testing.T, texts ...string) bgp.Communities {
	t.Helper()
	c, err := bgp.ParseCommunities(texts)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func large(t *testing.T, texts ...string) bgp.LargeCommunities {
	t.Helper()
	c, err := bgp.ParseLargeCommunities(texts)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// What the router hears of each attribute, and that a change of any is heard without a new session.
func TestAttributes(t *testing.T) {
	s := start(t)
	s.put(tor4, peer())
	s.put(alt4, peer(func(p *bgp.Peer) { p.ASN = ourASN }))
	external := startRouter(t, tor4, our4)
	internal := startRouter(t, alt4, our4, func(p *api.Peer) { p.Conf.LocalAsn = ourASN })
	for _, tt := range []struct {
		name               string
		attrs              bgp.Attributes
		external, internal string
	}{
		{"none", bgp.Attributes{}, "as 64512, via 192.0.2.1", "as , via 192.0.2.1, LocalPref: 100"},
		{"MED", bgp.Attributes{MED: bgp.MED{Value: 50, Set: true}}, "as 64512, via 192.0.2.1, Med: 50", "as , via 192.0.2.1, Med: 50, LocalPref: 100"},
		{"MED of zero", bgp.Attributes{MED: bgp.MED{Set: true}}, "as 64512, via 192.0.2.1, Med: 0", "as , via 192.0.2.1, Med: 0, LocalPref: 100"},
		{"local preference", bgp.Attributes{LocalPref: 200}, "as 64512, via 192.0.2.1", "as , via 192.0.2.1, LocalPref: 200"},
		{ // the router's name for graceful-shutdown is that of the draft which became RFC 8326
			"communities",
			bgp.Attributes{Communities: communities(t, "64512:100", "graceful-shutdown")},
			"as 64512, via 192.0.2.1, Communities: 64512:100, planned-shut",
			"as , via 192.0.2.1, LocalPref: 100, Communities: 64512:100, planned-shut",
		},
		{
			"large communities",
			bgp.Attributes{LargeCommunities: large(t, "4200000001:1:2")},
			"as 64512, via 192.0.2.1, LargeCommunity: [ 4200000001:1:2]", "as , via 192.0.2.1, LocalPref: 100, LargeCommunity: [ 4200000001:1:2]",
		},
		{"prepending", bgp.Attributes{Prepend: 2}, "as 64512 64512 64512, via 192.0.2.1", "as , via 192.0.2.1, LocalPref: 100"},
		{
			"prepending and a large community",
			bgp.Attributes{Prepend: bgp.MaxPrepend, LargeCommunities: large(t, "64512:1:2")},
			"as 64512" + strings.Repeat(" 64512", bgp.MaxPrepend) + ", via 192.0.2.1, LargeCommunity: [ 64512:1:2]",
			"as , via 192.0.2.1, LocalPref: 100, LargeCommunity: [ 64512:1:2]",
		},
		{"none again", bgp.Attributes{}, "as 64512, via 192.0.2.1", "as , via 192.0.2.1, LocalPref: 100"},
	} {
		s.announce(pool4, tt.attrs)
		external.knows(map[string]string{pool4.String(): tt.external})
		internal.knows(map[string]string{pool4.String(): tt.internal})
		if t.Failed() {
			t.Fatalf("with %s", tt.name)
		}
	}
	s.withdraw(pool4)
	external.knows(map[string]string{})
	internal.knows(map[string]string{})
	for _, r := range []*router{external, internal} {
		if n := r.downs.Load(); n != 0 {
			t.Errorf("%d sessions ended, want none", n)
		}
	}
}

// K10: each family has a next hop of its own, over a session of either; what cannot be reached is not announced.
func TestNextHops(t *testing.T) {
	for _, tt := range []struct {
		name     string
		us, them netip.Addr
		hops     bgp.NextHops
		families bgp.Families
		want     map[string]string
	}{
		{
			"over IPv4", our4, tor4, bothHops, bgp.IPv4 | bgp.IPv6,
			map[string]string{pool4.String(): "as 64512, via 192.0.2.1", pool6.String(): "as 64512, via 2001:db8::1"},
		},
		{
			"over IPv6", our6, tor6, bothHops, bgp.IPv4 | bgp.IPv6,
			map[string]string{pool4.String(): "as 64512, via 192.0.2.1", pool6.String(): "as 64512, via 2001:db8::1"},
		},
		{"no IPv6 on the node", our4, tor4, bgp.NextHops{IPv4: our4}, bgp.IPv4 | bgp.IPv6, map[string]string{pool4.String(): "as 64512, via 192.0.2.1"}},
		{"no IPv4 on the node", our6, tor6, bgp.NextHops{IPv6: our6}, bgp.IPv4 | bgp.IPv6, map[string]string{pool6.String(): "as 64512, via 2001:db8::1"}},
		{"IPv6 only", our4, tor4, bothHops, bgp.IPv6, map[string]string{pool6.String(): "as 64512, via 2001:db8::1"}},
		{"another address", our4, tor4, bgp.NextHops{IPv4: addr("192.0.2.77"), IPv6: our6}, bgp.IPv4, map[string]string{pool4.String(): "as 64512, via 192.0.2.77"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := start(t)
			s.announce(pool4, bgp.Attributes{})
			s.announce(pool6, bgp.Attributes{})
			s.put(tt.them, peer(func(p *bgp.Peer) { p.NextHops, p.Families = tt.hops, tt.families }))
			startRouter(t, tt.them, tt.us).knows(tt.want)
		})
	}
}

// K17: whatever is in the table, only what is permitted leaves, and it leaves when it is permitted.
func TestOnlyWhatIsPermittedLeaves(t *testing.T) {
	s := start(t)
	s.put(tor4, peer())
	r := startRouter(t, tor4, our4)
	foreign, covering, within := prefix("203.0.113.0/24"), prefix("10.1.0.0/16"), prefix("10.1.0.7/32")
	s.announce(foreign, bgp.Attributes{})
	s.announce(covering, bgp.Attributes{})
	s.announce(within, bgp.Attributes{})
	s.announce(pool4, bgp.Attributes{}) // the last: when it has arrived, so would have the others
	one := "as 64512, via 192.0.2.1"
	r.knows(map[string]string{within.String(): one, pool4.String(): one})

	s.must(s.Permit(t.Context(), []netip.Prefix{pool4, foreign}))
	r.knows(map[string]string{within.String(): one, pool4.String(): one, foreign.String(): one})
	s.must(s.Permit(t.Context(), []netip.Prefix{pool6}))
	r.knows(map[string]string{})
	if n := r.downs.Load(); n != 0 {
		t.Errorf("%d sessions ended, want none", n)
	}
}

// A node is no transit: what one router says another does not hear, although it is imported and lies in what may be
// announced.
func TestNothingLearnedIsPassedOn(t *testing.T) {
	s := start(t)
	anycast := prefix("203.0.113.0/24")
	s.must(s.Permit(t.Context(), []netip.Prefix{pool4, anycast}))
	all := imports(bgp.Import{DefaultRoute: true, Prefixes: bgp.MakePrefixes([]netip.Prefix{anycast})})
	s.put(tor4, peer(all))
	s.put(alt4, peer(all, func(p *bgp.Peer) { p.ASN = ourASN }))
	external := startRouter(t, tor4, our4)
	internal := startRouter(t, alt4, our4, func(p *api.Peer) { p.Conf.LocalAsn = ourASN })
	s.established(alt4)
	external.announce(anycast, tor4)
	external.announce(prefix("0.0.0.0/0"), tor4)
	s.learns(map[string]string{anycast.String(): tor4.String(), "0.0.0.0/0": tor4.String()})
	s.announce(pool4, bgp.Attributes{})
	internal.knows(map[string]string{pool4.String(): "as , via 192.0.2.1, LocalPref: 100"})
	external.knows(map[string]string{pool4.String(): "as 64512, via 192.0.2.1"})
}

// K15: a prefix that others announce too is withdrawn all the same, and announced again.
func TestPrefixThatComesBackIsWithdrawn(t *testing.T) {
	s := start(t)
	anycast := prefix("203.0.113.1/32")
	s.must(s.Permit(t.Context(), []netip.Prefix{anycast}))
	s.put(tor4, peer())
	s.put(alt4, peer(imports(bgp.Import{Prefixes: bgp.MakePrefixes([]netip.Prefix{anycast})})))
	tor, alt := startRouter(t, tor4, our4), startRouter(t, alt4, our4)
	alt.announce(anycast, alt4)
	s.learns(map[string]string{anycast.String(): alt4.String()})
	ours := map[string]string{anycast.String(): "as 64512, via 192.0.2.1"}
	for range 3 {
		s.announce(anycast, bgp.Attributes{})
		tor.knows(ours)
		s.learns(map[string]string{}) // ours is better
		s.withdraw(anycast)
		tor.knows(map[string]string{})
		s.learns(map[string]string{anycast.String(): alt4.String()})
	}
}

// The list is what is really in the table: what somebody else put there is seen, and not taken for ours.
func TestListTellsWhatIsInTheTable(t *testing.T) {
	s := start(t)
	v := bgp.Announcement{Kind: bgp.KindPool, Attributes: bgp.Attributes{Prepend: 1}}
	s.must(s.Announcements().Put(t.Context(), pool6, v))
	foreign := prefix("2001:db8:f::/48")
	path, err := newPath(foreign, bgp.Announcement{})
	s.must(err)
	_, err = s.engine.AddPath(addPath(path))
	s.must(err)
	got, err := s.Announcements().List(t.Context())
	s.must(err)
	want := map[netip.Prefix]bgp.Announcement{pool6: v, foreign: {}}
	if diff := cmp.Diff(want, got, comparePrefixes); diff != "" {
		t.Errorf("List() (-want +got):\n%s", diff)
	}
	s.withdraw(foreign)
	s.withdraw(pool6)
	s.withdraw(pool6) // absent is no error
	if got, err = s.Announcements().List(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("List() = %v, %v; want nothing", got, err)
	}
}
