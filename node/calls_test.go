package node_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gaggle-cni/gaggle/cni"
	"github.com/gaggle-cni/gaggle/cni/wire"
	"github.com/gaggle-cni/gaggle/node"
)

// C08, D11: an ADD that is stuck holds up nobody but the calls for the same interface. Those wait no longer than they may, and a
// DEL that waits long enough has the last word.
func TestStuckAdd(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	stuck, goOn := make(chan bool), make(chan bool)
	w.datapath.FailAttach = func(a node.Attachment) error {
		if a.ID.ContainerID == "c1" {
			stuck <- true
			<-goOn
		}
		return nil
	}
	added := make(chan error, 1)
	go func() { _, err := w.add(1); added <- err }()
	<-stuck

	var wg sync.WaitGroup
	for n := range 50 {
		wg.Go(func() {
			if _, err := w.add(10 + n); err != nil {
				t.Errorf("Add(%d) beside a stuck one = %v", 10+n, err)
			}
			if err := w.del(10 + n); err != nil {
				t.Errorf("Del(%d) beside a stuck one = %v", 10+n, err)
			}
		})
	}
	wg.Wait()
	if err := w.agent.Ready(t.Context()); err != nil {
		t.Errorf("Ready() beside a stuck ADD = %v", err)
	}
	other := request(1)
	other.ID.IfName = "net1" // C12: another interface of the container is another attachment
	w.datapath.FailAttach = nil
	if _, err := w.agent.Add(t.Context(), other); err != nil {
		t.Errorf("Add() of another interface beside a stuck one = %v", err)
	}
	if err := w.agent.Del(t.Context(), other); err != nil {
		t.Error(err)
	}

	brief, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	hasError(t, w.agent.Del(brief, request(1)), wire.CodeTryAgainLater, "another call for the same interface")
	deleted := make(chan error, 1)
	go func() { deleted <- w.del(1) }()
	close(goOn)
	if err := <-added; err != nil {
		t.Errorf("the ADD that was stuck = %v", err)
	}
	if err := <-deleted; err != nil {
		t.Errorf("the DEL that waited for it = %v", err)
	}
	w.check(nil)
}

// D10: a pod goes in this order: withdrawn, unrouted, unplugged, forgotten. Only then is its address free.
func TestOrderOfDel(t *testing.T) {
	config := testConfig()
	w := newWorld(t, config)
	w.start()
	if _, err := w.add(1); err != nil {
		t.Fatal(err)
	}
	// With its pool gone from the configuration the pod's own prefixes are announced.
	w.kill()
	w.config.Pools[1].Prefix = netip.MustParsePrefix("10.2.0.0/24")
	w.start()
	att := w.db.All()[0]
	w.fuse.Arm(1000)
	if err := w.del(1); err != nil {
		t.Fatal(err)
	}
	_, steps := w.fuse.Dead()
	host := netip.PrefixFrom(att.Addrs[1], 32).String()
	order := []string{"retire " + att.ID.String(), "delete " + host, "delete " + host, "detach " + att.HostIf, "release " + att.ID.String()}
	var got []string
	for _, s := range steps {
		if slices.Contains(order, s) {
			got = append(got, s)
		}
	}
	if !slices.Equal(got, order) {
		t.Errorf("steps %q, want %q among them", steps, order)
	}
	w.check(nil)
}

// B-049, B19, C12: the uid is told on, and decides nothing: a static pod's is not that of its object, an old runtime says none,
// and several sandboxes of a pod have the same.
func TestPodUIDs(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	for n, uid := range []string{"", "3f2a9c0e7d5b41d2a6f0c1e2d3b4a596", "u7", "u7"} {
		req := request(n)
		req.Pod = cni.PodArgs{Namespace: "kube-system", Name: "etcd-node1", UID: uid}
		if _, err := w.agent.Add(t.Context(), req); err != nil {
			t.Errorf("Add() with uid %q = %v", uid, err)
		}
		req.Pod.UID = "another"
		if _, err := w.agent.Add(t.Context(), req); err != nil {
			t.Errorf("the same again with another uid = %v", err)
		}
	}
	w.check(map[int]bool{0: true, 1: true, 2: true, 3: true})
	for n := range 4 {
		req := request(n)
		req.Pod = cni.PodArgs{}
		if err := w.agent.Del(t.Context(), req); err != nil {
			t.Errorf("Del() without the pod's names = %v", err)
		}
	}
	w.check(nil)
}

// G06, B-006: a full pool is no reason to call the node unable, however often its last address comes and goes. What is freed can
// be had at once.
func TestReadyWithAFullPool(t *testing.T) {
	config := testConfig()
	config.Pools[1].Prefix = netip.MustParsePrefix("10.1.0.0/29")
	w := newWorld(t, config)
	w.start()
	fill(w, "10.1.0.0/29")
	for range 5 {
		if _, err := w.add(50); err == nil {
			t.Error("an ADD was served from a full pool")
		}
		if err := w.agent.Ready(t.Context()); err != nil {
			t.Errorf("Ready() with a full pool = %v", err)
		}
		if err := w.del(0); err != nil {
			t.Fatal(err)
		}
		if err := w.agent.Ready(t.Context()); err != nil {
			t.Errorf("Ready() with one address left = %v", err)
		}
		if _, err := w.add(0); err != nil {
			t.Errorf("Add() of the last address = %v", err)
		}
	}
}

// G04, G07: STATUS changes nothing, and what it says decides nothing: while it is red, a DEL is done, and an ADD has its own
// reason to fail.
func TestStatusDecidesNothing(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	if _, err := w.add(1); err != nil {
		t.Fatal(err)
	}
	before, records := w.outside(), w.db.All()
	w.fuse.Arm(0) // no effect is let through
	for range 1000 {
		if err := w.agent.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if died, _ := w.fuse.Dead(); died {
		t.Error("STATUS looks or changes something")
	}
	w.fuse.Disarm()
	if diff := cmp.Diff(before, w.outside(), cmpOptions()...); diff != "" {
		t.Errorf("STATUS changed something:\n%s", diff)
	}
	if diff := cmp.Diff(records, w.db.All(), cmpOptions()...); diff != "" {
		t.Errorf("STATUS changed the records:\n%s", diff)
	}

	w.routes.SetFail(func(op string, _ netip.Prefix) error {
		if op == "put" {
			return errors.New("no kernel")
		}
		return nil
	})
	w.routes.Set(nil)
	w.agent.Doubt()
	if _, err := w.agent.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	hasError(t, w.agent.Ready(t.Context()), wire.CodeLimited, "no route can be made")
	if _, err := w.add(2); err == nil {
		t.Error("Add() succeeded without its route")
	} else {
		hasError(t, err, wire.CodeKernel, "no kernel")
	}
	if err := w.del(1); err != nil {
		t.Errorf("Del() while STATUS is red = %v", err)
	}
	if got := w.db.All(); len(got) != 0 {
		t.Errorf("left are %v", got)
	}
}

// I01, B-032, B-035: a node process that starts knows of every address that is in use before it gives one away, and asks nobody
// for that. With all but one in use there is one way to be right.
func TestStartKnowsWhatIsInUse(t *testing.T) {
	config := testConfig()
	config.Pools[1].Prefix = netip.MustParsePrefix("10.1.0.0/29")
	w := newWorld(t, config)
	w.start()
	live := make(map[int]bool)
	for n := range 5 { // of six
		if _, err := w.add(n); err != nil {
			t.Fatal(err)
		}
		live[n] = true
	}
	w.kill()
	w.start()
	if _, err := w.add(5); err != nil {
		t.Errorf("Add() of the last address = %v", err)
	}
	live[5] = true
	w.check(live)
	if _, err := w.add(6); err == nil {
		t.Error("one more address was given than there are")
	}
	w.check(live)
}

// J03, J04, B-028, C45: what has a pod's name, uid or address after it owes it nothing: whatever comes late for the old one changes
// nothing for the new, and the new one's annotations are its own.
func TestNothingIsInherited(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	old := request(1)
	old.Conf.Annotations = map[string]string{"gaggle.dev/ipv6": "false"}
	r, err := w.agent.Add(t.Context(), old)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.agent.Del(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	next := request(2)
	next.Pod = cni.PodArgs{Namespace: old.Pod.Namespace, Name: old.Pod.Name, UID: "another"}
	next.Conf.IPs = []netip.Addr{r.IPs[0].Address.Addr()}
	if r, err = w.agent.Add(t.Context(), next); err != nil || len(r.IPs) != 2 {
		t.Fatalf("Add() = %v, %v; want both families and the old one's address", r.IPs, err)
	}
	before := w.outside()
	for range 2 {
		if err := w.agent.Del(t.Context(), old); err != nil {
			t.Errorf("a late Del() of the old one = %v", err)
		}
	}
	if err := w.agent.GC(t.Context(), "net", []cni.ID{next.ID}); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, w.outside(), cmpOptions()...); diff != "" {
		t.Errorf("the new one was touched:\n%s", diff)
	}
	w.check(map[int]bool{2: true})
}

// J05, J06: pods that go as soon as they come, many at once, leave nothing and no name of theirs announced.
func TestShortLives(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	var wg sync.WaitGroup
	for n := range 100 {
		wg.Go(func() {
			_, addErr := w.add(n)
			if err := errors.Join(addErr, w.del(n)); err != nil {
				t.Errorf("pod %d: %v", n, err)
			}
		})
	}
	wg.Wait()
	w.check(nil)
}

// B29: whatever failed, the message names the pod, the container and the step, and is short.
func TestMessages(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	w.datapath.FailAttach = func(node.Attachment) error { return errors.New("make veth: no room") }
	w.datapath.FailDetach = func(node.Attachment) error { return errors.New("remove veth: busy") }
	_, addErr := w.add(1)
	for step, err := range map[string]error{"make veth": addErr, "remove veth": w.del(1), "not attached": w.agent.Check(t.Context(), request(1))} {
		e, ok := errors.AsType[*cni.Error](err)
		if !ok || !strings.Contains(e.Msg, "pod ns/p1 (container c1)") || !strings.Contains(e.Msg, step) || len(e.Msg) > 1000 {
			t.Errorf("error %v, want one that names the pod, the container and %q", err, step)
		}
	}
}
