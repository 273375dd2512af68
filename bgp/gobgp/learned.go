package gobgp

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/gaggle-cni/gaggle/bgp"
)

// Learned returns the peers' best routes that their import rules accept, ordered by prefix. A prefix that is announced from
// here is not among them. It reads the table rather than adding up events, which with several equal paths are differences.
func (s *Server) Learned(context.Context) ([]bgp.LearnedRoute, error) {
	imports := false
	for _, p := range s.peers.copy() {
		imports = imports || p.Import.Any()
	}
	if !imports {
		return nil, nil
	}
	var out []bgp.LearnedRoute
	err := s.table(func(p netip.Prefix, paths []*apiutil.Path) {
		if hops := bestHops(paths); len(hops) > 0 {
			out = append(out, bgp.LearnedRoute{Prefix: p, NextHops: bgp.MakeHops(hops)})
		}
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b bgp.LearnedRoute) int {
		return cmp.Or(a.Prefix.Compare(b.Prefix), cmp.Compare(a.NextHops, b.NextHops))
	})
	return out, nil
}

// table goes through what is in the table, announced and learned, of both families.
func (s *Server) table(each func(netip.Prefix, []*apiutil.Path)) error {
	for _, family := range []gobgp.Family{gobgp.RF_IPv4_UC, gobgp.RF_IPv6_UC} {
		err := s.engine.ListPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: family},
			func(nlri gobgp.NLRI, paths []*apiutil.Path) {
				if n, ok := nlri.(*gobgp.IPAddrPrefix); ok {
					each(n.Prefix, paths)
				}
			})
		if err != nil {
			return err
		}
	}
	return nil
}

// bestHops returns the next hops of the best paths; none when the best is our own.
func bestHops(paths []*apiutil.Path) (hops []netip.Addr) {
	for _, path := range paths {
		if !path.Best {
			continue
		}
		if !path.PeerAddress.IsValid() {
			return nil
		}
		if hop, ok := hopOf(path); ok {
			hops = append(hops, hop)
		}
	}
	return hops
}

// hopOf returns a path's next hop. A link-local one is on the link of the session it came by.
func hopOf(path *apiutil.Path) (netip.Addr, bool) {
	for _, attr := range path.Attrs {
		var hop netip.Addr
		switch a := attr.(type) {
		case *gobgp.PathAttributeNextHop:
			hop = a.Value
		case *gobgp.PathAttributeMpReachNLRI:
			hop = a.Nexthop
		default:
			continue
		}
		if hop.IsUnspecified() {
			hop = path.PeerAddress
		}
		if hop.Is6() && hop.IsLinkLocalUnicast() && hop.Zone() == "" {
			hop = hop.WithZone(path.PeerAddress.Zone())
		}
		return hop.Unmap(), hop.IsValid()
	}
	return netip.Addr{}, false
}
