package datapath

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Bounds of the subscription.
const (
	eventBuffer    = 4 << 20         // bytes; the kernel's default loses a burst of ten thousand routes
	eventQueue     = 1024            // events between the socket and us
	expectLimit    = 5 * time.Second // how long an event of our own making may take
	resubscribeGap = time.Second
)

// Watch calls Options.Changed for what others do to our links and routes and to the node's own links, addresses and default
// routes, until the context ends. What this process does itself is not reported. When events were lost, everything counts
// as changed.
func (d *Datapath) Watch(ctx context.Context) error {
	for {
		err := d.watchOnce(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end was asked for
		}
		d.o.Log.WarnContext(ctx, "kernel events were lost; looking at everything anew", "err", err)
		d.o.Changed()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(resubscribeGap):
		}
	}
}

// watchOnce subscribes and handles events until something goes wrong.
func (d *Datapath) watchOnce(ctx context.Context) error {
	done := make(chan struct{})
	failed := make(chan error, 1)
	fail := func(err error) {
		select {
		case failed <- err:
		default:
		}
	}
	links := make(chan netlink.LinkUpdate, eventQueue)
	addrs := make(chan netlink.AddrUpdate, eventQueue)
	routes := make(chan netlink.RouteUpdate, eventQueue)
	var drained sync.WaitGroup
	// The library's readers end when done is closed, and close their channels; until then somebody must take what they send.
	defer drained.Wait()
	defer close(done)

	if err := netlink.LinkSubscribeWithOptions(links, done, netlink.LinkSubscribeOptions{
		Namespace: &d.ns, ErrorCallback: fail, ReceiveBufferSize: eventBuffer,
	}); err != nil {
		return fmt.Errorf("subscribe to links: %w", err)
	}
	drained.Go(func() { each(links, d.linkChanged) })
	if err := netlink.AddrSubscribeWithOptions(addrs, done, netlink.AddrSubscribeOptions{
		Namespace: &d.ns, ErrorCallback: fail, ReceiveBufferSize: eventBuffer,
	}); err != nil {
		return fmt.Errorf("subscribe to addresses: %w", err)
	}
	drained.Go(func() { each(addrs, d.addrChanged) })
	if err := netlink.RouteSubscribeWithOptions(routes, done, netlink.RouteSubscribeOptions{
		Namespace: &d.ns, ErrorCallback: fail, ReceiveBufferSize: eventBuffer,
	}); err != nil {
		return fmt.Errorf("subscribe to routes: %w", err)
	}
	drained.Go(func() { each(routes, d.routeChanged) })
	d.o.Changed() // whatever happened before the subscription

	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

func each[E any](events <-chan E, handle func(E)) {
	for e := range events {
		handle(e)
	}
}

func (d *Datapath) linkChanged(e netlink.LinkUpdate) {
	attrs := e.Attrs()
	switch {
	case ours(e.Link):
		if e.Header.Type == unix.RTM_DELLINK && !d.expected.take(linkEvent(attrs.Name)) {
			d.o.Changed()
		}
	case attrs.Name != "lo":
		d.o.Changed()
	}
}

func (d *Datapath) addrChanged(e netlink.AddrUpdate) {
	// Link-local addresses are those of pods' links, and tell nothing about the way to anywhere.
	if addrOf(e.LinkAddress.IP).IsGlobalUnicast() {
		d.o.Changed()
	}
}

func (d *Datapath) routeChanged(e netlink.RouteUpdate) {
	if e.Table != unix.RT_TABLE_MAIN {
		return
	}
	p := prefixOf(e.Dst, e.Family)
	switch {
	case e.Protocol == Protocol || e.Protocol == ProtocolLearned:
		if e.Type == unix.RTM_DELROUTE && !d.expected.take(routeEvent(p)) {
			d.o.Changed()
		}
	case p.Bits() == 0:
		d.o.Changed()
	}
}

func linkEvent(name string) string     { return "link " + name }
func routeEvent(p netip.Prefix) string { return "route " + p.String() }

// expected are events that our own changes will cause. The zero value is ready.
type expected struct {
	mu     sync.Mutex
	events map[string][]time.Time // when each stops being expected
}

// add expects one more event.
func (e *expected) add(event string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.events == nil {
		e.events = make(map[string][]time.Time)
	}
	now := time.Now()
	// An event that never came, because nobody watched or the kernel sends none, must not hide a later one, nor stay.
	for name, until := range e.events {
		if now.After(until[len(until)-1]) {
			delete(e.events, name)
		}
	}
	e.events[event] = append(e.events[event], now.Add(expectLimit))
}

// take reports whether the event was expected, and expects one less.
func (e *expected) take(event string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	until := e.events[event]
	if len(until) == 0 {
		return false
	}
	if len(until) == 1 {
		delete(e.events, event)
	} else {
		e.events[event] = until[1:]
	}
	return time.Now().Before(until[0])
}
