package gobgp

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/osrg/gobgp/v4/api"

	"github.com/gaggle-cni/gaggle/bgp"
)

// What each change of a peer does to its session. Another peer's session never notices: K22.
func TestChangeOfAPeer(t *testing.T) {
	s := start(t)
	now := peer()
	s.put(tor4, now)
	s.put(alt4, peer())
	tor, alt := startRouter(t, tor4, our4), startRouter(t, alt4, our4)
	s.established(tor4)
	s.established(alt4)
	altUp := alt.uptime()
	for _, tt := range []struct {
		name   string
		change func(*bgp.Peer)
		resets bool
	}{
		{"none", func(*bgp.Peer) {}, false},
		{"name", func(p *bgp.Peer) { p.Name = "spine" }, false},
		{"next hop", func(p *bgp.Peer) { p.NextHops.IPv4 = addr("192.0.2.2") }, false},
		{"import", func(p *bgp.Peer) { p.Import.DefaultRoute = true }, false},
		{"prefix limit", func(p *bgp.Peer) { p.Import.MaxPrefixes = 100 }, false},
		{"hold time", func(p *bgp.Peer) { p.HoldTime = 30 * time.Second }, false},
		{"keepalive", func(p *bgp.Peer) { p.Keepalive = 2 * time.Second }, false},
		{"connect retry", func(p *bgp.Peer) { p.ConnectRetry = 5 * time.Second }, false},
		{"restart time", func(p *bgp.Peer) { p.GracefulRestart.RestartTime = time.Minute }, true},
		{"graceful restart", func(p *bgp.Peer) { p.GracefulRestart = bgp.GracefulRestart{} }, true},
		{"families", func(p *bgp.Peer) { p.Families = bgp.IPv4 }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tor.T, alt.T, s.T = t, t, t
			up := tor.uptime()
			tt.change(&now)
			s.put(tor4, now)
			got, err := s.Peers().List(t.Context())
			s.must(err)
			want := map[bgp.PeerID]bgp.Peer{{Addr: tor4}: now, {Addr: alt4}: peer()}
			if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("List() (-want +got):\n%s", diff)
			}
			if tt.resets {
				s.eventually(func() (bool, string) { return tor.uptime().After(up), "the session is not reset" })
			}
			s.announce(pool4, bgp.Attributes{})
			tor.knows(map[string]string{pool4.String(): "as 64512, via " + now.NextHops.IPv4.String()})
			alt.knows(map[string]string{pool4.String(): "as 64512, via 192.0.2.1"})
			s.withdraw(pool4)
			tor.knows(map[string]string{})
			if !tt.resets && tor.uptime() != up {
				t.Error("the session was reset")
			}
			if alt.uptime() != altUp {
				t.Error("the other peer's session was reset")
			}
		})
	}
}

// K22: a peer that comes or goes does not touch the others, and its routes go with it.
func TestPeerComesAndGoes(t *testing.T) {
	s := start(t)
	s.announce(pool4, bgp.Attributes{})
	s.put(tor4, peer())
	tor := startRouter(t, tor4, our4)
	ours := map[string]string{pool4.String(): "as 64512, via 192.0.2.1"}
	tor.knows(ours)
	up := tor.uptime()

	s.put(alt4, peer())
	alt := startRouter(t, alt4, our4)
	alt.knows(ours)
	id := bgp.PeerID{Addr: alt4}
	s.must(s.Peers().Delete(t.Context(), id))
	alt.knows(map[string]string{})
	s.must(s.Peers().Delete(t.Context(), id)) // absent is no error
	if _, ok := s.Peers().copy()[id]; ok {
		t.Error("the peer is remembered")
	}
	tor.knows(ours)
	if tor.uptime() != up {
		t.Error("the other peer's session was reset")
	}
}

// What a router knows of the two pools.
const via4, via6 = "as 64512, via 192.0.2.1", "as 64512, via 2001:db8::1"

// startAnnouncing starts a speaker, and a router that knows both pools from it.
func startAnnouncing(t *testing.T) (*speaker, *router) {
	t.Helper()
	s := start(t)
	s.announce(pool4, bgp.Attributes{})
	s.announce(pool6, bgp.Attributes{})
	s.put(tor4, peer())
	r := startRouter(t, tor4, our4)
	r.knows(map[string]string{pool4.String(): via4, pool6.String(): via6})
	return s, r
}

// K06, K07: routers keep everything over a restart, and hear of changes at once after it.
func TestRestart(t *testing.T) {
	s, r := startAnnouncing(t)
	up := r.uptime()
	if r.hearsRestart() {
		t.Error("a cold start claims to be a restart")
	}
	s.must(s.end())
	r.knows(map[string]string{pool4.String(): via4 + ", stale", pool6.String(): via6 + ", stale"})

	s = start(t, func(o *Options) { o.Restarting = true })
	s.announce(pool4, bgp.Attributes{})
	s.announce(pool6, bgp.Attributes{})
	s.put(tor4, peer())
	r.knows(map[string]string{pool4.String(): via4, pool6.String(): via6})
	if !r.uptime().After(up) {
		t.Error("this is no new session")
	}
	if !r.hearsRestart() {
		t.Error("the restart is not told")
	}
	if n := r.withdrawn.Load(); n != 0 {
		t.Errorf("the router lost %d routes meanwhile, want none", n)
	}
	s.withdraw(pool6)
	r.knows(map[string]string{pool4.String(): via4})
}

// What is no longer announced after a restart goes when the restart is over.
func TestRestartForgetsWhatIsGone(t *testing.T) {
	s, r := startAnnouncing(t)
	s.must(s.end())
	s = start(t, func(o *Options) { o.Restarting = true })
	s.announce(pool4, bgp.Attributes{})
	s.put(tor4, peer())
	r.knows(map[string]string{pool4.String(): via4})
	if n := r.withdrawn.Load(); n != 1 {
		t.Errorf("the router lost %d routes, want the one that is gone", n)
	}
}

// K08: a session runs with the password of both sides, or not at all.
func TestPassword(t *testing.T) {
	for _, tt := range []struct {
		name         string
		ours, theirs string
	}{{"another", "right", "wrong"}, {"missing there", "right", ""}, {"missing here", "", "right"}} {
		t.Run(tt.name, func(t *testing.T) {
			s := start(t)
			s.put(tor4, peer(func(p *bgp.Peer) { p.Password = bgp.Secret(tt.ours) }))
			before := drops(t, "TCPMD5")
			startRouter(t, tor4, our4, func(p *api.Peer) { p.Conf.AuthPassword = tt.theirs })
			s.eventually(func() (bool, string) {
				n := drops(t, "TCPMD5") - before
				return n >= 3, fmt.Sprintf("%d packets were dropped", n)
			})
			if st := s.state(tor4); st.Established() {
				t.Errorf("the session is %s", st.State)
			}
			s.put(tor4, peer(func(p *bgp.Peer) { p.Password = bgp.Secret(tt.theirs) })) // it can be mended
			s.established(tor4)
		})
	}
}

// drops counts the packets that the kernel dropped, by the beginning of the counters' names.
func drops(t *testing.T, counters string) (n int) {
	t.Helper()
	data, err := os.ReadFile("/proc/net/netstat")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(data), "\n")
	names, values := strings.Fields(lines[0]), strings.Fields(lines[1])
	found := false
	for i, name := range names {
		if strings.HasPrefix(name, counters) {
			v, err := strconv.Atoi(values[i])
			if err != nil {
				t.Fatal(err)
			}
			n += v
			found = true
		}
	}
	if !found {
		t.Fatalf("/proc/net/netstat has no counter %s", counters)
	}
	return n
}

// A password that the kernel does not take is an error, and no session without it.
func TestPasswordThatTheKernelRefuses(t *testing.T) {
	s := start(t)
	for _, id := range []netip.Addr{tor4, tor6} {
		err := s.Peers().Put(t.Context(), bgp.PeerID{Addr: id}, peer(func(p *bgp.Peer) { p.Password = bgp.Secret(strings.Repeat("x", 81)) }))
		if err == nil || !strings.Contains(err.Error(), "MD5") {
			t.Errorf("Put() = %v, want what is wrong with the password", err)
		}
	}
	if got, err := s.Peers().List(t.Context()); err != nil || len(got) > 0 {
		t.Errorf("List() = %v, %v; want no peer", got, err)
	}
}

// RFC 5082: both ends set it, or there is no session.
func TestTTLSecurity(t *testing.T) {
	s := start(t)
	secure := func(p *bgp.Peer) { p.TTLSecurity = true }
	s.put(tor4, peer(secure))
	s.put(alt4, peer(secure))
	startRouter(t, tor4, our4, func(p *api.Peer) { p.TtlSecurity = &api.TtlSecurity{Enabled: true, TtlMin: 255} })
	before := drops(t, "TCPMinTTLDrop")
	startRouter(t, alt4, our4)
	s.established(tor4)
	s.eventually(func() (bool, string) {
		n := drops(t, "TCPMinTTLDrop") - before
		return n >= 3, fmt.Sprintf("%d packets were dropped", n)
	})
	if st := s.state(alt4); st.Established() || st.Flaps > 0 {
		t.Errorf("the session with a router of TTL 1 is %+v", st)
	}
}

// Why a session is down can be read.
func TestLastError(t *testing.T) {
	s := start(t)
	s.put(tor4, peer())
	r := startRouter(t, tor4, our4)
	s.established(tor4)
	st := s.state(tor4)
	if st.ASN != upstreamASN || st.RouterID != "192.0.2.111" || st.LocalAddress != our4.String() || st.HoldTime != "9s" || !st.GracefulRestart || st.Since.IsZero() {
		t.Errorf("the session is %+v", st)
	}
	r.leave()
	s.eventually(func() (bool, string) {
		st := s.state(tor4)
		return !st.Established() && st.LastError == "hard-reset", fmt.Sprintf("%+v", st) // RFC 8538 section 3.1
	})

	s.put(alt4, peer(func(p *bgp.Peer) { p.ASN = 65000 }))
	startRouter(t, alt4, our4)
	s.eventually(func() (bool, string) {
		st := s.state(alt4)
		return strings.Contains(st.LastError, "bad-peer-as"), fmt.Sprintf("%+v", st)
	})
}

// Starting says what is wrong, and leaves nothing behind.
func TestStartErrors(t *testing.T) {
	start(t) // takes port 179
	for _, tt := range []struct {
		name, want string
		change     func(*Options)
	}{
		{"no router id", "router id", func(o *Options) { o.RouterID = netip.Addr{} }},
		{"router id of the other family", "router id", func(o *Options) { o.RouterID = our6 }},
		{"busy port", "start BGP on port 179", func(*Options) {}},
		{"an address that is not ours", "start BGP on port 179", func(o *Options) { o.ListenAddrs = []netip.Addr{addr("198.51.100.1")} }},
		{"no directory for the socket", "no such file or directory", func(o *Options) { o.APISocket = "/does/not/exist/gobgp.sock" }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := Options{
				ASN: ourASN, RouterID: our4, ListenPort: 179, APISocket: filepath.Join(t.TempDir(), "gobgp.sock"),
				Log: slog.New(slog.DiscardHandler), Changed: func() {},
			}
			tt.change(&o)
			before := runtime.NumGoroutine()
			s, err := New(o)
			if err == nil {
				err = s.Start(t.Context())
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Start() = %v, want an error about %q", err, tt.want)
			}
			eventually(t, func() (bool, string) {
				n := runtime.NumGoroutine()
				return n <= before, fmt.Sprintf("%d goroutines are left, %d before:\n%s", n, before, stacks())
			})
		})
	}
}

// K21: without a port nobody is listened to.
func TestNoListener(t *testing.T) {
	start(t, func(o *Options) { o.ListenPort = 0 })
	for _, a := range []netip.Addr{our4, our6} {
		if c, err := net.DialTimeout("tcp", netip.AddrPortFrom(a, 179).String(), time.Second); err == nil {
			c.Close()
			t.Errorf("something listens on %s", a)
		}
	}
}

// I15: a speaker that has ended leaves no goroutine and no descriptor.
func TestStopLeavesNothing(t *testing.T) {
	fds := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	life := func(t *testing.T) {
		s := start(t)
		s.put(tor4, peer())
		s.put(tor6, peer()) // nobody there
		r := startRouter(t, tor4, our4)
		s.announce(pool4, bgp.Attributes{})
		r.knows(map[string]string{pool4.String(): "as 64512, via 192.0.2.1"})
		s.must(s.end())
	}
	t.Run("first", life) // what is made once is made now
	goroutines, files := runtime.NumGoroutine(), fds()
	for _, again := range []string{"second", "third", "fourth"} {
		t.Run(again, life)
	}
	eventually(t, func() (bool, string) {
		g, f := runtime.NumGoroutine(), fds()
		return g <= goroutines && f <= files,
			fmt.Sprintf("%d goroutines and %d descriptors, %d and %d before:\n%s", g, f, goroutines, files, stacks())
	})
}

func stacks() []byte {
	buf := make([]byte, 1<<20)
	return buf[:runtime.Stack(buf, true)]
}
