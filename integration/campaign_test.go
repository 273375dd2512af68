package integration

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// The campaigns run in a short form with the other tests; make campaign runs them in full.
var (
	cycles = flag.Int("cycles", 40, "`NUMBER` of cycles of each campaign")
	seed   = flag.Uint64("seed", uint64(time.Now().UnixNano()), "of the random choices")
)

// tracked makes the node's kernel track connections, as on a node with kube-proxy.
func tracked(t *testing.T, n *lab.Node) {
	t.Helper()
	for _, args := range []string{
		"add table inet theirs",
		"add chain inet theirs forward { type filter hook forward priority 0; }",
		"add rule inet theirs forward ct state new accept",
	} {
		_, err := n.NS.Exec(t.Context(), append([]string{"nft"}, strings.Fields(args)...)...)
		must(t, err)
	}
}

// forgotten makes sure that no connection with an address of the pools is remembered.
func forgotten(t *testing.T, n *lab.Node, known bool) {
	t.Helper()
	addrs, err := n.NS.Connections()
	must(t, err)
	seen := false
	for a := range addrs {
		for _, pool := range []string{lab.Pool4(n.Number), lab.Pool6(n.Number)} {
			seen = seen || netip.MustParsePrefix(pool).Contains(a)
		}
	}
	if seen != known {
		t.Errorf("connections with pods are remembered: %v, want %v: %v", seen, known, addrs)
	}
}

func threads(t *testing.T, n *lab.Node) int {
	t.Helper()
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", n.Process().PID()))
	must(t, err)
	return len(tasks)
}

// Cycles of ADD and DEL leave the node as it was, and the process with the descriptors and threads that it had. Connections
// through the node are forgotten. C25, C38, D18, B-099, B-022.
func TestCleanCycles(t *testing.T) {
	l, n := oneNode(t, lab.Peering{})
	awaitPools(t, l, n)
	tracked(t, n)
	p, err := n.Pod(t.Context(), "a")
	must(t, err)
	var r lab.Result
	cycle := func() {
		t.Helper()
		r, err = p.Add(within(t, 20*time.Second))
		must(t, err)
		must(t, p.Del(within(t, 20*time.Second)))
	}
	for range 10 { // what stays open stays from now on
		cycle()
	}
	unchanged := snapshot(t, n)
	fds, tasks := openDescriptors(t, n), threads(t, n)
	size, err := os.Stat(filepath.Join(n.RunDir, "state.db"))
	must(t, err)
	for range *cycles {
		cycle()
	}
	unchanged()
	// The process keeps up to 16 netlink sockets, as many as once were in use together. A leak would be one a cycle.
	if got := openDescriptors(t, n); got > fds+16 {
		t.Errorf("%d descriptors, before %d", got, fds)
	}
	if got := threads(t, n); got > tasks+10 { // the Go runtime starts some when others are in system calls
		t.Errorf("%d threads, before %d", got, tasks)
	}
	if now, err := os.Stat(filepath.Join(n.RunDir, "state.db")); err != nil || now.Size() != size.Size() {
		t.Errorf("the state file has %d bytes, before %d, %v", now.Size(), size.Size(), err)
	}

	r, err = p.Add(within(t, 20*time.Second))
	must(t, err)
	for _, six := range []bool{true, false} {
		_, err = lab.Ping(within(t, 20*time.Second), l.Client, r.Addr(six))
		must(t, err)
	}
	forgotten(t, n, true)
	must(t, p.Del(within(t, 20*time.Second)))
	forgotten(t, n, false)
	unchanged()
}

// ADDs and DELs of several containers at once, while now the plugin and now the node process are killed at random. In the end
// nothing is left of what went, what lives works, and no address was given twice. C04, C05, C06, D18, I11, B-001.
func TestRandomKills(t *testing.T) {
	l, n := oneNodeOf(t, lab.Peering{}, filepath.Join(bin, quickDir))
	awaitPools(t, l, n)
	tracked(t, n)
	unchanged := snapshot(t, n)
	t.Logf("seed %d", *seed)
	c := &campaign{t: t, n: n, random: rand.New(rand.NewPCG(*seed, 0)), live: make(map[string]lab.Result)}
	for i := range 6 {
		p, err := n.Pod(t.Context(), fmt.Sprintf("p%d", i))
		must(t, err)
		c.pods = append(c.pods, p)
	}
	for cycle := range *cycles {
		c.cycle()
		if cycle%10 == 9 {
			c.agree()
		}
		if t.Failed() {
			t.Fatalf("in cycle %d", cycle)
		}
	}
	c.agree()
	for _, r := range c.live {
		_, err := lab.Ping(within(t, 20*time.Second), l.Client, r.Addr(true))
		must(t, err)
	}
	for _, p := range c.pods {
		must(t, p.Del(within(t, 20*time.Second)))
	}
	if got := podList(t, n); len(got) != 0 {
		t.Errorf("records left: %+v", got)
	}
	if left, _ := os.ReadDir(filepath.Join(n.RunDir, "deletes")); len(left) != 0 {
		t.Errorf("deletions left: %v", left)
	}
	forgotten(t, n, false)
	unchanged()
	t.Logf("%d calls, of which %d succeeded; killed %d plugins and %d node processes", c.calls, c.succeeded, c.plugins, c.processes)
	if c.succeeded == 0 || c.plugins == 0 || c.processes == 0 {
		t.Error("the campaign did not do what it is for")
	}
}

// A campaign knows what a runtime would know.
type campaign struct {
	t      *testing.T
	n      *lab.Node
	random *rand.Rand
	pods   []*lab.Pod
	live   map[string]lab.Result // by the pod's name

	calls, succeeded, plugins, processes int
}

// cycle makes calls for three containers at once, of which one or the node process is killed meanwhile.
func (c *campaign) cycle() {
	c.t.Helper()
	type outcome struct {
		p      *lab.Pod
		add    bool
		result lab.Result
		err    error
	}
	var outcomes []outcome
	for _, i := range c.random.Perm(len(c.pods))[:3] {
		_, attached := c.live[c.pods[i].Name]
		outcomes = append(outcomes, outcome{p: c.pods[i], add: !attached})
	}
	victim := c.random.IntN(2 * len(outcomes)) // from the number of calls on: the node process
	after := time.Duration(c.random.IntN(40)) * time.Millisecond
	var calls sync.WaitGroup
	for i := range outcomes {
		o := &outcomes[i]
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(c.t.Context(), 20*time.Second)
			defer cancel()
			if i == victim {
				ctx, cancel = context.WithTimeout(ctx, after)
				defer cancel()
			}
			if o.add {
				o.result, o.err = o.p.Add(ctx)
			} else {
				o.err = o.p.Del(ctx)
			}
		})
	}
	if victim >= len(outcomes) {
		time.Sleep(after)
		c.n.Process().Kill()
		must(c.t, c.n.Restart(c.t.Context())) // while the calls wait
		c.processes++
	} else {
		c.plugins++
	}
	calls.Wait()
	for _, o := range outcomes {
		c.calls++
		if o.err == nil {
			c.succeeded++
		}
		c.settle(o.p, o.add, o.result, o.err)
	}
}

// settle does what a runtime does after a call: when an ADD failed it deletes, and a DEL that failed it repeats.
func (c *campaign) settle(p *lab.Pod, add bool, r lab.Result, err error) {
	c.t.Helper()
	switch {
	case add && err == nil:
		c.live[p.Name] = r
	case err != nil:
		must(c.t, p.Del(within(c.t, 20*time.Second)))
		delete(c.live, p.Name)
	default:
		delete(c.live, p.Name)
	}
}

// agree compares the records with what the runtime knows.
func (c *campaign) agree() {
	c.t.Helper()
	owner := make(map[netip.Addr]string)
	var names []string
	for _, rec := range podList(c.t, c.n) {
		names = append(names, rec.Name)
		for _, a := range rec.Addresses {
			if other, twice := owner[a]; twice {
				c.t.Errorf("%s is given to %s and %s", a, other, rec.Name)
			}
			owner[a] = rec.Name
		}
	}
	var want []string
	for name, r := range c.live {
		want = append(want, name)
		for _, six := range []bool{true, false} {
			if owner[r.Addr(six)] != name {
				c.t.Errorf("%s has %s by its result, which the records give to %q", name, r.Addr(six), owner[r.Addr(six)])
			}
		}
	}
	slices.Sort(names)
	slices.Sort(want)
	if !slices.Equal(names, want) {
		c.t.Errorf("attached are %v, want %v", names, want)
	}
}

// maxResident is how much memory the node process may have with a node full of pods.
const maxResident = 60 << 10 // KiB

// With 250 pods, as many as a large node has, the process stays small.
func TestMemory(t *testing.T) {
	_, n := oneNodeOf(t, lab.Peering{Pool4: "10.244.0.0/22"}, filepath.Join(bin, quickDir))
	for i := range 250 {
		attach(t, n, fmt.Sprintf("p%d", i))
	}
	resident, err := n.Process().Resident()
	if err != nil || resident > maxResident {
		t.Errorf("%d KiB are resident, want %d at most, %v", resident, maxResident, err)
	}
	t.Logf("%d KiB are resident", resident)
}
