package gobgp

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/integration/netnstest"
)

// patience bounds every wait for the other side of a session.
const patience = 30 * time.Second

const ourASN, upstreamASN = 64512, 4200000001

// The speaker's addresses and those of two routers, all on one loopback.
var (
	our4, our6 = addr("192.0.2.1"), addr("2001:db8::1")
	tor4, tor6 = addr("192.0.2.11"), addr("2001:db8::11")
	alt4       = addr("192.0.2.12")

	pool4, pool6 = prefix("10.1.0.0/24"), prefix("2001:db8:1::/64")
	bothHops     = bgp.NextHops{IPv4: our4, IPv6: our6}
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m, our4, our6, tor4, tor6, alt4)) }

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// A speaker is a Server under test, with what the tests ask of it.
type speaker struct {
	*testing.T
	*Server
	changes atomic.Int32
}

// start starts a speaker that may announce the two pools. It stops with the test.
func start(t *testing.T, change ...func(*Options)) *speaker {
	t.Helper()
	netnstest.Need(t)
	s := &speaker{T: t}
	o := Options{
		ASN: ourASN, RouterID: our4, ListenPort: 179, APISocket: filepath.Join(t.TempDir(), "gobgp.sock"),
		Log: slog.New(slog.DiscardHandler), Changed: func() { s.changes.Add(1) },
	}
	for _, c := range change {
		c(&o)
	}
	var err error
	s.Server, err = New(o)
	s.must(err)
	s.must(s.Start(t.Context()))
	t.Cleanup(func() {
		if err := s.end(); err != nil {
			t.Errorf("Stop() = %v, want none", err)
		}
	})
	s.must(s.Permit(t.Context(), []netip.Prefix{pool4, pool6}))
	return s
}

// end stops the speaker the first time it is called.
func (s *speaker) end() error {
	if s.Server == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := s.Stop(ctx)
	s.Server = nil
	return err
}

func (s *speaker) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// peer is a session with a router that connects to us: all addresses are this machine's, so that only a connection with
// chosen addresses is the right one.
func peer(change ...func(*bgp.Peer)) bgp.Peer {
	p := bgp.Peer{
		Name: "tor", ASN: upstreamASN, Passive: true, HoldTime: 9 * time.Second, Keepalive: 3 * time.Second,
		Families: bgp.IPv4 | bgp.IPv6, NextHops: bothHops,
		GracefulRestart: bgp.GracefulRestart{Enabled: true, RestartTime: 120 * time.Second},
	}
	for _, c := range change {
		c(&p)
	}
	return p
}

func (s *speaker) put(id netip.Addr, v bgp.Peer) {
	s.Helper()
	s.must(s.Peers().Put(s.Context(), bgp.PeerID{Addr: id}, v))
}

func (s *speaker) announce(p netip.Prefix, a bgp.Attributes) {
	s.Helper()
	s.must(s.Announcements().Put(s.Context(), p, bgp.Announcement{Kind: bgp.KindPool, Attributes: a}))
}

func (s *speaker) withdraw(p netip.Prefix) {
	s.Helper()
	s.must(s.Announcements().Delete(s.Context(), p))
}

// established waits until the session is up as we see it.
func (s *speaker) established(id netip.Addr) {
	s.Helper()
	s.eventually(func() (bool, string) {
		st := s.state(id)
		return st.Established(), fmt.Sprintf("session with %s is %+v", id, st)
	})
}

func (s *speaker) state(id netip.Addr) bgp.PeerState {
	s.Helper()
	states, err := s.States(s.Context())
	s.must(err)
	return states[bgp.PeerID{Addr: id}]
}

func (s *speaker) eventually(holds func() (bool, string)) {
	s.Helper()
	eventually(s.T, holds)
}

// eventually waits until something holds, which says what it sees.
func eventually(t *testing.T, holds func() (bool, string)) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		ok, sees := holds()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s: %s", patience, sees)
		}
	}
}

// A router is another engine, configured with nothing of ours.
type router struct {
	*testing.T
	engine *server.BgpServer
	asn    uint32
	withdrawn,
	downs atomic.Int32 // prefixes lost and sessions ended since it started
}

// startRouter starts a router that connects from one address to another, ours, again and again.
func startRouter(t *testing.T, from, to netip.Addr, change ...func(*api.Peer)) *router {
	t.Helper()
	r := &router{T: t, asn: upstreamASN}
	p := &api.Peer{
		Conf:      &api.PeerConf{NeighborAddress: to.String(), PeerAsn: ourASN, LocalAsn: r.asn},
		Transport: &api.Transport{LocalAddress: from.String()},
		Timers:    &api.Timers{Config: &api.TimersConfig{ConnectRetry: 1, HoldTime: 9, KeepaliveInterval: 3, IdleHoldTimeAfterReset: 1}},
		GracefulRestart: &api.GracefulRestart{
			Enabled: true, RestartTime: 120, DeferralTime: 1, NotificationEnabled: true,
		},
	}
	for _, afi := range []api.Family_Afi{api.Family_AFI_IP, api.Family_AFI_IP6} {
		p.AfiSafis = append(p.AfiSafis, &api.AfiSafi{
			Config:            &api.AfiSafiConfig{Family: &api.Family{Afi: afi, Safi: api.Family_SAFI_UNICAST}, Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: true}},
		})
	}
	for _, c := range change {
		c(p)
	}
	r.asn = p.Conf.LocalAsn
	r.engine = server.NewBgpServer(server.LoggerOption(slog.New(slog.DiscardHandler), nil))
	go r.engine.Serve() // ends with Stop
	t.Cleanup(r.engine.Stop)
	id := addr("192.0.2.100").As4()
	id[3] += from.AsSlice()[len(from.AsSlice())-1]
	r.must(r.engine.StartBgp(t.Context(), &api.StartBgpRequest{Global: &api.Global{
		Asn: r.asn, RouterId: netip.AddrFrom4(id).String(), ListenPort: -1,
	}}))
	r.must(r.engine.WatchEvent(t.Context(), server.WatchEventMessageCallbacks{
		OnBestPath: func(paths []*apiutil.Path, _ time.Time) {
			for _, path := range paths {
				if path.Withdrawal {
					r.withdrawn.Add(1)
				}
			}
		},
		OnPeerUpdate: func(e *apiutil.WatchEventMessage_PeerEvent, _ time.Time) {
			if e.Type == apiutil.PEER_EVENT_STATE && e.Peer.State.SessionState == gobgp.BGP_FSM_IDLE {
				r.downs.Add(1)
			}
		},
	}, server.WatchPeer(), server.WatchBestPath(false)))
	r.must(r.engine.AddPeer(t.Context(), &api.AddPeerRequest{Peer: p}))
	return r
}

func (r *router) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// announce lets the router tell us of a prefix.
func (r *router) announce(p netip.Prefix, nextHop netip.Addr) {
	r.Helper()
	nlri, err := gobgp.NewIPAddrPrefix(p)
	r.must(err)
	family, hop := gobgp.RF_IPv6_UC, gobgp.PathAttributeInterface(nil)
	if p.Addr().Is4() {
		family = gobgp.RF_IPv4_UC
		hop, err = gobgp.NewPathAttributeNextHop(nextHop)
	} else {
		hop, err = gobgp.NewPathAttributeMpReachNLRI(family, []gobgp.PathNLRI{{NLRI: nlri}}, nextHop)
	}
	r.must(err)
	_, err = r.engine.AddPath(apiutil.AddPathRequest{Paths: []*apiutil.Path{{
		Family: family, Nlri: nlri, Age: time.Now().Unix(), Attrs: []gobgp.PathAttributeInterface{gobgp.NewPathAttributeOrigin(0), hop},
	}}})
	r.must(err)
}

// learned is what the router knows from us, in words, by prefix.
func (r *router) learned() map[string]string {
	r.Helper()
	out := make(map[string]string)
	for _, family := range []gobgp.Family{gobgp.RF_IPv4_UC, gobgp.RF_IPv6_UC} {
		r.must(r.engine.ListPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: family},
			func(nlri gobgp.NLRI, paths []*apiutil.Path) {
				for _, p := range paths {
					if p.PeerAddress.IsValid() {
						out[nlri.String()] = words(p)
					}
				}
			}))
	}
	return out
}

// words tells a path's attributes in the order of their numbers.
func words(p *apiutil.Path) string {
	attrs := slices.SortedFunc(slices.Values(p.Attrs), func(a, b gobgp.PathAttributeInterface) int {
		return int(a.GetType()) - int(b.GetType())
	})
	var out []string
	for _, a := range attrs {
		switch a := a.(type) {
		case *gobgp.PathAttributeOrigin:
		case *gobgp.PathAttributeAsPath:
			out = append(out, "as "+gobgp.AsPathString(a))
		case *gobgp.PathAttributeNextHop:
			out = append(out, "via "+a.Value.String())
		case *gobgp.PathAttributeMpReachNLRI:
			out = append(out, "via "+a.Nexthop.String())
		default:
			out = append(out, strings.Trim(a.String(), "{}"))
		}
	}
	if p.Stale {
		out = append(out, "stale")
	}
	return strings.Join(out, ", ")
}

// knows waits until the router's table of what we announce is as wanted.
func (r *router) knows(want map[string]string) {
	r.Helper()
	eventually(r.T, func() (bool, string) {
		diff := cmp.Diff(want, r.learned())
		return diff == "", "router's table (-want +got):\n" + diff
	})
}

// uptime identifies the session: it began then, and has been up since.
func (r *router) uptime() (began time.Time) {
	r.Helper()
	r.must(r.engine.ListPeer(r.Context(), &api.ListPeerRequest{}, func(p *api.Peer) {
		if p.State.SessionState == api.PeerState_SESSION_STATE_ESTABLISHED {
			began = p.Timers.State.Uptime.AsTime()
		}
	}))
	return began
}
