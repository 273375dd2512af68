package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A purger removes the connections that the kernel remembers of addresses that are no longer used. The kernel is asked for its
// whole table for that, which takes seconds where there are a million connections: addresses that come while it is asked
// wait, and are then looked for together.
type purger struct {
	mu      sync.Mutex
	waiting *purge
	running sync.Mutex
	all     sync.WaitGroup
}

// purgeTimeout bounds each wait for an answer of the kernel.
const purgeTimeout = 10 * time.Second

// A purge is one look at the table.
type purge struct {
	addrs map[netip.Addr]bool
	done  chan struct{} // closed at its end
	err   error
}

// MatchConntrackFlow implements netlink's filter: any end of a connection, before or after translation.
func (p *purge) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Zone != 0 { // somebody else's
		return false
	}
	for _, t := range []netlink.IPTuple{flow.Forward, flow.Reverse} {
		if p.addrs[addrOf(t.SrcIP)] || p.addrs[addrOf(t.DstIP)] {
			return true
		}
	}
	return false
}

// purge removes what the node remembers of connections with the addresses.
func (d *Datapath) purge(ctx context.Context, addrs []netip.Addr) error {
	if len(addrs) == 0 {
		return nil
	}
	p, first := d.purger.join(addrs)
	if first {
		d.purger.all.Go(func() { // goes on when the caller has no more time; Close waits for it
			d.purger.begin(p)
			defer d.purger.running.Unlock()
			defer close(p.done)
			p.err = inNamespace(d.ns, func() error { return d.purgeHere(p) })
		})
	}
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("forget connections: %w", context.Cause(ctx))
	}
}

// join adds addresses to the purge that waits, or makes one, which the caller then has to run.
func (u *purger) join(addrs []netip.Addr) (p *purge, first bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if first = u.waiting == nil; first {
		u.waiting = &purge{addrs: make(map[netip.Addr]bool), done: make(chan struct{})}
	}
	for _, a := range addrs {
		u.waiting.addrs[a] = true
	}
	return u.waiting, first
}

// begin waits for the purge before, then takes p's place: whoever comes now joins the next.
func (u *purger) begin(p *purge) {
	u.running.Lock()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.waiting == p {
		u.waiting = nil
	}
}

// purgeHere works in the calling thread's namespace. Where nothing is tracked the kernel is not asked, which would load the
// module that answers.
func (d *Datapath) purgeHere(p *purge) error {
	count, err := os.ReadFile(filepath.Join(d.o.Sysctl, "net/netfilter/nf_conntrack_count"))
	if err != nil || strings.TrimSpace(string(count)) == "0" {
		return nil // no such file, no such table
	}
	if err := d.o.Before("conntrack delete"); err != nil {
		return err
	}
	h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open netfilter socket: %w", err)
	}
	defer h.Close()
	if err := h.SetSocketTimeout(purgeTimeout); err != nil {
		return fmt.Errorf("bound the wait for the kernel: %w", err)
	}
	for _, family := range []netlink.InetFamily{unix.AF_INET6, unix.AF_INET} {
		if err := purgeFamily(h, family, p); err != nil {
			return fmt.Errorf("forget connections: %w", err)
		}
	}
	return nil
}

// purgeFamily looks again when the table changed under its eyes: what it did not see it did not remove.
func purgeFamily(h *netlink.Handle, family netlink.InetFamily, p *purge) error {
	const tries = 3
	var err error
	for range tries {
		if _, err = h.ConntrackDeleteFilters(netlink.ConntrackTable, family, p); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
	}
	return err
}
