package integration

import (
	"encoding/json"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// What the nodes of these tests grant, and the routers of docs/routers take.
const (
	static4, static6 = "10.244.200.5", "2001:db8:44:200::5"
	shared4, shared6 = "10.244.200.9", "2001:db8:44:200::9"
)

// startGranting starts a router and nodes on which namespace default may claim the addresses above.
func startGranting(t *testing.T, kind string) *lab.Lab {
	t.Helper()
	l := newLab(t, 2)
	_, err := l.StartRouter(t.Context(), kind, nil)
	must(t, err)
	for _, n := range l.Nodes {
		config := n.Config(peering(n))
		must(t, n.Start(t.Context(), strings.Replace(config, "spec:\n", `spec:
  grants:
  - {namespaces: [default], prefixes: [10.244.200.0/24, "2001:db8:44:200::/64"], uses: [Addresses, Anycast]}
`, 1)))
	}
	for _, n := range l.Nodes {
		awaitPools(t, l, n)
	}
	return l
}

// claiming attaches a pod with annotations.
func claiming(t *testing.T, n *lab.Node, name string, annotations map[string]string) (*lab.Pod, lab.Result) {
	t.Helper()
	p, err := n.Pod(t.Context(), name)
	must(t, err)
	out, err := p.CallWith(within(t, 20*time.Second), "ADD", "1.0.0", map[string]any{
		"runtimeConfig": map[string]any{"io.kubernetes.cri.pod-annotations": annotations},
	})
	must(t, err)
	var r lab.Result
	must(t, json.Unmarshal(out, &r))
	return p, r
}

func host(addr string) netip.Prefix {
	a := netip.MustParseAddr(addr)
	return netip.PrefixFrom(a, a.BitLen())
}

// seenFrom tells from which address a pod's connections come to the client.
func seenFrom(t *testing.T, l *lab.Lab, p *lab.Pod, client string) string {
	t.Helper()
	var listener net.Listener
	must(t, l.Client.Do(func() (err error) {
		listener, err = new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(client, "0"))
		return err
	}))
	defer listener.Close()
	must(t, p.NS.Do(func() error {
		conn, err := net.DialTimeout("tcp", listener.Addr().String(), 5*time.Second)
		if err != nil {
			return err
		}
		return conn.Close()
	}))
	conn, err := listener.Accept()
	must(t, err)
	defer conn.Close()
	from, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	must(t, err)
	return from
}

// A static address is reached from beyond the router, is what the pod's traffic comes from, and follows the pod to another
// node, whichever of the two has it first. C11, K01.
func TestStaticAddress(t *testing.T) {
	forRouters(t, func(t *testing.T, kind string) {
		l := startGranting(t, kind)
		claims := map[string]string{"gaggle.dev/addresses": static4 + " " + static6}
		p, r := claiming(t, l.Nodes[0], "a", claims)
		if r.Addr(false).String() != static4 || r.Addr(true).String() != static6 {
			t.Errorf("result %+v, want the static addresses first", r.IPs)
		}
		reach := func() {
			t.Helper()
			for _, addr := range []string{static4, static6} {
				_, err := l.AwaitRoute(within(t, 10*time.Second), host(addr))
				must(t, err)
				_, err = lab.Ping(within(t, 10*time.Second), l.Client, netip.MustParseAddr(addr))
				must(t, err)
			}
		}
		reach()
		explained, err := l.Nodes[0].Gaggle(t.Context(), "explain", static6)
		must(t, err)
		if !strings.Contains(explained, "default/a") || !strings.Contains(explained, "primary") {
			t.Errorf("gaggle explain says %q", explained)
		}
		for client, want := range map[string]string{lab.Client4: static4, lab.Client6: static6} {
			if got := seenFrom(t, l, p, client); got != want {
				t.Errorf("the client sees %s, want %s", got, want)
			}
		}
		// The new node first: the old one's end takes nothing away.
		var moved *lab.Pod
		lost := losses(t, l, []string{static4, static6}, func() {
			moved, _ = claiming(t, l.Nodes[1], "b", claims)
			must(t, p.Del(t.Context()))
			reach()
		})
		if most := 100 * time.Millisecond; lost > most { // the router learns of the withdrawal while packets are on their way
			t.Errorf("not reached for %s while both nodes had it, want at most %s", lost, most)
		}
		// The old node first: it is not reached until the new one has it, and then at once.
		var gap time.Duration
		lost = losses(t, l, []string{static4, static6}, func() {
			start := time.Now()
			must(t, moved.Del(t.Context()))
			claiming(t, l.Nodes[0], "c", claims)
			gap = time.Since(start)
			reach()
		})
		if most := gap + 500*time.Millisecond; lost > most {
			t.Errorf("not reached for %s, want at most %s: for %s no node had it", lost, most, gap)
		}
	})
}

// A pool that is not announced and is masqueraded: its pod reaches the world as the node, and the exceptions as itself.
func TestMasqueradedPool(t *testing.T) {
	need(t, "birdc")
	t.Parallel()
	l := newLab(t, 1)
	_, err := l.StartRouter(t.Context(), "bird", nil)
	must(t, err)
	n := l.Nodes[0]
	const other = "192.0.2.77" // of the client too
	must(t, l.Client.IP(t.Context(), "addr add "+other+"/24 dev eth0"))
	config := strings.Replace(n.Config(peering(n)), "cidr: "+lab.Pool4(1), "cidr: 172.20.0.0/24, announce: None, masquerade: {except: ["+other+"/32]}", 1)
	must(t, n.Start(t.Context(), config))
	_, err = l.AwaitRoute(within(t, 15*time.Second), netip.MustParsePrefix(lab.Pool6(1)))
	must(t, err)
	p, r := attach(t, n, "a")
	must(t, l.Router.IP(t.Context(), "route add 172.20.0.0/24 via "+lab.Node4(1))) // for the exception's answers
	for client, want := range map[string]string{
		lab.Client4: lab.Node4(1), other: r.Addr(false).String(), lab.Client6: r.Addr(true).String(),
	} {
		if got := seenFrom(t, l, p, client); got != want {
			t.Errorf("%s sees %s, want %s", client, got, want)
		}
	}
	out, err := n.Gaggle(t.Context(), "announcements")
	must(t, err)
	if strings.Contains(out, "172.20.") {
		t.Errorf("announced is:\n%s", out)
	}
}

// losses tells for how long at most one of the addresses did not answer the client while something was done.
func losses(t *testing.T, l *lab.Lab, addrs []string, do func()) (longest time.Duration) {
	t.Helper()
	var stops []func() (lab.Loss, error)
	for _, addr := range addrs {
		stop, err := lab.Probe(l.Client, netip.MustParseAddr(addr))
		must(t, err)
		stops = append(stops, stop)
	}
	do()
	for i, stop := range stops {
		loss, err := stop()
		must(t, err)
		t.Logf("%s: %d of %d lost", addrs[i], loss.Lost, loss.Sent)
		longest = max(longest, time.Duration(loss.Lost)*lab.ProbeInterval)
	}
	return longest
}

// Three pods on two nodes share an anycast address: the router spreads flows over the nodes, and a node over its pods. A
// connection goes on when a pod of the other node, then one of its own, ends; the address is withdrawn with the last. K03.
func TestAnycast(t *testing.T) {
	forRouters(t, testAnycast)
}

func testAnycast(t *testing.T, kind string) {
	l := startGranting(t, kind)
	claims := map[string]string{"gaggle.dev/anycast": shared4 + "," + shared6}
	pods := make(map[string]*lab.Pod)
	for name, n := range map[string]*lab.Node{"a": l.Nodes[0], "b": l.Nodes[0], "c": l.Nodes[1]} {
		pods[name], _ = claiming(t, n, name, claims)
		named(t, pods[name], name)
	}
	for _, addr := range []string{shared4, shared6} {
		err := lab.WaitFor(within(t, 15*time.Second), "two ways to "+addr, func() bool {
			r, ok, err := l.Router.KernelRoute(t.Context(), host(addr))
			return err == nil && ok && len(r.Hops()) == 2
		})
		must(t, err)
	}
	must(t, l.Router.Sysctl("net/ipv4/fib_multipath_hash_policy", "1"))
	must(t, l.Router.Sysctl("net/ipv6/fib_multipath_hash_policy", "1"))
	for _, tt := range []struct {
		from lab.NS
		addr string
		want int
	}{
		// A kernel chooses by the hash that it keeps with the packet, which the namespaces of one machine share: a node chooses
		// as the router did. So the router has to show that it spreads over nodes, and a node, with its own connections, that
		// it spreads over pods.
		{l.Client, shared4, 2}, {l.Client, shared6, 2}, {l.Nodes[0].NS, shared4, 2}, {l.Nodes[0].NS, shared6, 2},
	} {
		seen := make(map[string]bool)
		for range 200 {
			conn := dialFrom(t, tt.from, netip.AddrPortFrom(netip.MustParseAddr(tt.addr), 7))
			seen[says(t, conn)] = true
			must(t, conn.Close())
			if len(seen) == tt.want {
				break
			}
		}
		if len(seen) != tt.want {
			t.Errorf("200 connections from %s to %s reached %v, want %d pods", tt.from.Name, tt.addr, seen, tt.want)
		}
	}
	// A connection to a pod of node 1 lives through the end of the pod beside it, and of that on the other node.
	var conn net.Conn
	on := "c"
	for i := 0; on == "c" && i < 200; i++ {
		conn = dialFrom(t, l.Client, netip.AddrPortFrom(netip.MustParseAddr(shared4), 7))
		on = says(t, conn)
	}
	beside, ok := map[string]string{"a": "b", "b": "a"}[on]
	if !ok {
		t.Fatal("none of 200 connections reached node 1")
	}
	for _, name := range []string{beside, "c"} {
		must(t, pods[name].Del(t.Context()))
		if got := says(t, conn); got != on {
			t.Errorf("after the end of %s the connection to %s is answered by %q", name, on, got)
		}
	}
	must(t, pods[on].Del(t.Context()))
	for _, addr := range []string{shared4, shared6} {
		err := lab.WaitFor(within(t, 10*time.Second), "the withdrawal of "+addr, func() bool {
			_, ok, err := l.Router.KernelRoute(t.Context(), host(addr))
			return err == nil && !ok
		})
		must(t, err)
	}
}

// named answers each byte on TCP port 7 of a pod with the pod's one-letter name.
func named(t *testing.T, p *lab.Pod, name string) {
	t.Helper()
	serveTCP(t, p.NS, 7, func(conn net.Conn) {
		var b [1]byte
		for {
			if _, err := conn.Read(b[:]); err != nil {
				return
			}
			_, _ = conn.Write([]byte(name))
		}
	})
}

func dialFrom(t *testing.T, from lab.NS, to netip.AddrPort) (conn net.Conn) {
	t.Helper()
	must(t, from.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", to.String(), 5*time.Second)
		return err
	}))
	return conn
}

func says(t *testing.T, conn net.Conn) string {
	t.Helper()
	var b [1]byte
	must(t, conn.SetDeadline(time.Now().Add(5*time.Second)))
	_, err := conn.Write(b[:])
	must(t, err)
	_, err = conn.Read(b[:])
	must(t, err)
	return string(b[:])
}
