package datapath

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/node"
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
		Namespace: &d.ns, ErrorCallback: fail, ReceiveBufferSize: eventBuffer, ListExisting: true,
	}); err != nil {
		return fmt.Errorf("subscribe to links: %w", err)
	}
	up := make(map[int]bool)
	drained.Go(func() { each(links, func(e netlink.LinkUpdate) { d.linkChanged(e, up) }) })
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
	if err := d.watchNft(done, &drained, fail); err != nil {
		return err
	}
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

func (d *Datapath) linkChanged(e netlink.LinkUpdate, up map[int]bool) {
	attrs := e.Attrs()
	switch {
	case ours(e.Link):
		d.endChanged(e, up)
	case attrs.Name != "lo":
		d.o.Changed()
	}
}

// endChanged looks for a link of ours that went, or went down. up are those that were seen to be up.
func (d *Datapath) endChanged(e netlink.LinkUpdate, up map[int]bool) {
	index := e.Attrs().Index
	wasUp, isUp := up[index], isUp(e.Link)
	if e.Header.Type == unix.RTM_DELLINK {
		delete(up, index)
		if !d.expected.take(linkEvent(e.Attrs().Name)) {
			d.o.Changed()
		}
		return
	}
	up[index] = isUp
	// One that is about to be removed goes down first.
	if wasUp && !isUp && !d.expected.has(addrEvent(index)) {
		d.o.Changed()
	}
}

func (d *Datapath) addrChanged(e netlink.AddrUpdate) {
	addr := addrOf(e.LinkAddress.IP)
	switch {
	case addr.IsGlobalUnicast():
		d.o.Changed()
	case e.NewAddr || d.expected.has(addrEvent(e.LinkIndex)):
		// Link-local addresses are those of pods' links, and tell nothing about the way to anywhere.
	case addr == node.Gateway4 || addr == node.Gateway6:
		d.o.Changed() // a host's end has lost it
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

// addrEvent stands for all addresses of a link.
func addrEvent(index int) string { return "addresses " + strconv.Itoa(index) }

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

// has reports whether the event is expected, and goes on to expect it: what it stands for may come several times.
func (e *expected) has(event string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	until := e.events[event]
	return len(until) > 0 && time.Now().Before(until[len(until)-1])
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
