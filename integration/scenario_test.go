package integration

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// both are the peerings of a lab: node1 speaks over IPv4, node2 over IPv6, as in docs/routers.
func peering(n *lab.Node) lab.Peering { return lab.Peering{Over4: n.Number == 1, Over6: n.Number != 1} }

// startAll starts a router and all nodes and waits until the router has their prefixes.
func startAll(t *testing.T, l *lab.Lab, kind string) {
	t.Helper()
	_, err := l.StartRouter(t.Context(), kind, nil)
	must(t, err)
	for _, n := range l.Nodes {
		must(t, n.Start(t.Context(), n.Config(peering(n))))
	}
	for _, n := range l.Nodes {
		awaitPools(t, l, n)
	}
}

func awaitPools(t *testing.T, l *lab.Lab, n *lab.Node) {
	t.Helper()
	for _, pool := range []string{lab.Pool4(n.Number), lab.Pool6(n.Number)} {
		_, err := l.AwaitRoute(within(t, 20*time.Second), netip.MustParsePrefix(pool))
		must(t, err)
	}
}

func attach(t *testing.T, n *lab.Node, name string) (*lab.Pod, lab.Result) {
	t.Helper()
	p, err := n.Pod(t.Context(), name)
	must(t, err)
	r, err := p.Add(within(t, 20*time.Second))
	must(t, err)
	return p, r
}

// A pod is reachable from beyond the router within a second of ADD's return, in both families, and each side sees the
// other's own address. C01, C50, K01.
func TestPodAndClientSeeEachOther(t *testing.T) {
	forRouters(t, func(t *testing.T, kind string) {
		l := newLab(t, 2)
		startAll(t, l, kind)
		var pods []*lab.Pod
		var results []lab.Result
		for _, n := range l.Nodes {
			p, r := attach(t, n, "a")
			for _, six := range []bool{true, false} {
				_, err := lab.Ping(within(t, time.Second), l.Client, r.Addr(six))
				must(t, err)
			}
			pods, results = append(pods, p), append(results, r)
		}
		for _, six := range []bool{true, false} {
			client := netip.MustParseAddr(lab.Client4)
			if six {
				client = netip.MustParseAddr(lab.Client6)
			}
			for i := range pods {
				sees(t, l.Client, client, pods[i].NS, results[i].Addr(six))
				sees(t, pods[i].NS, results[i].Addr(six), l.Client, client)
			}
			sees(t, pods[0].NS, results[0].Addr(six), pods[1].NS, results[1].Addr(six)) // across nodes
		}
	})
}

// sees checks that a TCP server in one namespace sees the caller's own address: there is no NAT on the way.
func sees(t *testing.T, from lab.NS, fromAddr netip.Addr, to lab.NS, toAddr netip.Addr) {
	t.Helper()
	var l net.Listener
	must(t, to.Do(func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(toAddr.String(), "0"))
		return err
	}))
	defer l.Close()
	seen := make(chan string, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			seen <- err.Error()
			return
		}
		defer conn.Close()
		seen <- conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().String()
	}()
	must(t, from.Do(func() error {
		conn, err := net.DialTimeout("tcp", l.Addr().String(), 2*time.Second)
		if err != nil {
			return err
		}
		return conn.Close()
	}))
	if got := <-seen; got != fromAddr.String() {
		t.Errorf("%s sees %s, want %s", to.Name, got, fromAddr)
	}
}

// After DEL nothing of the pod is left. D18, C25.
func TestDelLeavesNothing(t *testing.T) {
	forRouters(t, func(t *testing.T, kind string) {
		l := newLab(t, 1)
		startAll(t, l, kind)
		n := l.Nodes[0]
		unchanged := snapshot(t, n)
		descriptors := openDescriptors(t, n)
		for i := range 20 {
			p, r := attach(t, n, "a")
			if i == 0 {
				_, err := lab.Ping(within(t, time.Second), l.Client, r.Addr(true))
				must(t, err)
			}
			must(t, p.Remove(within(t, 10*time.Second)))
		}
		unchanged()
		if pods := podList(t, n); len(pods) != 0 {
			t.Errorf("records left: %+v", pods)
		}
		if got := openDescriptors(t, n); got > descriptors+4 {
			t.Errorf("%d descriptors after 20 pods, %d before", got, descriptors)
		}
	})
}

func openDescriptors(t *testing.T, n *lab.Node) int {
	t.Helper()
	out, err := n.NS.Exec(t.Context(), "ls", fmt.Sprintf("/proc/%d/fd", n.Process().PID()))
	must(t, err)
	return len(strings.Fields(out))
}

type podEntry struct {
	Namespace, Name, ContainerID, HostIf, State string
	Addresses                                   []netip.Addr
}

func podList(t *testing.T, n *lab.Node) []podEntry {
	t.Helper()
	var list struct{ Pods []podEntry }
	must(t, n.Status(t.Context(), &list))
	return list.Pods
}

// The aggregate has the right next hop in both families, over an IPv4 and an IPv6 session, within one AS and between two,
// with ASNs of two and four bytes. K10, B-073.
func TestNextHops(t *testing.T) {
	variants := []struct {
		name               string
		nodeASN, routerASN uint32
	}{
		{"eBGP", 64501, 64500},
		{"eBGP with a 4-byte ASN", 4200000001, 64500},
		{"iBGP", 64500, 64500},
	}
	forRouters(t, func(t *testing.T, kind string) {
		for _, v := range variants {
			t.Run(v.name, func(t *testing.T) {
				t.Parallel()
				l := newLab(t, 2)
				_, err := l.StartRouter(t.Context(), kind, lab.Edit{"64501", strconv.FormatUint(uint64(v.nodeASN), 10)})
				must(t, err)
				for _, n := range l.Nodes {
					p := peering(n)
					p.NodeASN, p.RouterASN = v.nodeASN, v.routerASN
					must(t, n.Start(t.Context(), n.Config(p)))
				}
				for _, n := range l.Nodes {
					for pool, hop := range map[string]string{lab.Pool4(n.Number): lab.Node4(n.Number), lab.Pool6(n.Number): lab.Node6(n.Number)} {
						prefix := netip.MustParsePrefix(pool)
						route, err := l.AwaitRoute(within(t, 20*time.Second), prefix)
						must(t, err)
						got := route.Hops()
						linkLocal := kind == "frr" && len(got) == 1 && got[0].IsLinkLocalUnicast() // which FRR prefers
						if len(got) != 1 || got[0].String() != hop && !linkLocal {
							t.Errorf("%s via %v, want %s", pool, got, hop)
						}
					}
				}
			})
		}
	})
}

// A node process that is killed takes nothing with it, and finds everything when it comes back. I02, I03, B-020.
func TestKillAndRestart(t *testing.T) {
	forRouters(t, func(t *testing.T, kind string) {
		l := newLab(t, 2)
		startAll(t, l, kind)
		n := l.Nodes[0]
		var pods []*lab.Pod
		var results []lab.Result
		for i := range 5 {
			p, r := attach(t, n, "p"+strconv.Itoa(i))
			pods, results = append(pods, p), append(results, r)
		}
		var stops []func() (lab.Loss, error)
		probe := func(from lab.NS, to netip.Addr) {
			stop, err := lab.Probe(from, to)
			must(t, err)
			stops = append(stops, stop)
		}
		for _, six := range []bool{true, false} {
			_, err := lab.Ping(within(t, time.Second), l.Client, results[0].Addr(six))
			must(t, err)
			probe(l.Client, results[0].Addr(six))
			probe(pods[1].NS, results[2].Addr(six))
		}
		before := plumbing(t, n, pods)
		n.Process().Kill()
		// Away for longer than it takes the router to notice.
		if _, err := lab.Ping(within(t, 5*time.Second), pods[3].NS, results[4].Addr(true)); err != nil {
			t.Error(err)
		}
		select {
		case <-time.After(2 * time.Second):
		case <-t.Context().Done():
		}
		must(t, n.Restart(t.Context()))
		awaitPools(t, l, n)
		must(t, lab.WaitFor(within(t, 20*time.Second), "the session", func() bool {
			out, err := n.Gaggle(t.Context(), "peers")
			return err == nil && strings.Contains(out, "Established")
		}))
		// The router ends its graceful restart with our End-of-RIB, which the deferral timer bounds.
		select {
		case <-time.After(3 * time.Second):
		case <-t.Context().Done():
		}
		for _, stop := range stops {
			loss, err := stop()
			must(t, err)
			if loss.Lost > 0 || loss.Sent < 100 {
				t.Errorf("%d of %d packets lost, want none", loss.Lost, loss.Sent)
			}
		}
		if after := plumbing(t, n, pods); before != after {
			t.Errorf("re-plumbed; before:\n%s\nafter:\n%s", before, after)
		}
		if got := podList(t, n); len(got) != len(pods) {
			t.Errorf("%d pods known after the restart, want %d", len(got), len(pods))
		}
		for _, p := range pods {
			must(t, p.Remove(within(t, 10*time.Second)))
		}
		if got := podList(t, n); len(got) != 0 {
			t.Errorf("records left: %+v", got)
		}
	})
}

// plumbing describes links by index and MAC, and routes, of node and pods.
func plumbing(t *testing.T, n *lab.Node, pods []*lab.Pod) string {
	t.Helper()
	snapshot, err := n.NS.Snapshot(t.Context())
	must(t, err)
	for _, p := range pods {
		s, err := p.NS.Snapshot(t.Context())
		must(t, err)
		snapshot += s
	}
	return snapshot
}

// C09, B-017: fifty at once, each within two seconds, no address twice.
func TestParallelAdds(t *testing.T) {
	need(t, "birdc")
	l := newLab(t, 1)
	startAll(t, l, "bird")
	n := l.Nodes[0]
	pods := make([]*lab.Pod, 50)
	for i := range pods {
		var err error
		pods[i], err = n.Pod(t.Context(), "p"+strconv.Itoa(i))
		must(t, err)
	}
	unchanged := snapshot(t, n)
	results := make([]lab.Result, len(pods))
	errs := make([]error, len(pods))
	var wg sync.WaitGroup
	for i, p := range pods {
		wg.Go(func() { results[i], errs[i] = p.Add(t.Context()) })
	}
	wg.Wait()
	must(t, errors.Join(errs...))
	seen := make(map[netip.Addr]bool)
	for _, r := range results {
		for _, ip := range r.IPs {
			if seen[ip.Address.Addr()] {
				t.Errorf("%s is given twice", ip.Address)
			}
			seen[ip.Address.Addr()] = true
		}
		if r.Took > 2*time.Second {
			t.Errorf("an ADD took %v, want 2s at most", r.Took)
		}
	}
	if len(seen) != 2*len(pods) {
		t.Errorf("%d addresses, want %d", len(seen), 2*len(pods))
	}
	for i, p := range pods {
		wg.Go(func() { errs[i] = p.Del(t.Context()) })
	}
	wg.Wait()
	must(t, errors.Join(errs...))
	unchanged()
}

// C10, C29, B-018: no address waits for duplicate address detection, on either end, of either scope.
func TestNothingIsTentative(t *testing.T) {
	need(t, "birdc")
	l := newLab(t, 1)
	startAll(t, l, "bird")
	n := l.Nodes[0]
	var took []time.Duration
	for i := range 20 {
		p, r := attach(t, n, "p"+strconv.Itoa(i))
		for _, ns := range []lab.NS{p.NS, n.NS} {
			out, err := ns.Exec(t.Context(), "ip", "-6", "-o", "addr", "show", "tentative")
			must(t, err)
			if strings.TrimSpace(out) != "" {
				t.Errorf("tentative when ADD returned, in %s:\n%s", ns.Name, out)
			}
		}
		took = append(took, r.Took)
	}
	slices.Sort(took)
	t.Logf("ADD, plugin included: median %v, longest %v", took[len(took)/2], took[len(took)-1])
}

// IPv6-only and IPv4-only pods.
func TestSingleFamily(t *testing.T) {
	need(t, "birdc")
	for families, six := range map[string]bool{"[IPv6]": true, "[IPv4]": false} {
		t.Run(families, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, 1)
			_, err := l.StartRouter(t.Context(), "bird", nil)
			must(t, err)
			n := l.Nodes[0]
			must(t, n.Start(t.Context(), n.Config(lab.Peering{Over4: true, Families: families})))
			awaitPools(t, l, n)
			p, r := attach(t, n, "a")
			if len(r.IPs) != 1 || r.IPs[0].Address.Addr().Is6() != six {
				t.Fatalf("addresses %v, want one of the family", r.IPs)
			}
			_, err = lab.Ping(within(t, time.Second), l.Client, r.IPs[0].Address.Addr())
			must(t, err)
			must(t, p.Remove(t.Context()))
		})
	}
}
