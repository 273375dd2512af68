package gobgp

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/osrg/gobgp/v4/pkg/apiutil"

	"github.com/gaggle-cni/gaggle/bgp"
)

var comparePrefixes = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

func addPath(p *apiutil.Path) apiutil.AddPathRequest {
	return apiutil.AddPathRequest{Paths: []*apiutil.Path{p}}
}

// imports has a peer's routes accepted. It has no graceful restart: when such a peer leaves, the engine marks its paths as
// stale without regard to those who watch them, which the race detector minds.
func imports(rules bgp.Import) func(*bgp.Peer) {
	return func(p *bgp.Peer) { p.Import, p.GracefulRestart = rules, bgp.GracefulRestart{} }
}

// learns waits until the learned routes are as wanted: next hops by prefix.
func (s *speaker) learns(want map[string]string) {
	s.Helper()
	s.eventually(func() (bool, string) {
		routes, err := s.Learned(s.Context())
		s.must(err)
		got := make(map[string]string)
		for _, r := range routes {
			got[r.Prefix.String()] = string(r.NextHops)
		}
		diff := cmp.Diff(want, got)
		return diff == "", "learned (-want +got):\n" + diff
	})
}

// K14: nothing is learned that is not asked for, and everything that is, from all peers that offer it.
func TestLearned(t *testing.T) {
	s := start(t)
	dc := prefix("10.0.0.0/8")
	s.put(tor4, peer(imports(bgp.Import{})))
	s.put(alt4, peer(imports(bgp.Import{})))
	tor, alt := startRouter(t, tor4, our4), startRouter(t, alt4, our4)
	for _, p := range []string{"0.0.0.0/0", "10.20.0.0/16", "198.51.100.0/24"} {
		tor.announce(prefix(p), tor4)
		alt.announce(prefix(p), alt4)
	}
	tor.announce(prefix("::/0"), tor6)
	for _, id := range []netip.Addr{tor4, alt4} {
		s.eventually(func() (bool, string) {
			st := s.state(id)
			return st.Received >= 3 && st.Accepted == 0, fmt.Sprintf("%+v", st)
		})
	}
	s.learns(map[string]string{})

	// Import rules count for what was sent before, and the sessions stay.
	torUp, altUp := tor.uptime(), alt.uptime()
	s.put(tor4, peer(imports(bgp.Import{DefaultRoute: true})))
	s.learns(map[string]string{"0.0.0.0/0": "192.0.2.11", "::/0": "2001:db8::11"})
	if st := s.state(tor4); st.Received != 4 || st.Accepted != 2 {
		t.Errorf("received %d and accepted %d prefixes, want 4 and 2", st.Received, st.Accepted)
	}
	changes := s.changes.Load()
	s.put(alt4, peer(imports(bgp.Import{DefaultRoute: true, Prefixes: bgp.MakePrefixes([]netip.Prefix{dc})})))
	s.learns(map[string]string{"0.0.0.0/0": "192.0.2.11 192.0.2.12", "10.20.0.0/16": "192.0.2.12", "::/0": "2001:db8::11"})
	s.eventually(func() (bool, string) { return s.changes.Load() > changes, "Changed was not called for a learned route" })

	s.put(tor4, peer(imports(bgp.Import{})))
	s.learns(map[string]string{"0.0.0.0/0": "192.0.2.12", "10.20.0.0/16": "192.0.2.12"})
	if tor.uptime() != torUp || alt.uptime() != altUp {
		t.Error("a session was reset for a change of what is imported")
	}
	alt.leave()
	s.learns(map[string]string{})
}

// A router that sends more than was agreed is cut off, and the reason can be read.
func TestMaxPrefixes(t *testing.T) {
	s := start(t)
	s.put(tor4, peer(imports(bgp.Import{DefaultRoute: true, MaxPrefixes: 2})))
	r := startRouter(t, tor4, our4)
	s.established(tor4)
	for i := range 4 {
		r.announce(netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}), 32), tor4)
	}
	s.eventually(func() (bool, string) {
		st := s.state(tor4)
		return st.LastError == "the peer sent more prefixes than import.maxPrefixes", fmt.Sprintf("%+v", st)
	})
	s.eventually(func() (bool, string) { return r.downs.Load() > 0, "the router's session does not end" })
}
