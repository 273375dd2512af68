package gobgp

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

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

func TestMain(m *testing.M) {
	if socket := os.Getenv(routerSocket); socket != "" {
		runRouter(socket)
	}
	os.Exit(netnstest.Main(m, our4, our6, tor4, tor6, alt4))
}

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
