package node_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/cni"
	"github.com/gaggle-cni/gaggle/cni/wire"
	"github.com/gaggle-cni/gaggle/node"
)

func TestAddRoutesAnnouncesAndAnswers(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	r, err := w.add(1)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.IPs) != 2 || !r.IPs[0].Address.Addr().Is6() || r.IPs[0].Gateway != node.Gateway6 || r.IPs[1].Gateway != node.Gateway4 {
		t.Errorf("IPs = %v, want IPv6 first, then IPv4, with the veth's gateways", r.IPs)
	}
	if r.MTU != 1400 {
		t.Errorf("MTU = %d, want the uplink's 1400", r.MTU) // C19
	}
	w.check(map[int]bool{1: true})

	// C03: a repeat returns the same and changes nothing.
	before := w.outside()
	again, err := w.add(1)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, again, cmpOptions()...); diff != "" {
		t.Errorf("second ADD (-first +second):\n%s", diff)
	}
	if diff := cmp.Diff(before, w.outside(), cmpOptions()...); diff != "" {
		t.Errorf("second ADD changed something:\n%s", diff)
	}

	// D01, B-008: a DEL can be repeated.
	for range 3 {
		if err := w.del(1); err != nil {
			t.Errorf("Del() = %v", err)
		}
	}
	w.check(nil)
}

// Whatever step of an ADD or DEL is the last before the process dies, the next start finds its way: C04, C05, B-001.
func TestCrashAtEveryStep(t *testing.T) {
	for _, op := range []string{"add", "del"} {
		for n := 0; ; n++ {
			w := newWorld(t, testConfig())
			w.start()
			if _, err := w.add(1); err != nil { // a bystander
				t.Fatal(err)
			}
			if op == "del" {
				if _, err := w.add(2); err != nil {
					t.Fatal(err)
				}
			}
			w.fuse.Arm(n)
			// What the dying process answers reaches nobody.
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			if op == "add" {
				_, _ = w.agent.Add(ctx, request(2))
			} else {
				_ = w.agent.Del(ctx, request(2))
			}
			cancel()
			w.kill()
			died, steps := w.fuse.Dead()
			t.Run(fmt.Sprintf("%s/%d", op, n), func(t *testing.T) {
				w.t = t
				w.start()
				live := map[int]bool{1: true}
				for _, a := range w.db.All() {
					if a.ID.ContainerID == "c2" {
						live[2] = true // committed, or not yet retired: a whole attachment
					}
				}
				w.check(live)
				// The runtime's next steps are a DEL and a new ADD.
				if err := w.del(2); err != nil {
					t.Errorf("Del() after %q = %v", steps, err)
				}
				w.check(map[int]bool{1: true})
				if _, err := w.add(2); err != nil {
					t.Errorf("Add() after %q = %v", steps, err)
				}
				w.check(map[int]bool{1: true, 2: true})
			})
			if !died {
				if n < 4 {
					t.Fatalf("%s took %d steps only: %q", op, n, steps)
				}
				break // ran to its end
			}
		}
	}
}

// Random histories of ADD, DEL, restarts and crashes leave what a node would have that had only ever made the attachments
// that are left.
func TestRestartEqualsIncremental(t *testing.T) {
	for round := range 30 {
		seed := rand.Uint64()
		t.Run(fmt.Sprintf("%d/seed=%d", round, seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			w := newWorld(t, testConfig())
			w.start()
			live := make(map[int]bool)
			for range 60 {
				n := r.IntN(12)
				switch r.IntN(8) {
				case 0: // an orderly restart
					w.kill()
					w.start()
				case 1: // a crash somewhere in an operation
					w.fuse.Arm(r.IntN(8))
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
					if r.IntN(2) == 0 {
						_, _ = w.agent.Add(ctx, request(n))
					} else {
						_ = w.agent.Del(ctx, request(n))
					}
					cancel()
					w.kill()
					w.start()
					live = w.recorded()
				case 2, 3, 4:
					if err := w.del(n); err != nil {
						t.Fatalf("Del(%d) = %v", n, err)
					}
					delete(live, n)
				default:
					if _, err := w.add(n); err != nil {
						t.Fatalf("Add(%d) = %v", n, err)
					}
					live[n] = true
				}
			}
			w.check(live)
			incremental := w.outside()
			w.kill()
			w.start()
			if diff := cmp.Diff(incremental, w.outside(), cmpOptions()...); diff != "" {
				t.Errorf("restart (-before +after):\n%s", diff)
			}
		})
	}
}

func (w *world) recorded() map[int]bool {
	live := make(map[int]bool)
	for _, a := range w.db.All() {
		var n int
		_, _ = fmt.Sscanf(a.ID.ContainerID, "c%d", &n)
		live[n] = true
	}
	return live
}

// C05: whatever an ADD fails of, nothing of it is left.
func TestFailedAddLeavesNothing(t *testing.T) {
	boom := errors.New("boom")
	tests := []struct {
		name string
		set  func(w *world)
		req  func(r *cni.Request)
		code uint
		text string
	}{
		{"attach", func(w *world) { w.datapath.FailAttach = func(node.Attachment) error { return boom } }, nil, wire.CodeKernel, "boom"},
		{"interface exists", func(w *world) {
			w.datapath.FailAttach = func(node.Attachment) error { return node.ErrInterfaceExists }
		}, nil, wire.CodeInterfaceExists, "exists"}, // C02
		{"route", func(w *world) {
			w.routes.Fail = func(op string, p netip.Prefix) error {
				if op == "put" && p.IsSingleIP() {
					return boom
				}
				return nil
			}
		}, nil, wire.CodeKernel, "boom"},
		{"source check", func(w *world) {
			w.sources.SetFail(func(op string, _ node.LinkName) error {
				if op == "put" {
					return boom
				}
				return nil
			})
		}, nil, wire.CodeKernel, "boom"},
		{"bad annotation", nil, func(r *cni.Request) {
			r.Conf.Annotations = map[string]string{"gaggle.dev/ipv4": "maybe"}
		}, wire.CodeAnnotation, `gaggle.dev/ipv4: "maybe"`},
		{"unknown annotation", nil, func(r *cni.Request) {
			r.Conf.Annotations = map[string]string{"gaggle.dev/adresses": "10.0.0.1"}
		}, wire.CodeAnnotation, "unknown"},
		{"no family", nil, func(r *cni.Request) {
			r.Conf.Annotations = map[string]string{"gaggle.dev/ipv4": "false", "gaggle.dev/ipv6": "false"}
		}, wire.CodeNoFamily, "neither"},
		// C42: dual-stack is all or nothing.
		{"one family exhausted", func(w *world) { fill(w, "10.1.0.0/29") }, nil, wire.CodeExhausted, "no free address"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			config := testConfig()
			if tt.code == wire.CodeExhausted {
				config.Pools[1].Prefix = netip.MustParsePrefix("10.1.0.0/29")
			}
			w := newWorld(t, config)
			w.start()
			if tt.set != nil {
				tt.set(w)
			}
			before, records := w.outside(), len(w.db.All())
			req := request(99)
			if tt.req != nil {
				tt.req(&req)
			}
			_, err := w.agent.Add(t.Context(), req)
			e, ok := errors.AsType[*cni.Error](err)
			if !ok || e.Code != tt.code || !strings.Contains(e.Msg, tt.text) || !strings.Contains(e.Msg, "ns/p99") {
				t.Errorf("Add() = %v, want code %d with %q and the pod's name", err, tt.code, tt.text)
			}
			if diff := cmp.Diff(before, w.outside(), cmpOptions()...); diff != "" {
				t.Errorf("left behind:\n%s", diff)
			}
			if got := len(w.db.All()); got != records {
				t.Errorf("%d records, want %d", got, records)
			}
		})
	}
}

func fill(w *world, prefix string) {
	w.t.Helper()
	for n := range 1<<(32-netip.MustParsePrefix(prefix).Bits()) - 2 {
		if _, err := w.add(n); err != nil {
			w.t.Fatal(err)
		}
	}
}

// C06: a caller that has gone gets everything undone, although its context has ended.
func TestCallerGone(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	ctx, cancel := context.WithCancel(t.Context())
	w.datapath.FailAttach = func(node.Attachment) error { cancel(); return nil }
	if _, err := w.agent.Add(ctx, request(1)); err == nil {
		t.Error("Add() succeeded for nobody")
	}
	w.check(nil)
}

// C09, C47
func TestParallelAdds(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	var wg sync.WaitGroup
	live := make(map[int]bool)
	for n := range 50 {
		live[n] = true
		wg.Go(func() {
			if _, err := w.add(n); err != nil {
				t.Errorf("Add(%d) = %v", n, err)
			}
		})
	}
	wg.Wait()
	w.check(live)
	for n := range 50 {
		wg.Go(func() {
			if err := w.del(n); err != nil {
				t.Errorf("Del(%d) = %v", n, err)
			}
		})
	}
	wg.Wait()
	w.check(nil)
}

// D07, B-015: the DEL of an old sandbox leaves the new one of the same pod alone. C11, J08.
func TestLateDelOfOldSandbox(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	first, second := request(1), request(1)
	second.ID.ContainerID = "c2"
	for _, r := range []cni.Request{first, second} {
		if _, err := w.agent.Add(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.agent.Del(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	w.check(map[int]bool{2: true})
}

// A route that cannot be made is not announced; others are.
func TestAnnouncementWaitsForItsRoute(t *testing.T) {
	config := testConfig()
	w := newWorld(t, config)
	bad := config.Pools[0].Prefix
	w.routes.Fail = func(op string, p netip.Prefix) error {
		if op == "put" && p == bad {
			return errors.New("no")
		}
		return nil
	}
	w.start()
	got := w.announced.Items()
	if _, ok := got[bad]; ok || len(got) != 1 {
		t.Errorf("announced %v, want only %v", got, config.Pools[1].Prefix)
	}
}

// Unknown is not empty: when something cannot be observed, nothing is pruned.
func TestNothingIsPrunedBlindly(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	if _, err := w.add(1); err != nil {
		t.Fatal(err)
	}
	w.sessions.Set(nil, errors.New("speaker does not answer"))
	before := w.outside()
	w.agent.Doubt()
	p, err := w.agent.Settle(t.Context())
	if err != nil || p.Err == nil {
		t.Fatalf("Settle() = %v, %v, want a pass that failed", p.Err, err)
	}
	if diff := cmp.Diff(before, w.outside(), cmpOptions()...); diff != "" {
		t.Errorf("changed:\n%s", diff)
	}
	// K16: a CNI call does not succeed on the strength of a pass that saw nothing, and leaves nothing.
	if _, err := w.add(2); err == nil {
		t.Error("Add() = nil, want an error")
	}
	w.sessions.Set(nil, nil)
	w.check(map[int]bool{1: true})
}

// What somebody removes behind our back is back after a doubt (E09, B-030), and what is foreign to the plan goes.
func TestDoubtRepairs(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	if _, err := w.add(1); err != nil {
		t.Fatal(err)
	}
	w.routes.Set(map[netip.Prefix]node.Route{netip.MustParsePrefix("10.1.0.77/32"): {Kind: node.RouteHost, Link: "gone"}})
	w.announced.Set(map[netip.Prefix]bgp.Announcement{netip.MustParsePrefix("192.0.2.0/24"): {}})
	w.agent.Doubt()
	if _, err := w.agent.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.check(map[int]bool{1: true})
}

func TestStoppedAgentAnswers(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	w.kill()
	_, err := w.add(1)
	if e, ok := errors.AsType[*cni.Error](err); !ok || e.Code != wire.CodeTryAgainLater { // I17
		t.Errorf("Add() = %v, want code 11", err)
	}
	if n := len(w.db.All()); n != 0 {
		t.Errorf("%d records, want none", n)
	}
}
