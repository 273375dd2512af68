package gobgp

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"

	"github.com/gaggle-cni/gaggle/bgp"
)

// stateNames are those of RFC 4271 section 8.2.2.
var stateNames = map[api.PeerState_SessionState]string{
	api.PeerState_SESSION_STATE_IDLE:        "Idle",
	api.PeerState_SESSION_STATE_CONNECT:     "Connect",
	api.PeerState_SESSION_STATE_ACTIVE:      "Active",
	api.PeerState_SESSION_STATE_OPENSENT:    "OpenSent",
	api.PeerState_SESSION_STATE_OPENCONFIRM: "OpenConfirm",
	api.PeerState_SESSION_STATE_ESTABLISHED: bgp.Established,
}

// States returns what every session does now.
func (s *Server) States(ctx context.Context) (map[bgp.PeerID]bgp.PeerState, error) {
	accepted, err := s.accepted()
	if err != nil {
		return nil, err
	}
	out := make(map[bgp.PeerID]bgp.PeerState)
	err = s.engine.ListPeer(ctx, &api.ListPeerRequest{EnableAdvertised: true}, func(p *api.Peer) {
		if id, ok := peerID(p); ok {
			st := peerState(p)
			if st.Established() {
				st.Accepted = accepted[id.Addr]
			} else if st.LastError == "" {
				st.LastError = s.reason(id.Addr)
			}
			out[id] = st
		}
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// accepted counts the prefixes that the import rules let into the table, by peer. The engine's own count of that name does
// not take the global policy into account.
func (s *Server) accepted() (map[netip.Addr]uint64, error) {
	out := make(map[netip.Addr]uint64)
	err := s.table(func(_ netip.Prefix, paths []*apiutil.Path) {
		for _, p := range paths {
			out[p.PeerAddress]++
		}
	})
	return out, err
}

func peerState(p *api.Peer) bgp.PeerState {
	state, timers := p.GetState(), p.GetTimers().GetState()
	st := bgp.PeerState{
		State: stateNames[state.GetSessionState()], ASN: state.GetPeerAsn(), Flaps: uint64(state.GetFlops()),
	}
	if st.State == bgp.Established {
		st.RouterID = state.GetRouterId()
		st.LocalAddress = p.GetTransport().GetLocalAddress()
		st.HoldTime = (time.Duration(timers.GetNegotiatedHoldTime()) * time.Second).String()
		if up := timers.GetUptime(); up.IsValid() {
			st.Since = up.AsTime()
		}
		st.GracefulRestart = helps(state.GetRemoteCap())
		st.Families = families(state.GetRemoteCap())
		for _, f := range p.GetAfiSafis() {
			st.Received += f.GetState().GetReceived()
			st.Advertised += f.GetState().GetAdvertised()
		}
		return st
	}
	if down := timers.GetDowntime(); down.IsValid() && down.AsTime().Unix() > 0 {
		st.Since = down.AsTime()
	}
	if state.GetAdminState() == api.PeerState_ADMIN_STATE_PFX_CT {
		st.LastError = "the peer sent more prefixes than import.maxPrefixes"
	}
	return st
}

// helps reports whether the peer keeps our routes over a restart: it sent the capability. The families it lists are those
// whose forwarding it preserves itself (RFC 4724 section 3), and a peer that only helps lists none.
func helps(caps []*api.Capability) bool {
	return slices.ContainsFunc(caps, func(c *api.Capability) bool { return c.GetGracefulRestart() != nil })
}

// families are those that the peer takes (RFC 4760 section 8). One that does not say so takes IPv4. What this side does not take
// is no part of the session either.
func families(caps []*api.Capability) (f bgp.Families) {
	said := false
	for _, c := range caps {
		mp := c.GetMultiProtocol()
		if mp == nil {
			continue
		}
		said = true
		switch afi := mp.GetFamily().GetAfi(); {
		case mp.GetFamily().GetSafi() != api.Family_SAFI_UNICAST:
		case afi == api.Family_AFI_IP:
			f |= bgp.IPv4
		case afi == api.Family_AFI_IP6:
			f |= bgp.IPv6
		}
	}
	if !said {
		return bgp.IPv4
	}
	return f
}

// noteReason keeps why a session ended, in the words of the engine: "notification-received code 6(cease) subcode …".
func (s *Server) noteReason(state apiutil.PeerState) {
	switch state.DisconnectReason {
	case api.PeerState_DISCONNECT_REASON_UNSPECIFIED, api.PeerState_DISCONNECT_REASON_IDLE_TIMER_EXPIRED:
		return // no end: the session begins, or begins to begin
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reasons[state.NeighborAddress] = state.DisconnectMessage
}

func (s *Server) reason(a netip.Addr) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reasons[a]
}

func (s *Server) forgetReason(a netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reasons, a)
}
