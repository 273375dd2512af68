package node

import (
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
	doubtInterval = time.Minute      // how often targets are listed although nothing seems wrong
	retryInterval = 2 * time.Second  // after a pass with failures
	passTimeout   = 20 * time.Second // of one pass
	pendingLimit  = 5 * time.Minute  // a pending record nobody works on is undone after this
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
	Speaker  *Speaker // nil: no BGP
	Secret   [32]byte // addresses are derived from it
	Log      *slog.Logger
	Now      func() time.Time
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
	kick   chan struct{}
	last   atomic.Pointer[Pass]

	// owned by the pass
	ends            *Syncer[LinkName, End]
	routes, learned *Syncer[netip.Prefix, Route]
	announcements   *Syncer[netip.Prefix, bgp.Announcement]
	peers           *Syncer[bgp.PeerID, bgp.Peer]
	facts           *facts // nil when they must be read again
	trouble         string // what the last pass complained of, so that it is logged once

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
	Err     error                  // everything that failed
	Ended   time.Time
	Took    time.Duration
}

// New returns an Agent that has done nothing yet.
func New(o Options) *Agent {
	a := &Agent{
		o:       o,
		kick:    make(chan struct{}, 1),
		ends:    NewSyncer("link", o.Ends),
		routes:  NewSyncer("route", o.Routes),
		learned: NewSyncer("learned route", o.Learned),
	}
	if o.Speaker != nil {
		a.announcements = NewSyncer("announcement", o.Speaker.Announcements)
		a.peers = NewSyncer("peer", o.Speaker.Peers)
	}
	a.config.Store(&o.Config)
	return a
}

// Recover undoes what an earlier process began and did not finish. It must end before anything is served: run beside an
// ADD, it would undo that. What cannot be undone stays pending, keeps its addresses taken, and is tried again later.
func (a *Agent) Recover(ctx context.Context) error { return a.undoPending(ctx, 0) }

// undoPending removes pending records that are older than the limit and that no handler works on.
func (a *Agent) undoPending(ctx context.Context, limit time.Duration) error {
	var errs []error
	for _, att := range a.o.Store.All() {
		if att.Committed || a.o.Now().Sub(att.Created) < limit {
			continue
		}
		unlock, ok := a.locks.tryLock(att.ID)
		if !ok {
			continue
		}
		err := a.undo(ctx, att.ID)
		unlock()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		a.o.Log.InfoContext(ctx, "undid an unfinished attachment", "pod", att.Pod.Key, "container", att.ID.ContainerID,
			"ifname", att.ID.IfName, "addr", att.Addrs)
	}
	return errors.Join(errs...)
}

// undo removes a record if it is still pending, now that its lock is held.
func (a *Agent) undo(ctx context.Context, id cni.ID) error {
	att, ok := a.find(id)
	if !ok || att.Committed {
		return nil
	}
	return a.finish(ctx, att)
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
	defer a.stop()
	// Two clocks: on a busy node passes are never far apart, and must not put off the doubt.
	doubt := time.NewTicker(doubtInterval)
	defer doubt.Stop()
	retry := time.NewTimer(retryInterval)
	retry.Stop() // until a pass fails
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.kick:
		case <-retry.C:
		case <-doubt.C:
			a.Doubt()
			if err := a.undoPending(ctx, pendingLimit); err != nil {
				a.o.Log.WarnContext(ctx, "unfinished attachments remain", "err", err)
			}
		}
		// The pass outlives the context's end: half a pass would be a state that nobody wants.
		p := a.pass(context.WithoutCancel(ctx))
		retry.Stop()
		if p.Err != nil {
			retry.Reset(retryInterval)
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
