// Package nodetest has stand-ins for what the core works with: a kernel, a BGP speaker and a store that can die. They hold
// state, so that tests look at what came about and not at what was called.
package nodetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/cni"
	"github.com/gaggle-cni/gaggle/node"
)

// ErrCrashed is what everything answers once the process "has died".
var ErrCrashed = errors.New("crashed")

// A Fuse makes the world end after a number of effects. All stand-ins of one test share it. The zero value never burns.
type Fuse struct {
	mu    sync.Mutex
	armed bool
	left  int
	dead  bool
	steps []string
}

// Arm lets n effects happen and then nothing more.
func (f *Fuse) Arm(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed, f.left, f.dead, f.steps = true, n, false, nil
}

// Disarm lets effects happen again: a new process has started.
func (f *Fuse) Disarm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed, f.dead = false, false
}

// Dead reports whether the fuse has burnt, and after which effects.
func (f *Fuse) Dead() (bool, []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dead, f.steps
}

// step stands before every effect.
func (f *Fuse) step(what string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.armed {
		return nil
	}
	if f.dead || f.left == 0 {
		f.dead = true
		return fmt.Errorf("%s: %w", what, ErrCrashed)
	}
	f.left--
	f.steps = append(f.steps, what)
	return nil
}

// A Target is a [node.Target] in memory.
type Target[K node.Key[K], V comparable] struct {
	Fuse *Fuse
	// Fail, when set, is asked before each step; an error fails the step.
	Fail func(op string, k K) error

	mu    sync.Mutex
	items map[K]V
}

// SetFail changes Fail while the target is in use.
func (t *Target[K, V]) SetFail(fail func(op string, k K) error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Fail = fail
}

// Items returns a copy of what is there.
func (t *Target[K, V]) Items() map[K]V {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.items)
}

// Set changes what is there behind the reconciler's back.
func (t *Target[K, V]) Set(items map[K]V) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.items = maps.Clone(items)
}

// List implements [node.Target].
func (t *Target[K, V]) List(context.Context) (map[K]V, error) {
	var zero K
	if err := t.step("list", zero); err != nil {
		return nil, err
	}
	return t.Items(), nil
}

// Put implements [node.Target].
func (t *Target[K, V]) Put(_ context.Context, k K, v V) error {
	if err := t.step("put", k); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.items == nil {
		t.items = make(map[K]V)
	}
	t.items[k] = v
	return nil
}

// Delete implements [node.Target].
func (t *Target[K, V]) Delete(_ context.Context, k K) error {
	if err := t.step("delete", k); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.items, k)
	return nil
}

func (t *Target[K, V]) step(op string, k K) error {
	t.mu.Lock()
	fail := t.Fail
	t.mu.Unlock()
	if fail != nil {
		if err := fail(op, k); err != nil {
			return err
		}
	}
	if t.Fuse == nil {
		return nil
	}
	return t.Fuse.step(op + " " + k.String())
}

// A Datapath is a [node.Datapath] in memory.
type Datapath struct {
	Fuse *Fuse
	// FailAttach, when set, may refuse an attachment.
	FailAttach func(node.Attachment) error
	// FailDetach, when set, may refuse to remove one.
	FailDetach func(node.Attachment) error
	// Uplink is the way to every destination.
	Uplink node.Uplink
	// Addrs are the node's own addresses, with the lengths of their subnets.
	Addrs []netip.Prefix

	mu    sync.Mutex
	links map[string]node.Attachment
	blind error // why the kernel cannot be seen
	other map[node.NetnsID]bool
	where map[string]*os.File // the namespace of each
}

// Links returns the host links that are there.
func (d *Datapath) Links() map[string]node.Attachment {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.links)
}

// Attach implements [node.Datapath].
func (d *Datapath) Attach(ctx context.Context, netns *os.File, a node.Attachment) (node.NetnsID, error) {
	if d.FailAttach != nil {
		if err := d.FailAttach(a); err != nil {
			return node.NoNetns, err
		}
	}
	if err := d.Fuse.step("attach " + a.HostIf); err != nil {
		return node.NoNetns, err
	}
	if err := ctx.Err(); err != nil {
		return node.NoNetns, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.links == nil {
		d.links, d.where = make(map[string]node.Attachment), make(map[string]*os.File)
	}
	a.Namespace = 0
	for slices.ContainsFunc(slices.Collect(maps.Values(d.links)), func(other node.Attachment) bool {
		return other.Namespace == a.Namespace
	}) {
		a.Namespace++ // the lowest number that is free, as the kernel does
	}
	d.links[a.HostIf], d.where[a.HostIf] = a, netns
	return a.Namespace, nil
}

// Lose removes a link behind everybody's back. Its namespace ends with it.
func (d *Datapath) Lose(hostIf string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.links, hostIf)
}

// Blind makes the kernel invisible to Inventory, or visible again with nil.
func (d *Datapath) Blind(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.blind = err
}

// KeepNamespace lets a namespace live on without a link of ours.
func (d *Datapath) KeepNamespace(id node.NetnsID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.other = map[node.NetnsID]bool{id: true}
}

// Inventory implements [node.Datapath].
func (d *Datapath) Inventory(context.Context) (node.Inventory, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.blind != nil {
		return node.Inventory{}, d.blind
	}
	inv := node.Inventory{Links: maps.Clone(d.links), Namespaces: make(map[node.NetnsID]bool)}
	maps.Copy(inv.Namespaces, d.other)
	for _, a := range d.links {
		inv.Namespaces[a.Namespace] = true
	}
	return inv, nil
}

// Detach implements [node.Datapath].
func (d *Datapath) Detach(_ context.Context, a node.Attachment) error {
	if d.FailDetach != nil {
		if err := d.FailDetach(a); err != nil {
			return err
		}
	}
	if err := d.Fuse.step("detach " + a.HostIf); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.links, a.HostIf)
	return nil
}

// Attached implements [node.Datapath].
func (d *Datapath) Attached(_ context.Context, netns *os.File, a node.Attachment) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.links[a.HostIf]
	return ok && d.where[a.HostIf] == netns, nil
}

// Check implements [node.Datapath].
func (d *Datapath) Check(_ context.Context, _ *os.File, a node.Attachment) (differences []error, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	have, ok := d.links[a.HostIf]
	if !ok {
		return []error{fmt.Errorf("link %s is missing", a.HostIf)}, nil
	}
	if have.MAC != a.MAC {
		differences = append(differences, fmt.Errorf("MAC of %s is %s, want %s", a.ID.IfName, have.MAC, a.MAC))
	}
	return differences, nil
}

// Uplinks implements [node.Datapath].
func (d *Datapath) Uplinks(_ context.Context, dsts []netip.Addr) (map[netip.Addr]node.Uplink, error) {
	out := make(map[netip.Addr]node.Uplink)
	for _, dst := range dsts {
		out[dst] = d.Uplink
	}
	return out, nil
}

// Connected implements [node.Datapath].
func (d *Datapath) Connected(context.Context) ([]netip.Prefix, error) {
	return append([]netip.Prefix{}, d.Addrs...), nil
}

// Sessions is a [node.Sessions] in memory.
type Sessions struct {
	mu      sync.Mutex
	learned []bgp.LearnedRoute
	err     error
}

// Set changes what the peers offer, or why that cannot be read.
func (s *Sessions) Set(learned []bgp.LearnedRoute, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.learned, s.err = learned, err
}

// States implements [node.Sessions].
func (s *Sessions) States(context.Context) (map[bgp.PeerID]bgp.PeerState, error) {
	return map[bgp.PeerID]bgp.PeerState{}, nil
}

// Learned implements [node.Sessions].
func (s *Sessions) Learned(context.Context) ([]bgp.LearnedRoute, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.learned, s.err
}

// A Store is a real store with a fuse.
type Store struct {
	node.Store
	Fuse *Fuse
}

// Reserve implements [node.Store].
func (s *Store) Reserve(id cni.ID, choose func(node.Taken) (node.Attachment, error)) (node.Attachment, bool, error) {
	if err := s.Fuse.step("reserve " + id.String()); err != nil {
		return node.Attachment{}, false, err
	}
	return s.Store.Reserve(id, choose)
}

// Commit implements [node.Store].
func (s *Store) Commit(id cni.ID, ns node.NetnsID) error {
	return errors.Join(s.Fuse.step("commit "+id.String()), s.unless(func() error { return s.Store.Commit(id, ns) }))
}

// Observe implements [node.Store].
func (s *Store) Observe(id cni.ID, pod node.Pod) error {
	return errors.Join(s.Fuse.step("observe "+id.String()), s.unless(func() error { return s.Store.Observe(id, pod) }))
}

// Retire implements [node.Store].
func (s *Store) Retire(id cni.ID) error {
	return errors.Join(s.Fuse.step("retire "+id.String()), s.unless(func() error { return s.Store.Retire(id) }))
}

// Release implements [node.Store].
func (s *Store) Release(id cni.ID, rest time.Duration) error {
	return errors.Join(s.Fuse.step("release "+id.String()), s.unless(func() error { return s.Store.Release(id, rest) }))
}

// unless does nothing once the fuse has burnt.
func (s *Store) unless(do func() error) error {
	if dead, _ := s.Fuse.Dead(); dead {
		return nil
	}
	return do()
}

// Pods are what Kubernetes says of pods.
type Pods struct {
	mu    sync.Mutex
	facts map[node.PodKey]node.PodFacts
	away  bool
}

var _ node.Pods = (*Pods)(nil)

// Set changes what is known of a pod.
func (p *Pods) Set(f node.PodFacts) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.facts == nil {
		p.facts = make(map[node.PodKey]node.PodFacts)
	}
	p.facts[f.Key] = f
}

// Away cuts the API server off, for a process that has just started: nothing is known.
func (p *Pods) Away(away bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = away
}

// Pod implements [node.Pods].
func (p *Pods) Pod(_ context.Context, key node.PodKey, uid string) (node.PodFacts, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f, ok := p.facts[key]
	switch {
	case p.away:
		return node.PodFacts{}, node.ErrNoAPI
	case !ok || !f.Is(uid):
		return node.PodFacts{}, node.ErrUnknownPod
	}
	return f, nil
}

// Pods implements [node.Pods].
func (p *Pods) Pods() (map[node.PodKey]node.PodFacts, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		return nil, false
	}
	return maps.Clone(p.facts), true
}
