package node_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gaggle-cni/gaggle/node"
)

// minutes lets the agent's own clock-work go on.
func minutes(n int) { time.Sleep(time.Duration(n)*time.Minute + time.Second) }

// F09, F10, B-041, B-042: a container whose namespace has ended without a DEL is collected, once that was seen twice. One whose
// namespace lives is not, although its link is gone, and nothing is while the kernel cannot be seen. F11.
func TestSweepOfRecords(t *testing.T) {
	for _, tt := range []struct {
		name  string
		after func(w *world, lost node.Attachment)
		live  bool
	}{
		{"namespace ended", func(*world, node.Attachment) {}, false},
		{"namespace lives", func(w *world, lost node.Attachment) {
			w.datapath.KeepNamespace(lost.Namespace)
		}, true},
		{"its number is another container's", func(w *world, _ node.Attachment) {
			if _, err := w.add(3); err != nil {
				w.t.Fatal(err)
			}
		}, false},
		{"kernel cannot be seen", func(w *world, _ node.Attachment) { w.datapath.Blind(errors.New("no")) }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, testConfig())
				w.start()
				for n := range 2 {
					if _, err := w.add(n + 1); err != nil {
						t.Fatal(err)
					}
				}
				lost := w.db.All()[0]
				w.datapath.Lose(lost.HostIf)
				tt.after(w, lost)
				records := len(w.db.All())
				minutes(1)
				if got := len(w.db.All()); got != records {
					t.Errorf("after one look: %d records, want %d", got, records)
				}
				minutes(2)
				want := records
				if !tt.live {
					want--
				}
				if got := len(w.db.All()); got != want {
					t.Errorf("after further looks: %d records, want %d", got, want)
				}
				w.kill()
			})
		})
	}
}

// F13, I10, B-004: a link whose record is lost is taken over at the start, so that its address is nobody else's.
func TestAdoption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, testConfig())
		w.start()
		if _, err := w.add(1); err != nil {
			t.Fatal(err)
		}
		before := w.db.All()[0]
		w.kill()
		if err := w.db.Release(before.ID, 0); err != nil {
			t.Fatal(err)
		}
		w.start()
		all := w.db.All()
		if len(all) != 1 || all[0].ID != before.ID || !all[0].Committed || len(all[0].Addrs) != 2 ||
			all[0].Addrs[0] != before.Addrs[0] || all[0].Pools[0] != "six" || all[0].Namespace != before.Namespace {
			t.Errorf("records %+v, want one like %+v", all, before)
		}
		w.check(map[int]bool{1: true})
		if err := w.del(1); err != nil {
			t.Fatal(err)
		}
		w.check(nil)
		w.kill()
	})
}

// A link whose addresses are on record for another container is left alone, and does not keep the process from starting.
func TestAdoptionOfWhatIsOnRecord(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	if _, err := w.add(1); err != nil {
		t.Fatal(err)
	}
	w.kill()
	double := w.db.All()[0]
	double.ID.ContainerID = "double"
	double.HostIf = node.HostIf(double.ID, 0)
	if _, err := w.datapath.Attach(t.Context(), nil, double); err != nil {
		t.Fatal(err)
	}
	w.start()
	if all := w.db.All(); len(all) != 1 || all[0].ID != request(1).ID {
		t.Errorf("records %+v, want the one that was there", all)
	}
	if len(w.datapath.Links()) != 2 {
		t.Errorf("links %v, want both", w.datapath.Links())
	}
}

// What the kernel does not tell of an interface is made up as it was: a second one has no default routes, and the MAC is the one
// that was given.
func TestAdoptionOfASecondInterface(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	req := request(1)
	req.ID.IfName = "net1"
	if _, err := w.agent.Add(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	before := w.db.All()[0]
	w.kill()
	if err := w.db.Release(before.ID, 0); err != nil {
		t.Fatal(err)
	}
	w.datapath.Lose(before.HostIf)
	known := before // as the kernel shows it, once the neighbour is forgotten
	known.NoDefault, known.MAC = false, node.MAC{}
	if _, err := w.datapath.Attach(t.Context(), nil, known); err != nil {
		t.Fatal(err)
	}
	w.start()
	if after := w.db.All()[0]; !after.NoDefault || after.MAC != before.MAC {
		t.Errorf("taken over as %+v, want %+v", after, before)
	}
}

// A namespace's own pool is used to its end, resting addresses too, before one for all.
func TestCoolDownStaysInTheOwnPool(t *testing.T) {
	config := testConfig()
	config.CoolDown = time.Hour
	config.Pools = append(config.Pools, node.Pool{Name: "own", Prefix: netip.MustParsePrefix("10.9.0.0/29"), Namespaces: []string{"ns"}})
	w := newWorld(t, config)
	w.start()
	for n := range 20 {
		r, err := w.add(n)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.IPs[1].Address.Addr(); !config.Pools[2].Prefix.Contains(got) {
			t.Fatalf("pod %d has %s, want one of %s", n, got, config.Pools[2].Prefix)
		}
		if err := w.del(n); err != nil {
			t.Fatal(err)
		}
	}
}

// F13: a link of ours without a record, a name and addresses is nobody's; one with addresses might be somebody's.
func TestLinksOfNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, testConfig())
		w.start()
		if _, err := w.add(1); err != nil {
			t.Fatal(err)
		}
		somebodys := w.db.All()[0]
		somebodys.ID.ContainerID, somebodys.HostIf = "another", "ggl000000000002"
		for _, a := range []node.Attachment{{HostIf: "ggl000000000001"}, somebodys} {
			if _, err := w.datapath.Attach(t.Context(), nil, a); err != nil {
				t.Fatal(err)
			}
		}
		minutes(3)
		links := w.datapath.Links()
		if _, there := links["ggl000000000001"]; there || len(links) != 2 {
			t.Errorf("links %v, want the one with addresses and the attached one", links)
		}
		w.kill()
	})
}

// The process does not serve when it cannot see what is attached.
func TestRecoverWithoutSight(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	w.kill()
	w.datapath.Blind(errors.New("no"))
	if err := w.agent.Recover(t.Context()); err == nil {
		t.Error("Recover() = nil, want an error")
	}
	w.datapath.Blind(nil)
}

// C07: an ADD that came in before a DEL cannot come about after it, in whatever order they are done. One that came in later
// can.
func TestLateAdd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, testConfig())
		w.start()
		early := request(1)
		early.Received = time.Now()
		time.Sleep(time.Millisecond)
		del := request(1)
		del.Received = time.Now()
		if err := w.agent.Del(t.Context(), del); err != nil {
			t.Fatal(err)
		}
		_, err := w.agent.Add(t.Context(), early)
		hasError(t, err, 11, "a later DEL has removed it")
		w.check(nil)

		time.Sleep(time.Millisecond)
		again := request(1)
		again.Received = time.Now()
		if _, err := w.agent.Add(t.Context(), again); err != nil {
			t.Fatal(err)
		}
		w.check(map[int]bool{1: true})
		w.kill()
	})
}

// C06: an ADD whose caller went away at the last moment is undone: nobody would know of it.
func TestAddWithoutACaller(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	ctx, cancel := context.WithCancel(t.Context())
	w.routes.SetFail(func(op string, _ netip.Prefix) error {
		if op == "put" {
			cancel()
		}
		return nil
	})
	if _, err := w.agent.Add(ctx, request(1)); err == nil {
		t.Error("Add() = nil, want an error")
	}
	w.check(nil)
}

// C39: a freed address rests, whoever asks, and is given out again when there is no other, the longest rested first.
func TestCoolDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := testConfig()
		config.CoolDown = time.Minute
		config.Pools[1].Prefix = netip.MustParsePrefix("10.1.0.0/29") // six addresses
		w := newWorld(t, config)
		w.start()
		add := func(n int) string {
			t.Helper()
			r, err := w.add(n)
			if err != nil {
				t.Fatal(err)
			}
			return r.IPs[1].Address.String()
		}
		first := add(1)
		time.Sleep(time.Second)
		if err := w.del(1); err != nil {
			t.Fatal(err)
		}
		second := add(1) // the same container, once more
		if second == first {
			t.Errorf("%s is given again at once", first)
		}
		time.Sleep(time.Second)
		if err := w.del(1); err != nil {
			t.Fatal(err)
		}
		w.kill()
		w.start() // a restart changes nothing
		for n := range 4 {
			if got := add(n + 2); got == first || got == second {
				t.Errorf("%s is given although it rests", got)
			}
		}
		if got := add(6); got != first {
			t.Errorf("the last resort is %s, want %s, which has rested longest", got, first)
		}
		if got := add(7); got != second {
			t.Errorf("the last resort is %s, want %s", got, second)
		}
		_, err := w.add(8)
		hasError(t, err, 101, "no free address")
		w.kill()
	})
}
