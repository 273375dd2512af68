package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
)

// pass observes, plans, and makes it so. The order is the graceful behaviour: a route is there before the announcement
// that draws traffic to it and outlives it, and at start every announcement is known before the first peer is, so that
// End-of-RIB is true.
func (a *Agent) pass(ctx context.Context) Pass {
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	waiters := a.begin()
	start := a.o.Now()
	attachments, stale := a.refresh(a.o.Store.All())
	w, err := a.observe(ctx, attachments)
	p := Pass{World: w}
	if err != nil {
		// Unknown is not empty: nothing is done, and above all nothing is pruned.
		p.Err = fmt.Errorf("observe: %w", err)
		p.Desired = a.Last().Desired
	} else {
		p.Desired = Plan(w)
		a.apply(ctx, &p)
	}
	p.Err = errors.Join(p.Err, stale) // which only a restart would suffer from
	p.Ended = a.o.Now()
	p.Took = p.Ended.Sub(start)
	a.complain(ctx, errors.Join(p.Err, w.misfits(), p.Desired.refusals()))
	a.reportRefusals(p.Desired.Refused)
	a.last.Store(&p)
	for _, waiter := range waiters {
		waiter <- p
	}
	return p
}

// begin takes those who wait for this pass, and settles what it must look at anew.
func (a *Agent) begin() []chan<- Pass {
	a.mu.Lock()
	waiters, doubt := a.waiters, a.doubt
	a.waiters, a.doubt = nil, false
	a.mu.Unlock()
	if doubt {
		a.facts = nil
		a.ends.Doubt()
		a.routes.Doubt()
		a.learned.Doubt()
		a.sources.Doubt()
		a.masquerade.Doubt()
		if a.o.Speaker != nil {
			a.announcements.Doubt()
			a.peers.Doubt()
		}
	}
	return waiters
}

func (a *Agent) observe(ctx context.Context, attachments []Attachment) (World, error) {
	w := World{Now: a.o.Now(), Attachments: attachments, Config: *a.config.Load(), Readiness: a.o.Pods != nil}
	if a.facts == nil {
		f, err := look(ctx, w.Config, a.o.Datapath)
		if err != nil {
			return w, err
		}
		a.facts = &f
	}
	w.Uplinks, w.Connected = a.facts.uplinks, a.facts.connected
	if a.o.Speaker != nil {
		learned, err := a.o.Speaker.Sessions.Learned(ctx)
		if err != nil {
			return w, err
		}
		w.Learned = learned
	}
	return w, nil
}

// look finds out what planning needs to know of the node itself.
func look(ctx context.Context, c Config, d Datapath) (f facts, err error) {
	if f.uplinks, err = d.Uplinks(ctx, c.destinations()); err != nil {
		return f, err
	}
	f.connected, err = d.Connected(ctx)
	return f, err
}

// apply makes what the pass wants so, and notes in it what failed. A pod that cannot send from other addresses than its own is
// reached only then.
func (a *Agent) apply(ctx context.Context, p *Pass) {
	want := p.Desired
	ends := a.ends.Ensure(ctx, want.Ends)
	a.ends.Keep(want.Ends)
	p.Sources = a.sources.Ensure(ctx, want.Sources)
	masquerade := a.masquerade.Ensure(ctx, want.Masquerade)
	p.Routes = a.routes.Ensure(ctx, want.Routes)
	errs := []error{ends.Err(), p.Sources.Err(), masquerade.Err(), p.Routes.Err()}
	if a.o.Speaker != nil {
		announce := maps.Clone(want.Announce)
		for prefix := range p.Routes {
			delete(announce, prefix)
		}
		announced := a.announcements.Ensure(ctx, announce).Err()
		errs = append(errs, announced)
		if announced == nil {
			errs = append(errs, a.peers.Ensure(ctx, want.Peers).Err())
		}
		errs = append(errs,
			a.peers.Prune(ctx, want.Peers).Err(),
			a.announcements.Prune(ctx, announce).Err())
	}
	errs = append(errs,
		a.learned.Ensure(ctx, want.Learned).Err(),
		a.learned.Prune(ctx, want.Learned).Err(),
		a.routes.Prune(ctx, want.Routes).Err(),
		a.masquerade.Prune(ctx, want.Masquerade).Err(),
		a.sources.Prune(ctx, want.Sources).Err())
	p.Err = errors.Join(errs...)
}

// Last returns the last pass; the zero Pass before the first.
func (a *Agent) Last() Pass {
	if p := a.last.Load(); p != nil {
		return *p
	}
	return Pass{}
}

// complain logs trouble when it begins, when it changes and when it ends.
func (a *Agent) complain(ctx context.Context, err error) {
	trouble := ""
	if err != nil {
		trouble = err.Error()
	}
	switch trouble {
	case a.trouble:
		return
	case "":
		a.o.Log.InfoContext(ctx, "the network is as it must be again")
	default:
		a.o.Log.WarnContext(ctx, "the network is not as it must be", "err", err)
	}
	a.trouble = trouble
}
