package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// faultyDir is where in bin the build is that can be made to fail (cmd/gaggle/faults.go).
const faultyDir = "faults"

// A faultyNode can be made to fail at any step that changes a record, the kernel or the speaker.
type faultyNode struct {
	*lab.Node
	lab   *lab.Lab
	path  string
	armed int
}

func newFaultyNode(t *testing.T) *faultyNode {
	t.Helper()
	need(t, "birdc", "nft")
	t.Parallel()
	l := newLabOf(t, 1, filepath.Join(bin, faultyDir))
	_, err := l.StartRouter(t.Context(), "bird", nil)
	must(t, err)
	n := &faultyNode{Node: l.Nodes[0], lab: l, path: filepath.Join(l.Dir(), "faults")}
	n.Wrap = []string{"env", "GAGGLE_FAULTS=" + n.path}
	must(t, n.Start(t.Context(), n.Config(lab.Peering{Over4: true})))
	return n
}

// arm makes the next step of that number go wrong.
func (n *faultyNode) arm(t *testing.T, kind string, step int) {
	t.Helper()
	n.disarm()
	n.armed++
	must(t, os.WriteFile(n.path+".new", fmt.Appendf(nil, "%s %d, time %d", kind, step, n.armed), 0o600))
	must(t, os.Rename(n.path+".new", n.path))
}

// addUnharmed attaches a pod while what is armed waits for what comes then.
func (n *faultyNode) addUnharmed(t *testing.T, p *lab.Pod) {
	t.Helper()
	text, err := os.ReadFile(n.path)
	must(t, err)
	n.disarm()
	_, err = p.Add(within(t, 20*time.Second))
	must(t, err)
	must(t, os.WriteFile(n.path, text, 0o600))
}

func (n *faultyNode) disarm() {
	_ = os.Remove(n.path) // it may not be there
	_ = os.Remove(n.path + ".hit")
}

// hit returns the step that went wrong; nothing if there were not so many.
func (n *faultyNode) hit() string {
	op, _ := os.ReadFile(n.path + ".hit")
	return string(op)
}

// revive starts the process again if it died.
func (n *faultyNode) revive(t *testing.T) {
	t.Helper()
	n.disarm()
	if err := lab.WaitFor(within(t, 5*time.Second), "the end", n.Process().Ended); err != nil {
		t.Fatalf("%v; its last words:\n%s", err, n.Process().Tail(20))
	}
	must(t, n.Restart(t.Context()))
}

// eachStep makes every step of what do does go wrong, one at a time, and calls then after each.
func (n *faultyNode) eachStep(t *testing.T, kind string, do func(p *lab.Pod), then func(p *lab.Pod, step int, op string)) (steps map[string]bool) {
	t.Helper()
	steps = make(map[string]bool)
	for step := 1; ; step++ {
		p, err := n.Pod(t.Context(), fmt.Sprintf("%s%d", kind, step))
		must(t, err)
		n.arm(t, kind, step)
		do(p)
		op := n.hit()
		n.disarm()
		then(p, step, op)
		must(t, n.lab.RemoveNamespace(p.NS))
		if t.Failed() {
			t.Fatalf("at step %d, %q", step, op)
		}
		if op == "" {
			return steps
		}
		steps[op] = true
	}
}

// covers makes sure that the steps were what they are thought to be.
func covers(t *testing.T, steps map[string]bool, want ...string) {
	t.Helper()
	for _, op := range want {
		if !steps[op] {
			t.Errorf("no fault at %q; there were %v", op, steps)
		}
	}
}

// whole attaches a pod that may be attached already, looks at it as a runtime would, and detaches it.
func (n *faultyNode) whole(t *testing.T, p *lab.Pod) {
	t.Helper()
	out, err := p.Call(within(t, 20*time.Second), "ADD", "1.0.0")
	must(t, err)
	_, err = p.CallWith(within(t, 20*time.Second), "CHECK", "1.0.0", map[string]any{"prevResult": json.RawMessage(out)})
	must(t, err)
	if got := podList(t, n.Node); len(got) != 1 || len(got[0].Addresses) != 2 {
		t.Errorf("attached are %+v, want one pod with two addresses", got)
	}
	must(t, p.Del(within(t, 20*time.Second)))
}

// nothing makes sure that no record is left.
func (n *faultyNode) nothing(t *testing.T) {
	t.Helper()
	if got := podList(t, n.Node); len(got) != 0 {
		t.Errorf("records left: %+v", got)
	}
}

// A death of the node process at any step of an ADD leaves nothing that the next process does not put right: the same ADD then
// works, with one address of each family in all, and so does a DEL instead. C04, C05, I01, I11. F12.
func TestDeathAtEachStepOfAdd(t *testing.T) {
	n := newFaultyNode(t)
	unchanged := snapshot(t, n.Node)
	steps := n.eachStep(t, "kill", func(p *lab.Pod) {
		_, _ = p.Add(within(t, 20*time.Second)) // how it ends depends on the step
	}, func(p *lab.Pod, step int, op string) {
		if op != "" {
			n.revive(t)
		}
		if step%2 == 1 {
			n.whole(t, p)
		} else {
			must(t, p.Del(within(t, 20*time.Second)))
		}
		n.nothing(t)
		unchanged()
	})
	covers(t, steps, "reserve", "reserve done", "link add", "link alias", "sysctl", "address add", "neighbour set", "route add",
		"commit", "commit done", "route put", "route put done")
}

// The same for a DEL, which the plugin keeps for the next process. D05, D10.
func TestDeathAtEachStepOfDel(t *testing.T) {
	n := newFaultyNode(t)
	unchanged := snapshot(t, n.Node)
	steps := n.eachStep(t, "kill", func(p *lab.Pod) {
		n.addUnharmed(t, p)
		must(t, p.Del(within(t, 20*time.Second)))
	}, func(p *lab.Pod, step int, op string) {
		if op != "" {
			n.revive(t)
		}
		n.nothing(t)
		if step%2 == 1 {
			must(t, p.Del(within(t, 20*time.Second)))
		}
		unchanged()
	})
	covers(t, steps, "retire", "retire done", "route delete", "link delete", "release", "release done")
}

// The same for the start itself: however often it is cut off, the pod that was there keeps what it has, and the ADD that was
// cut off before is undone. I02, I03, B-128.
func TestDeathAtEachStepOfStart(t *testing.T) {
	n := newFaultyNode(t)
	p, r := attach(t, n.Node, "lives")
	awaitPools(t, n.lab, n.Node)
	unchanged := snapshot(t, n.Node)
	half, err := n.Pod(t.Context(), "half")
	must(t, err)
	steps := make(map[string]bool)
	for step := 1; ; step++ {
		n.arm(t, "kill", 8) // in the middle of an ADD
		if _, err := half.Add(within(t, 20*time.Second)); err == nil {
			t.Fatal("the ADD was not cut off")
		}
		must(t, lab.WaitFor(within(t, 5*time.Second), "the end", n.Process().Ended))
		n.arm(t, "kill", step)
		err := n.Restart(t.Context())
		op := n.hit()
		if (err == nil) != (op == "") {
			t.Fatalf("step %d, %q: start: %v", step, op, err)
		}
		if op == "" {
			break
		}
		steps[op] = true
		n.disarm()
		must(t, n.Restart(t.Context()))
		unchanged()
		if got := podList(t, n.Node); len(got) != 1 || got[0].Name != "lives" {
			t.Fatalf("step %d, %q: attached are %+v", step, op, got)
		}
	}
	n.disarm()
	covers(t, steps, "link delete", "release", "announcement put", "peer put")
	_, err = lab.Ping(within(t, 20*time.Second), n.lab.Client, r.Addr(true))
	must(t, err)
	must(t, p.Del(t.Context()))
}

// A change that fails, at any step of an ADD: the ADD says so and leaves nothing, or it was not the pod's own trouble. A change
// that fails in a DEL is made good by the next. C05, B24.
func TestFailureAtEachStep(t *testing.T) {
	n := newFaultyNode(t)
	unchanged := snapshot(t, n.Node)
	var result error
	then := func(p *lab.Pod, step int, op string) {
		if e, ok := errors.AsType[*lab.CNIError](result); result != nil && (!ok || e.Code < 100) {
			t.Errorf("%q fails with %v, want an error of our own", op, result)
		}
		must(t, p.Del(within(t, 20*time.Second)))
		n.nothing(t)
		if step%4 == 1 {
			unchanged()
		}
	}
	steps := n.eachStep(t, "fail", func(p *lab.Pod) {
		if _, result = p.Add(within(t, 20*time.Second)); result != nil {
			n.nothing(t)
		}
	}, then)
	covers(t, steps, "reserve", "link add", "commit", "route put")
	unchanged()

	steps = n.eachStep(t, "fail", func(p *lab.Pod) {
		n.addUnharmed(t, p)
		result = p.Del(within(t, 20*time.Second))
	}, then)
	covers(t, steps, "retire", "link delete", "release")
	unchanged()
}

// A runtime that loses patience kills the plugin and deletes the container at once, while the ADD goes on in the node process:
// whatever step it hangs at, the DEL waits for it, and wins. C06, C07, D11, B-001.
func TestImpatienceAtEachStep(t *testing.T) {
	n := newFaultyNode(t)
	unchanged := snapshot(t, n.Node)
	steps := n.eachStep(t, "delay", func(p *lab.Pod) {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := p.Add(ctx)
		if op := n.hit(); err == nil && (op == "reserve" || op == "link add" || op == "commit") {
			t.Errorf("%q holds up nobody", op)
		}
	}, func(p *lab.Pod, _ int, _ string) {
		must(t, p.Del(within(t, 20*time.Second)))
		n.nothing(t)
	})
	covers(t, steps, "reserve", "link add", "commit", "commit done", "route put")
	unchanged()
}
