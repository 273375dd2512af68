package gobgp

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/gaggle-cni/gaggle/bgp"
)

// Announcements are the local paths, a node.Target.
type Announcements struct {
	s *Server

	mu   sync.Mutex
	have map[netip.Prefix]bgp.Announcement // what was put; the table holds only its translation
}

// List returns what was put and is still in the table.
func (a *Announcements) List(context.Context) (map[netip.Prefix]bgp.Announcement, error) {
	a.mu.Lock()
	have := maps.Clone(a.have)
	a.mu.Unlock()
	out := make(map[netip.Prefix]bgp.Announcement)
	err := a.s.table(func(p netip.Prefix, paths []*apiutil.Path) {
		for _, path := range paths {
			if !path.PeerAddress.IsValid() {
				out[p] = have[p] // the zero Announcement, which is never wanted, for what nobody put
			}
		}
	})
	return out, err
}

// Put announces a prefix, or changes how it is announced.
func (a *Announcements) Put(_ context.Context, p netip.Prefix, v bgp.Announcement) error {
	path, err := newPath(p, v)
	if err != nil {
		return err
	}
	responses, err := a.s.engine.AddPath(apiutil.AddPathRequest{Paths: []*apiutil.Path{path}})
	if err != nil {
		return err
	}
	for _, r := range responses {
		if r.Error != nil {
			return r.Error
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.have[p] = v
	return nil
}

// Delete withdraws a prefix.
func (a *Announcements) Delete(_ context.Context, p netip.Prefix) error {
	path, err := newPath(p, bgp.Announcement{})
	if err != nil {
		return err
	}
	path.Withdrawal = true
	if err := a.s.engine.DeletePath(apiutil.DeletePathRequest{Paths: []*apiutil.Path{path}}); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.have, p)
	return nil
}

// path translates an announcement. Its next hop is unspecified: the export policy gives each peer the right one.
func newPath(p netip.Prefix, v bgp.Announcement) (*apiutil.Path, error) {
	nlri, err := gobgp.NewIPAddrPrefix(p)
	if err != nil {
		return nil, fmt.Errorf("encode prefix: %w", err)
	}
	path := &apiutil.Path{
		Family: gobgp.RF_IPv6_UC, Nlri: nlri, Age: time.Now().Unix(),
		Attrs: []gobgp.PathAttributeInterface{gobgp.NewPathAttributeOrigin(gobgp.BGP_ORIGIN_ATTR_TYPE_IGP)},
	}
	var hop gobgp.PathAttributeInterface
	if p.Addr().Is4() {
		path.Family = gobgp.RF_IPv4_UC
		hop, err = gobgp.NewPathAttributeNextHop(netip.IPv4Unspecified())
	} else {
		hop, err = gobgp.NewPathAttributeMpReachNLRI(path.Family, []gobgp.PathNLRI{{NLRI: nlri}}, netip.IPv6Unspecified())
	}
	if err != nil {
		return nil, fmt.Errorf("encode next hop: %w", err)
	}
	path.Attrs = append(path.Attrs, hop)
	path.Attrs = append(path.Attrs, attributes(v.Attributes)...)
	return path, nil
}

func attributes(v bgp.Attributes) (attrs []gobgp.PathAttributeInterface) {
	if v.MED.Set {
		attrs = append(attrs, gobgp.NewPathAttributeMultiExitDisc(v.MED.Value))
	}
	if v.LocalPref > 0 {
		attrs = append(attrs, gobgp.NewPathAttributeLocalPref(v.LocalPref))
	}
	if values := v.Communities.Values(); len(values) > 0 {
		attrs = append(attrs, gobgp.NewPathAttributeCommunities(values))
	}
	var large []*gobgp.LargeCommunity
	for _, c := range v.LargeCommunities.Values() {
		large = append(large, &gobgp.LargeCommunity{ASN: c[0], LocalData1: c[1], LocalData2: c[2]})
	}
	if v.Prepend > 0 {
		large = append(large, &gobgp.LargeCommunity{LocalData2: uint32(v.Prepend)}) // see prependMark
	}
	if len(large) > 0 {
		attrs = append(attrs, gobgp.NewPathAttributeLargeCommunities(large))
	}
	return attrs
}
