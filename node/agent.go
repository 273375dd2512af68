package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/cni"
)

// Bounds of the pass.
const (
	doubtInterval = time.Minute     // how often everything is looked at although nothing seems wrong
	retryInterval = 2 * time.Second // after a pass with failures
	minRecheck    = 10 * time.Millisecond
	passTimeout   = 20 * time.Second // of one pass
)

// ErrStopping means that the node process is about to end.
var ErrStopping = errors.New("the node process is stopping")

// Options are what an [Agent] works with.
type Options struct {
	Config   Config
	Store    Store
	Datapath Datapath
	Ends     Target[LinkName, End] // Delete is never called: links go with Datapath.Detach
	Routes   Target[netip.Prefix, Route]
	Learned  Target[netip.Prefix, Route]
	// Sources are what pods may send from, Masquerade what leaves the node under its own address, with the exceptions.
	Sources    Target[LinkName, SourceCheck]
	Masquerade Target[netip.Prefix, bgp.Prefixes]
	Speaker    *Speaker // nil: no BGP
	Pods       Pods     // nil: without Kubernetes
	Reporter   Reporter // nil: nobody is told
	Secret     [32]byte // addresses are derived from it
	Log        *slog.Logger
	Now        func() time.Time
	// Interval is how often everything is looked at although nothing seems wrong; 0 for every minute.
	Interval time.Duration
}

// A Speaker is the BGP side.
type Speaker struct {
	Announcements Target[netip.Prefix, bgp.Announcement]
	Peers         Target[bgp.PeerID, bgp.Peer]
	Sessions      Sessions
}

// An Agent keeps the node's network as it must be. Make one with [New], call [Agent.Recover] once, then [Agent.Run].
type Agent struct {
	o      Options
	config atomic.Pointer[Config]
	locks  keyLock
	tombs  tombs
	kick   chan struct{}
	last   atomic.Pointer[Pass]

	// owned by the pass
	ends            *Syncer[LinkName, End]
	routes, learned *Syncer[netip.Prefix, Route]
	sources         *Syncer[LinkName, SourceCheck]
	masquerade      *Syncer[netip.Prefix, bgp.Prefixes]
	announcements   *Syncer[netip.Prefix, bgp.Announcement]
	peers           *Syncer[bgp.PeerID, bgp.Peer]
	facts           *facts          // nil when they must be read again
	trouble         string          // what the last pass complained of, so that it is logged once
	refused         map[string]bool // the refusals of the last pass, so that each is told once

	// owned by the sweeper
	suspects map[string]int // how often in a row the sweep has seen something

	mu      sync.Mutex
	waiters []chan<- Pass
	doubt   bool // the next pass lists and observes everything anew
	stopped bool
}

// facts are what is observed of the node itself. They change seldom and are read again only after a hint.
type facts struct {
	uplinks   map[netip.Addr]Uplink
	connected []netip.Prefix
}

// A Pass is what came of one pass.
type Pass struct {
	World   World
	Desired Desired
	Routes  Failures[netip.Prefix] // host routes and aggregates that could not be made
	Sources Failures[LinkName]     // links whose source addresses could not be checked
	Err     error                  // everything that failed
	Ended   time.Time
	Took    time.Duration
}

// New returns an Agent that has done nothing yet.
func New(o Options) *Agent {
	o.Interval = cmp.Or(o.Interval, doubtInterval)
	a := &Agent{
		o:       o,
		kick:    make(chan struct{}, 1),
		ends:    NewSyncer("link", o.Ends),
		routes:  NewSyncer("route", o.Routes),
		learned: NewSyncer("learned route", o.Learned),
		sources: NewSyncer("source check", o.Sources), masquerade: NewSyncer("masquerade", o.Masquerade),
	}
	if o.Speaker != nil {
		a.announcements = NewSyncer("announcement", o.Speaker.Announcements)
		a.peers = NewSyncer("peer", o.Speaker.Peers)
	}
	a.config.Store(&o.Config)
	return a
}

// Recover makes the records those of what runs, and undoes what an earlier process began and did not finish. It must end
// before anything is served: addresses that are in use would be given out, and an ADD beside it undone. What cannot be undone
// stays pending, keeps its addresses taken, and is tried again later. Its error means that nothing may be served.
func (a *Agent) Recover(ctx context.Context) error {
	if err := a.adoptAll(ctx); err != nil {
		return err
	}
	a.undoPending(ctx)
	return nil
}

// undoPending removes the pending records that no handler works on: whoever made one holds its lock until it is committed or
// gone.
func (a *Agent) undoPending(ctx context.Context) {
	for _, att := range a.o.Store.All() {
		if att.Committed {
			continue
		}
		unlock, ok := a.locks.tryLock(att.ID)
		if !ok {
			continue
		}
		undone, err := a.undo(ctx, att.ID)
		unlock()
		log := a.o.Log.With("pod", att.Pod.Key, "container", att.ID.ContainerID, "ifname", att.ID.IfName, "addr", att.Addrs)
		switch {
		case err != nil:
			log.WarnContext(ctx, "an unfinished attachment remains and will be tried again", "err", err)
		case undone:
			log.InfoContext(ctx, "undid an unfinished attachment")
		}
	}
}

// undo removes a record if it is still pending, now that its lock is held.
func (a *Agent) undo(ctx context.Context, id cni.ID) (undone bool, err error) {
	att, ok := a.find(id)
	if !ok || att.Committed {
		return false, nil
	}
	return true, a.finish(ctx, att)
}

// Kick asks for a pass soon. It never blocks.
func (a *Agent) Kick() {
	select {
	case a.kick <- struct{}{}:
	default:
	}
}

// Doubt asks for a pass that looks at everything anew: something outside has changed.
func (a *Agent) Doubt() {
	a.mu.Lock()
	a.doubt = true
	a.mu.Unlock()
	a.Kick()
}

// Configure puts another configuration in force. It never blocks.
func (a *Agent) Configure(c Config) {
	a.config.Store(&c)
	a.Doubt()
}

// Config returns the configuration in force.
func (a *Agent) Config() Config { return *a.config.Load() }

// Settle waits for the end of a pass that began after the call.
func (a *Agent) Settle(ctx context.Context) (Pass, error) {
	done := make(chan Pass, 1)
	a.mu.Lock()
	if a.stopped {
		a.mu.Unlock()
		return Pass{}, ErrStopping
	}
	a.waiters = append(a.waiters, done)
	a.mu.Unlock()
	a.Kick()
	select {
	case p, ok := <-done:
		if !ok {
			return Pass{}, ErrStopping
		}
		return p, nil
	case <-ctx.Done():
		return Pass{}, fmt.Errorf("wait for the routes: %w", context.Cause(ctx))
	}
}

// Run makes a pass whenever something asks for one, until the context ends. Stop what calls [Agent.Add] and [Agent.Del]
// first: whoever waits then is answered with [ErrStopping].
func (a *Agent) Run(ctx context.Context) error {
	var sweeper sync.WaitGroup // not in this goroutine: it waits for passes
	sweeper.Go(func() { a.sweepUntil(ctx) })
	defer sweeper.Wait()
	defer a.stop()
	// Two clocks: on a busy node passes are never far apart, and must not put off the doubt.
	doubt := time.NewTicker(a.o.Interval)
	defer doubt.Stop()
	retry := time.NewTimer(retryInterval)
	retry.Stop() // until a pass fails
	defer retry.Stop()
	recheck := time.NewTimer(retryInterval)
	recheck.Stop() // until time alone changes the plan
	defer recheck.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.kick:
		case <-retry.C:
		case <-recheck.C:
		case <-doubt.C:
			a.Doubt()
		}
		// The pass outlives the context's end: half a pass would be a state that nobody wants.
		p := a.pass(context.WithoutCancel(ctx))
		retry.Stop()
		if p.Err != nil {
			retry.Reset(retryInterval)
		}
		recheck.Stop()
		if at := p.Desired.Recheck; !at.IsZero() {
			recheck.Reset(max(at.Sub(a.o.Now()), minRecheck))
		}
	}
}

func (a *Agent) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopped = true
	for _, w := range a.waiters {
		close(w)
	}
	a.waiters = nil
}
