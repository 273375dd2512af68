package gobgp

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

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
	if err := s.setPolicies(ctx, nil, nil); err != nil {
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
	s.policies.Lock()
	defer s.policies.Unlock()
	sorted := slices.SortedFunc(slices.Values(own), netip.Prefix.Compare)
	if slices.Equal(s.permitted(), sorted) {
		return nil
	}
	peers := s.peers.copy()
	if err := s.setPolicies(ctx, sorted, peers); err != nil {
		return err
	}
	s.mu.Lock()
	s.own = sorted
	s.mu.Unlock()
	for id := range peers {
		if err := s.softReset(ctx, id, api.ResetPeerRequest_DIRECTION_OUT); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) permitted() []netip.Prefix {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.own
}

// setPolicies replaces all policies in one step. They are global, as the engine has none per peer for ordinary peers: each
// peer's rules name it.
func (s *Server) setPolicies(ctx context.Context, own []netip.Prefix, peers map[bgp.PeerID]bgp.Peer) error {
	if err := s.engine.SetPolicies(ctx, policies(s.o.ASN, own, peers)); err != nil {
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
func policies(asn uint32, own []netip.Prefix, peers map[bgp.PeerID]bgp.Peer) *api.SetPoliciesRequest {
	b := &policyBuilder{}
	exports := &api.Policy{Name: exportPolicy, Statements: b.prepends(asn, peers)}
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
			if ownSets[family] == nil || !peer.Carries(id, family) {
				continue
			}
			actions := accept()
			actions.LargeCommunity = &api.CommunityAction{Type: api.CommunityAction_TYPE_REMOVE, Communities: []string{prependMark(`\d+`)}}
			if hop := peer.NextHops.For(family); hop.IsValid() { // else the session's own address
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

func accept() *api.Actions { return &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT} }

// A policyBuilder collects the sets that statements refer to.
type policyBuilder struct{ sets []*api.DefinedSet }

func (b *policyBuilder) neighbour(id bgp.PeerID) *api.MatchSet {
	return b.set(api.DefinedType_DEFINED_TYPE_NEIGHBOR, "peer-"+id.String(), hostPrefix(id.Addr))
}

func (b *policyBuilder) set(kind api.DefinedType, name string, list ...string) *api.MatchSet {
	b.sets = append(b.sets, &api.DefinedSet{DefinedType: kind, Name: name, List: list})
	return &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: name}
}

// prepends lengthens the path towards other ASes by as much as the announcement's mark says. In the own AS every router would
// take a path with its number in it for a loop (RFC 4271 section 9.1.2).
func (b *policyBuilder) prepends(asn uint32, peers map[bgp.PeerID]bgp.Peer) (statements []*api.Statement) {
	var external []string
	for _, id := range slices.SortedFunc(maps.Keys(peers), bgp.PeerID.Compare) {
		if peers[id].ASN != asn {
			external = append(external, hostPrefix(id.Addr))
		}
	}
	if len(external) == 0 {
		return nil
	}
	neighbours := b.set(api.DefinedType_DEFINED_TYPE_NEIGHBOR, "external", external...)
	for n := uint32(1); n <= bgp.MaxPrepend; n++ {
		name := fmt.Sprintf("prepend-%d", n)
		statements = append(statements, &api.Statement{
			Name: name,
			Conditions: &api.Conditions{
				NeighborSet:       neighbours,
				LargeCommunitySet: b.set(api.DefinedType_DEFINED_TYPE_LARGE_COMMUNITY, name, prependMark(strconv.Itoa(int(n)))),
			},
			Actions: &api.Actions{AsPrepend: &api.AsPrependAction{Asn: asn, Repeat: n}},
		})
	}
	return statements
}

// prependMark matches the large community that says, inside this speaker only, how often to prepend. AS 0 is nobody's
// (RFC 7607).
func prependMark(n string) string { return "^0:0:" + n + "$" }

func hostPrefix(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

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
