package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/cni"
	"github.com/gaggle-cni/gaggle/cni/wire"
	"github.com/gaggle-cni/gaggle/node"
	"github.com/gaggle-cni/gaggle/node/store"
)

// Intervals.
const (
	touchInterval     = 10 * time.Second // how exactly the end of a killed process is known
	firstPassTimeout  = 30 * time.Second
	replayTimeout     = 10 * time.Second
	readHeaderTimeout = 5 * time.Second
)

// serve brings the network to what it must be, then answers calls until the context ends. The agent's loop outlives
// everything that asks it.
func (p *process) serve(ctx context.Context) error {
	loopCtx, stopLoop := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLoop()
	loop, loopCtx := errgroup.WithContext(loopCtx)
	loop.Go(func() error { return p.agent.Run(loopCtx) })

	err := p.serveCalls(ctx)
	stopLoop()
	return errors.Join(err, loop.Wait())
}

func (p *process) serveCalls(ctx context.Context) error {
	if err := p.firstPass(ctx); err != nil {
		return err
	}
	metrics := node.NewMetrics(p.status)
	admin, err := cni.ListenPrivate(ctx, filepath.Join(p.flags.runDir, adminSocket))
	if err != nil {
		return err
	}
	server, err := cni.Listen(ctx, cni.Options{
		Socket: filepath.Join(p.flags.runDir, cniSocket), Handler: p.agent, Log: p.log, Done: metrics.Observe,
		Queue: filepath.Join(p.flags.runDir, wire.QueueDir),
	})
	if err != nil {
		return err
	}
	if err := p.replay(ctx, server); err != nil {
		p.log.WarnContext(ctx, "deletions wait to be done", "err", err)
	}
	var public net.Listener
	if p.flags.metrics != "" {
		if public, err = p.listenPublic(ctx); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return server.Run(ctx) })
	g.Go(func() error { return serveHTTP(ctx, admin, node.AdminHandler(p.status, p.document)) })
	g.Go(func() error { return p.dp.Watch(ctx) })
	g.Go(func() error { return p.remember(ctx) })
	if p.cluster != nil {
		p.cluster.NetworkReady()
		g.Go(func() error { return p.follow(ctx) })
	}
	if public != nil {
		g.Go(func() error { return serveHTTP(ctx, public, node.PublicHandler(p.agent, metrics)) })
	}
	p.log.InfoContext(ctx, "serving", "node", p.config.Node, "run_dir", p.flags.runDir, "took", time.Since(p.started))
	err = g.Wait()
	p.log.InfoContext(ctx, "stopped serving")
	return err
}

func (p *process) listenPublic(ctx context.Context) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", p.flags.metrics)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics: %w; --metrics-address chooses another address", err)
	}
	return l, nil
}

// replay does the DELs that were kept. Where there are many, the rest is done while calls are served.
func (p *process) replay(ctx context.Context, server *cni.Server) error {
	ctx, cancel := context.WithTimeout(ctx, replayTimeout)
	defer cancel()
	return server.Replay(ctx)
}

// firstPass makes sure that everything known is routed and announced before anything new is promised. Trouble with single
// routes or peers does not keep the node from serving; not knowing what is there does.
func (p *process) firstPass(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, firstPassTimeout)
	defer cancel()
	if _, err := p.agent.Settle(ctx); err != nil {
		return fmt.Errorf("first pass: %w", err)
	}
	return nil
}

func (p *process) status(ctx context.Context) (node.Status, error) {
	s, err := p.agent.Status(ctx)
	s.Version, s.Started = version, p.started
	s.Kubernetes = p.kubernetes()
	return s, err
}

// remember keeps in the store that this process lives and whether it has sessions, so that the next one knows whether it
// is a restart.
func (p *process) remember(ctx context.Context) error {
	ticker := time.NewTicker(touchInterval)
	defer ticker.Stop()
	up := make(map[bgp.PeerID]bool)
	for {
		if err := p.rememberOnce(ctx, up); err != nil {
			p.log.WarnContext(ctx, "the next start may not know that it is a restart", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-p.touch:
		}
	}
}

// tell logs which sessions have come up or gone down. up are those that were up.
func (p *process) tell(ctx context.Context, states map[bgp.PeerID]bgp.PeerState, up map[bgp.PeerID]bool) {
	for id, s := range states {
		log := p.log.With("peer", p.agent.Config().BGP.Peers[id].Name, "addr", id.Addr)
		switch {
		case s.Established() && !up[id]:
			log.InfoContext(ctx, "BGP session established", "asn", s.ASN, "graceful_restart", s.GracefulRestart)
		case !s.Established() && up[id]:
			log.WarnContext(ctx, "BGP session lost", "state", s.State, "reason", s.LastError)
		}
		up[id] = s.Established()
	}
}

func (p *process) rememberOnce(ctx context.Context, up map[bgp.PeerID]bool) error {
	if p.speaker == nil {
		return nil
	}
	states, err := p.speaker.States(ctx)
	if err != nil {
		return err
	}
	p.tell(ctx, states, up)
	r := store.Run{Uptime: machineUptime()}
	for _, s := range states {
		r.Peers = r.Peers || s.Established()
	}
	if !r.Peers {
		// A session that is down now may have left stale routes; the last run with one stays on record until they are gone.
		return nil
	}
	return p.db.Touch(r)
}

// machineUptime counts suspended time too: routers' timers do.
func machineUptime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil { // Linux has had it since 2.6.39
		panic(fmt.Sprintf("gaggle: read CLOCK_BOOTTIME: %v", err))
	}
	return time.Duration(ts.Nano())
}

// serveHTTP serves until the context ends.
func serveHTTP(ctx context.Context, l net.Listener, h http.Handler) error {
	s := &http.Server{Handler: h, ReadHeaderTimeout: readHeaderTimeout}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), readHeaderTimeout)
		defer cancel()
		_ = s.Shutdown(end)
	})
	err := s.Serve(l)
	if !stop() {
		<-ended // Serve returns at once, Shutdown when the last answer is out
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}
