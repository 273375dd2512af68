package datapath_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gaggle-cni/gaggle/integration/netnstest"
	"github.com/gaggle-cni/gaggle/node"
)

// C05: whichever single change of the kernel fails, Attach leaves nothing in the node or the container, and works the next
// time. The same holds for each change of Detach: what is left goes with the next.
func TestEachChangeFails(t *testing.T) {
	w := newWorld(t)
	a := attachment(1, pod6, pod4)
	pod := netnstest.New(t)
	nothing := func() string { return fmt.Sprint(w.describe(w.ns)) + fmt.Sprint(w.describe(pod)) }
	w.wired(w.d.Attach(t.Context(), pod, a)) // IPv6 is on in the container from now on
	w.must(w.d.Detach(t.Context(), a))
	before := nothing()
	attach := func() error { _, err := w.d.Attach(t.Context(), pod, a); return err }
	detach := func() error { return w.d.Detach(t.Context(), a) }
	failed := errors.New("fault")

	ops := make(map[string]int)
	for n, hit := 1, true; hit; n++ {
		op := ""
		hit = w.failing(n, failed, &op, func() {
			switch err := attach(); {
			case op == "":
				w.must(err) // it has fewer changes
			case op != "sysctl" && !errors.Is(err, failed):
				t.Errorf("change %d, %s: Attach() = %v, want the fault", n, op, err)
			}
		})
		if hit {
			ops[op]++
			if diff := cmp.Diff(before, nothing()); diff != "" {
				t.Errorf("change %d, %s: left behind (-before +after):\n%s", n, op, diff)
			}
		}
		w.wired(w.d.Attach(t.Context(), pod, a))
		w.must(detach())
	}
	for _, op := range []string{
		"link add", "link alias", "link addrgenmode", "link up", "address add", "neighbour set", "route add", "sysctl",
	} {
		if ops[op] == 0 {
			t.Errorf("%s was never made to fail: %v", op, ops)
		}
	}

	for n, hit := 1, true; hit; n++ {
		w.must(attach())
		op := ""
		hit = w.failing(n, failed, &op, func() {
			if err := detach(); op != "" && !errors.Is(err, failed) {
				t.Errorf("change %d, %s: Detach() = %v, want the fault", n, op, err)
			}
		})
		w.must(detach())
		if diff := cmp.Diff(before, nothing()); diff != "" {
			t.Errorf("change %d, %s: left behind (-before +after):\n%s", n, op, diff)
		}
	}
}

// failing makes the n-th change while do runs fail, tells in op which that was, and reports whether there were so many.
func (w *world) failing(n int, fault error, op *string, do func()) bool {
	count := 0
	before := func(what string) error {
		if count++; count != n {
			return nil
		}
		*op = what
		return fault
	}
	w.before.Store(&before)
	defer w.before.Store(nil)
	do()
	return count >= n
}

// The same for routes: a change that fails is told, and the next one makes good.
func TestEachRouteChangeFails(t *testing.T) {
	w := newWorld(t)
	w.uplink()
	a := attachment(1, pod6, pod4)
	w.attach(a)
	routes := w.d.Routes()
	fault := errors.New("fault")
	for _, step := range []func() error{
		func() error {
			return routes.Put(t.Context(), host(pod6), node.Route{Kind: node.RouteHost, Link: a.HostIf})
		},
		func() error { return routes.Put(t.Context(), host(pod6), node.Route{Kind: node.RouteAggregate}) },
		func() error { return routes.Delete(t.Context(), host(pod6)) },
	} {
		for n, hit := 1, true; hit; n++ {
			op := ""
			hit = w.failing(n, fault, &op, func() {
				if err := step(); op != "" && !errors.Is(err, fault) {
					t.Errorf("change %d, %s: %v, want the fault", n, op, err)
				}
			})
		}
		w.must(step())
	}
	if have, err := routes.List(t.Context()); err != nil || len(have) != 0 {
		t.Errorf("routes %v, %v, want none", have, err)
	}
}
