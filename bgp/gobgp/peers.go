package gobgp

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"

	"github.com/gaggle-cni/gaggle/bgp"
)

// Timers that are not configured. The engine's own defaults are far too long: 120 s, 30 s and 360 s.
const (
	defaultConnectRetry = 2 * time.Second
	idleHoldAfterReset  = 2 * time.Second
	// deferral bounds how long, after a restart, a peer that does not come up keeps the others waiting for our routes
	// (RFC 4724 section 4.1, Selection_Deferral_Timer).
	deferral = 10 * time.Second
)

// Peers are the sessions, a node.Target.
type Peers struct {
	s *Server

	mu   sync.Mutex
	have map[bgp.PeerID]bgp.Peer // what was put; the engine does not tell all of it
}

func (p *Peers) copy() map[bgp.PeerID]bgp.Peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.have)
}

func (p *Peers) set(have map[bgp.PeerID]bgp.Peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.have = have
}

// List returns the sessions that the engine really has, as they were put.
func (p *Peers) List(ctx context.Context) (map[bgp.PeerID]bgp.Peer, error) {
	have := p.copy()
	out := make(map[bgp.PeerID]bgp.Peer)
	err := p.s.engine.ListPeer(ctx, &api.ListPeerRequest{}, func(peer *api.Peer) {
		if id, ok := peerID(peer); ok {
			out[id] = have[id] // the zero Peer, which is never wanted, for what nobody put
		}
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func peerID(peer *api.Peer) (bgp.PeerID, bool) {
	addr, err := netip.ParseAddr(peer.GetState().GetNeighborAddress())
	if err != nil {
		addr, err = netip.ParseAddr(peer.GetConf().GetNeighborAddress())
	}
	return bgp.PeerID{Addr: addr}, err == nil
}

// Put makes a session or changes it. The session stays up unless what changed was said in its OPEN message or belongs to
// its TCP connection; no other session is ever touched.
func (p *Peers) Put(ctx context.Context, id bgp.PeerID, v bgp.Peer) error {
	p.s.policies.Lock()
	defer p.s.policies.Unlock()
	have := p.copy()
	old, exists := have[id]
	if exists && old == v {
		return nil
	}
	if err := checkPassword(id, v.Password); err != nil {
		return err
	}
	// The policies first: a session must never be up without them.
	have[id] = v
	if err := p.s.setPolicies(ctx, p.s.permitted(), have); err != nil {
		return err
	}
	if !exists {
		if err := p.s.engine.AddPeer(ctx, &api.AddPeerRequest{Peer: p.s.peer(id, v, p.s.o.Restarting)}); err != nil {
			return err
		}
		p.set(have)
		return nil
	}
	if sessionPart(old) != sessionPart(v) {
		if _, err := p.s.engine.UpdatePeer(ctx, &api.UpdatePeerRequest{Peer: p.s.peer(id, v, false)}); err != nil {
			return err
		}
	}
	if old.NextHops != v.NextHops {
		if err := p.s.softReset(ctx, id, api.ResetPeerRequest_DIRECTION_OUT); err != nil {
			return err
		}
	}
	if old.Import != v.Import {
		if err := p.s.softReset(ctx, id, api.ResetPeerRequest_DIRECTION_IN); err != nil {
			return err
		}
	}
	p.set(have)
	return nil
}

// sessionPart is what the engine's own configuration of a peer is made from.
func sessionPart(v bgp.Peer) bgp.Peer {
	v.Name, v.NextHops = "", bgp.NextHops{}
	v.Import = bgp.Import{MaxPrefixes: v.Import.MaxPrefixes}
	return v
}

// Delete ends a session. The peer is told (Cease), and withdraws our routes.
func (p *Peers) Delete(ctx context.Context, id bgp.PeerID) error {
	p.s.policies.Lock()
	defer p.s.policies.Unlock()
	there, err := p.List(ctx)
	if err != nil {
		return err
	}
	if _, ok := there[id]; ok {
		if err := p.s.engine.DeletePeer(ctx, &api.DeletePeerRequest{Address: id.String()}); err != nil {
			return err
		}
	}
	have := p.copy()
	delete(have, id)
	p.set(have)
	p.s.forgetReason(id.Addr)
	return p.s.setPolicies(ctx, p.s.permitted(), have)
}

// peer translates a session.
func (s *Server) peer(id bgp.PeerID, v bgp.Peer, restarting bool) *api.Peer {
	retry := v.ConnectRetry
	if retry == 0 {
		retry = defaultConnectRetry
	}
	peer := &api.Peer{
		Conf: &api.PeerConf{
			NeighborAddress: id.String(), PeerAsn: v.ASN, LocalAsn: s.o.ASN,
			AuthPassword: string(v.Password), // no description: to change it would reset the session
		},
		Timers: &api.Timers{Config: &api.TimersConfig{
			ConnectRetry: seconds(retry), HoldTime: seconds(v.HoldTime), KeepaliveInterval: seconds(v.Keepalive),
			IdleHoldTimeAfterReset: seconds(idleHoldAfterReset),
		}},
		Transport: &api.Transport{PassiveMode: v.Passive},
		GracefulRestart: &api.GracefulRestart{
			Enabled: v.GracefulRestart.Enabled, RestartTime: uint32(seconds(v.GracefulRestart.RestartTime)),
			DeferralTime: uint32(seconds(deferral)), NotificationEnabled: v.GracefulRestart.Enabled,
			LocalRestarting: restarting && v.GracefulRestart.Enabled,
		},
	}
	if v.Multihop > 0 {
		peer.EbgpMultihop = &api.EbgpMultihop{Enabled: true, MultihopTtl: uint32(v.Multihop)}
	}
	if v.TTLSecurity {
		peer.TtlSecurity = &api.TtlSecurity{Enabled: true, TtlMin: 255} // RFC 5082 section 3
	}
	for _, f := range []struct {
		family bgp.Families
		afi    api.Family_Afi
	}{{bgp.IPv4, api.Family_AFI_IP}, {bgp.IPv6, api.Family_AFI_IP6}} {
		if !v.Families.Has(f.family) {
			continue
		}
		family := &api.Family{Afi: f.afi, Safi: api.Family_SAFI_UNICAST}
		afiSafi := &api.AfiSafi{
			Config:            &api.AfiSafiConfig{Family: family, Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: v.GracefulRestart.Enabled}},
		}
		if v.Import.MaxPrefixes > 0 {
			afiSafi.PrefixLimits = &api.PrefixLimit{Family: family, MaxPrefixes: v.Import.MaxPrefixes}
		}
		peer.AfiSafis = append(peer.AfiSafis, afiSafi)
	}
	return peer
}

func seconds(d time.Duration) uint64 { return uint64(d / time.Second) }

// errNoMD5 explains why a session is refused rather than run without its password.
func errNoMD5(err error) error {
	return fmt.Errorf("set the TCP MD5 password: %w: the kernel must support TCP_MD5SIG", err)
}
