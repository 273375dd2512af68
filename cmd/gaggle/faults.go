//go:build faults

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/cni"
	"github.com/gaggle-cni/gaggle/node"
)

// The process of this build asks the file that GAGGLE_FAULTS names, at each step that changes a record, the kernel or the
// speaker, whether something goes wrong there:
//
//	kill 7    the process dies at the seventh step
//	fail 7    the seventh step fails
//	delay 7   the seventh step takes another second
//
// Steps are counted from the first one that sees this text. What follows the number is there to tell two texts apart. The step
// that is hit is named in a file beside it, with the ending .hit.
type faults struct {
	path string

	mu    sync.Mutex
	text  string
	count int
}

// stepDelay is how much longer a delayed step takes.
const stepDelay = time.Second

// faultyInterval is how often the agent of this build looks at everything.
const faultyInterval = 2 * time.Second

var injected = faults{path: os.Getenv("GAGGLE_FAULTS")}

var errInjected = errors.New("injected fault")

func beforeChange() func(op string) error { return injected.before }

// before is called before a step.
func (f *faults) before(op string) error {
	switch f.next(op) {
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "delay":
		time.Sleep(stepDelay)
	case "fail":
		return errInjected
	}
	return nil
}

// after is called after a step, which cannot fail any more.
func (f *faults) after(op string, err error) error {
	if err == nil {
		_ = f.before(op + " done")
	}
	return err
}

// next counts a step and tells what is to happen at it.
func (f *faults) next(op string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	text, err := os.ReadFile(f.path)
	if err != nil {
		return ""
	}
	if string(text) != f.text {
		f.text, f.count = string(text), 0
	}
	var kind string
	var at int
	if _, err := fmt.Sscan(f.text, &kind, &at); err != nil {
		return ""
	}
	if f.count++; f.count != at {
		return ""
	}
	if err := os.WriteFile(f.path+".hit", []byte(op), 0o600); err != nil {
		return ""
	}
	return kind
}

// withFaults makes what the agent changes steps, and lets it look at everything more often, so that tests need not wait.
func withFaults(o node.Options) node.Options {
	o.Interval = faultyInterval
	o.Store = faultyStore{o.Store}
	o.Ends = faulty[node.LinkName, node.End]{"end", o.Ends}
	o.Routes = faulty[netip.Prefix, node.Route]{"route", o.Routes}
	o.Learned = faulty[netip.Prefix, node.Route]{"learned route", o.Learned}
	o.Sources = faulty[node.LinkName, node.SourceCheck]{"source check", o.Sources}
	o.Masquerade = faulty[netip.Prefix, bgp.Prefixes]{"masquerade", o.Masquerade}
	if o.Speaker != nil {
		o.Speaker.Announcements = faulty[netip.Prefix, bgp.Announcement]{"announcement", o.Speaker.Announcements}
		o.Speaker.Peers = faulty[bgp.PeerID, bgp.Peer]{"peer", o.Speaker.Peers}
	}
	return o
}

// faulty is a target whose changes are steps.
type faulty[K node.Key[K], V comparable] struct {
	name string
	node.Target[K, V]
}

func (t faulty[K, V]) Put(ctx context.Context, k K, v V) error {
	if err := injected.before(t.name + " put"); err != nil {
		return err
	}
	return injected.after(t.name+" put", t.Target.Put(ctx, k, v))
}

func (t faulty[K, V]) Delete(ctx context.Context, k K) error {
	if err := injected.before(t.name + " delete"); err != nil {
		return err
	}
	return injected.after(t.name+" delete", t.Target.Delete(ctx, k))
}

// faultyStore is a store whose changes are steps.
type faultyStore struct{ node.Store }

func (s faultyStore) Reserve(id cni.ID, choose func(node.Taken) (node.Attachment, error)) (node.Attachment, bool, error) {
	if err := injected.before("reserve"); err != nil {
		return node.Attachment{}, false, err
	}
	a, created, err := s.Store.Reserve(id, choose)
	return a, created, injected.after("reserve", err)
}

func (s faultyStore) Commit(id cni.ID, ns node.NetnsID) error {
	return s.step("commit", func() error { return s.Store.Commit(id, ns) })
}

func (s faultyStore) Observe(id cni.ID, pod node.Pod) error {
	return s.step("observe", func() error { return s.Store.Observe(id, pod) })
}

func (s faultyStore) Retire(id cni.ID) error {
	return s.step("retire", func() error { return s.Store.Retire(id) })
}

func (s faultyStore) Release(id cni.ID, rest time.Duration) error {
	return s.step("release", func() error { return s.Store.Release(id, rest) })
}

func (s faultyStore) step(name string, do func() error) error {
	if err := injected.before(name); err != nil {
		return fmt.Errorf("%w: %w", node.ErrStore, err)
	}
	return injected.after(name, do())
}
