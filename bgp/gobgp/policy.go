package gobgp

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v4/api"

	"github.com/gaggle-cni/gaggle/bgp"
)

// Names of policies and sets; the stock CLI shows them.
const (
	globalAssignment = "global"
	exportPolicy     = "export"
	importPolicy     = "import"
	ownSet           = "own"
)

// installPolicies puts the guards in place: export rejects everything, import all but our own paths.
func (s *Server) installPolicies(ctx context.Context) error {
	if err := s.setPolicies(ctx, nil); err != nil {
		return err
	}
	for _, a := range []struct {
		name      string
		direction api.PolicyDirection
	}{{exportPolicy, api.PolicyDirection_POLICY_DIRECTION_EXPORT}, {importPolicy, api.PolicyDirection_POLICY_DIRECTION_IMPORT}} {
		err := s.engine.AddPolicyAssignment(ctx, &api.AddPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
			Name: globalAssignment, Direction: a.direction, Policies: []*api.Policy{{Name: a.name}},
			DefaultAction: api.RouteAction_ROUTE_ACTION_REJECT,
		}})
		if err != nil {
			return fmt.Errorf("assign policy %s: %w", a.name, err)
		}
	}
	return nil
}

// Permit says which prefixes may be announced, with everything more specific. Nothing else leaves, whatever is in the
// table. Call it before the first announcement, and again when that changes.
func (s *Server) Permit(ctx context.Context, own []netip.Prefix) error {
	sorted := slices.SortedFunc(slices.Values(own), netip.Prefix.Compare)
	s.mu.Lock()
	same := slices.Equal(s.own, sorted)
	s.own = sorted
	s.mu.Unlock()
	if same {
		return nil
	}
	peers := s.peers.copy()
	if err := s.setPolicies(ctx, peers); err != nil {
		return err
	}
	for id := range peers {
		if err := s.softReset(ctx, id, api.ResetPeerRequest_DIRECTION_OUT); err != nil {
			return err
		}
	}
	return nil
}

// setPolicies replaces all policies in one step. They are global, as the engine has none per peer for ordinary peers: each
// peer's rules name it.
func (s *Server) setPolicies(ctx context.Context, peers map[bgp.PeerID]bgp.Peer) error {
	s.mu.Lock()
	own := s.own
	s.mu.Unlock()
	if err := s.engine.SetPolicies(ctx, policies(own, peers)); err != nil {
		return fmt.Errorf("set BGP policies: %w", err)
	}
	return nil
}

// softReset applies changed policies to the routes of a session that is up; it does not touch the session (RFC 2918).
func (s *Server) softReset(ctx context.Context, id bgp.PeerID, direction api.ResetPeerRequest_Direction) error {
	err := s.engine.ResetPeer(ctx, &api.ResetPeerRequest{Address: id.String(), Soft: true, Direction: direction})
	if err != nil {
		return fmt.Errorf("refresh the routes of peer %s: %w", id, err)
	}
	return nil
}

// policies writes the rules down. It is pure.
func policies(own []netip.Prefix, peers map[bgp.PeerID]bgp.Peer) *api.SetPoliciesRequest {
	b := &policyBuilder{}
	exports := &api.Policy{Name: exportPolicy}
	imports := &api.Policy{Name: importPolicy, Statements: []*api.Statement{{
		// Without it the default action would hit our own paths too.
		Name:       "import-own",
		Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
		Actions:    accept(),
	}}}
	ownSets := b.ownSets(own)
	for _, id := range slices.SortedFunc(maps.Keys(peers), bgp.PeerID.Compare) {
		peer := peers[id]
		neighbour := b.neighbour(id)
		for _, family := range []bgp.Families{bgp.IPv4, bgp.IPv6} {
			hop, ok := nextHop(id, peer.NextHops, family)
			if !ok || ownSets[family] == nil || !peer.Families.Has(family) {
				continue
			}
			actions := accept()
			if hop.IsValid() {
				actions.Nexthop = &api.NexthopAction{Address: hop.String()}
			}
			exports.Statements = append(exports.Statements, &api.Statement{
				Name:       fmt.Sprintf("export-%s-%s", id, family),
				Conditions: &api.Conditions{NeighborSet: neighbour, PrefixSet: ownSets[family], RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
				Actions:    actions,
			})
		}
		importSets := b.importSets(id, peer.Import)
		for _, family := range []bgp.Families{bgp.IPv4, bgp.IPv6} {
			set := importSets[family]
			if set == nil {
				continue
			}
			imports.Statements = append(imports.Statements, &api.Statement{
				Name:       fmt.Sprintf("import-%s-%s", id, family),
				Conditions: &api.Conditions{NeighborSet: neighbour, PrefixSet: set, RouteType: api.Conditions_ROUTE_TYPE_UNSPECIFIED},
				Actions:    accept(),
			})
		}
	}
	return &api.SetPoliciesRequest{DefinedSets: b.sets, Policies: []*api.Policy{exports, imports}}
}

// nextHop returns what a peer is told to send a family's traffic to. An invalid address means the session's own, which is
// right only for the session's family; ok is false when the peer must not be told at all.
func nextHop(id bgp.PeerID, hops bgp.NextHops, family bgp.Families) (hop netip.Addr, ok bool) {
	hop = hops.IPv6
	if family == bgp.IPv4 {
		hop = hops.IPv4
	}
	return hop, hop.IsValid() || bgp.FamilyOf(id.Addr) == family
}

func accept() *api.Actions { return &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT} }

// A policyBuilder collects the sets that statements refer to.
type policyBuilder struct{ sets []*api.DefinedSet }

func (b *policyBuilder) neighbour(id bgp.PeerID) *api.MatchSet {
	name := "peer-" + id.String()
	b.sets = append(b.sets, &api.DefinedSet{
		DefinedType: api.DefinedType_DEFINED_TYPE_NEIGHBOR, Name: name,
		List: []string{netip.PrefixFrom(id.Addr, id.Addr.BitLen()).String()},
	})
	return &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: name}
}

// prefixes makes a set; nil for no prefixes, which the engine refuses.
func (b *policyBuilder) prefixes(name string, list []*api.Prefix) *api.MatchSet {
	if len(list) == 0 {
		return nil
	}
	b.sets = append(b.sets, &api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_PREFIX, Name: name, Prefixes: list})
	return &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: name}
}

func (b *policyBuilder) ownSets(own []netip.Prefix) map[bgp.Families]*api.MatchSet {
	lists := make(map[bgp.Families][]*api.Prefix)
	for _, p := range own {
		f := bgp.FamilyOf(p.Addr())
		lists[f] = append(lists[f], andLonger(p))
	}
	return map[bgp.Families]*api.MatchSet{
		bgp.IPv4: b.prefixes(ownSet+"-IPv4", lists[bgp.IPv4]),
		bgp.IPv6: b.prefixes(ownSet+"-IPv6", lists[bgp.IPv6]),
	}
}

// importSets makes the sets of what may be learned from a peer: a set of the engine holds one family only.
func (b *policyBuilder) importSets(id bgp.PeerID, rules bgp.Import) map[bgp.Families]*api.MatchSet {
	lists := make(map[bgp.Families][]*api.Prefix)
	if rules.DefaultRoute {
		lists[bgp.IPv4] = append(lists[bgp.IPv4], &api.Prefix{IpPrefix: "0.0.0.0/0"})
		lists[bgp.IPv6] = append(lists[bgp.IPv6], &api.Prefix{IpPrefix: "::/0"})
	}
	for _, p := range rules.Prefixes.Values() {
		f := bgp.FamilyOf(p.Addr())
		lists[f] = append(lists[f], andLonger(p))
	}
	out := make(map[bgp.Families]*api.MatchSet)
	for f, list := range lists {
		out[f] = b.prefixes(fmt.Sprintf("import-%s-%s", id, f), list)
	}
	return out
}

func andLonger(p netip.Prefix) *api.Prefix {
	return &api.Prefix{IpPrefix: p.String(), MaskLengthMin: uint32(p.Bits()), MaskLengthMax: uint32(p.Addr().BitLen())}
}
