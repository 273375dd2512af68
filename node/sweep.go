package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gaggle-cni/gaggle/cni"
)

// sweepUntil sweeps every Options.Interval until the context ends.
func (a *Agent) sweepUntil(ctx context.Context) {
	ticker := time.NewTicker(a.o.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			a.sweep(ctx)
		}
	}
}

// sweep looks for what no call of a runtime will end: records of containers that are gone, and links that no record is about.
// It acts on evidence alone, and only on what it has seen twice, an interval apart. What cannot be seen is not gone.
func (a *Agent) sweep(ctx context.Context) {
	a.undoPending(ctx)
	a.tombs.prune(a.o.Now().Add(-tombLife))
	inv, err := a.inventory(ctx)
	if err != nil {
		a.o.Log.WarnContext(ctx, "cannot look for what is left over", "err", err)
		a.suspects = nil
		return
	}
	suspects := make(map[string]int)
	twice := func(what string) bool {
		suspects[what] = a.suspects[what] + 1
		return suspects[what] >= 2
	}
	remains := func(what string, err error) {
		if suspects[what] == 2 { // said once
			a.o.Log.WarnContext(ctx, "something remains that nobody seems to need", "target", what, "err", err)
		}
	}
	records := a.o.Store.All() // after the links: one that went meanwhile had a record then
	for _, att := range records {
		if ctx.Err() != nil {
			return
		}
		what := "record " + att.ID.String()
		if !ended(att, inv, records) || !twice(what) {
			continue
		}
		if err := a.collect(ctx, att, "its network namespace has ended"); err != nil {
			remains(what, err)
		}
	}
	for _, link := range unrecorded(inv, records) {
		what := "link " + link.HostIf
		if !twice(what) {
			continue
		}
		if err := a.removeLink(ctx, link); err != nil {
			remains(what, err)
		}
	}
	a.suspects = suspects
}

// inventory bounds the look at the kernel, which begins anew whenever something changes under its eyes.
func (a *Agent) inventory(ctx context.Context) (Inventory, error) {
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	return a.o.Datapath.Inventory(ctx)
}

// ended reports whether there is evidence that an attachment's container is gone: its link is, and so is its network
// namespace. A link alone may have been removed by somebody while the container lives.
func ended(att Attachment, inv Inventory, records []Attachment) bool {
	if _, there := inv.Links[att.HostIf]; there || !att.Committed || att.Namespace == NoNetns {
		return false
	}
	if !inv.Namespaces[att.Namespace] {
		return true
	}
	// The kernel gives the numbers of those that ended to others.
	return slices.ContainsFunc(records, func(other Attachment) bool {
		link, there := inv.Links[other.HostIf]
		return there && link.Namespace == att.Namespace && other.ID.ContainerID != att.ID.ContainerID
	})
}

// unrecorded returns the links that no record is about, ordered by name.
func unrecorded(inv Inventory, records []Attachment) []Attachment {
	links := maps.Clone(inv.Links)
	for _, att := range records {
		delete(links, att.HostIf)
	}
	return slices.SortedFunc(maps.Values(links), func(a, b Attachment) int {
		return LinkName(a.HostIf).Compare(LinkName(b.HostIf))
	})
}

// removeLink removes a link that no record is about if nobody can be using it: without addresses and without a name it is the
// beginning of an ADD whose record was lost.
func (a *Agent) removeLink(ctx context.Context, link Attachment) error {
	if named(link) || len(link.Addrs) > 0 {
		return fmt.Errorf("it may be in use by %s with the addresses %v; a DEL of that container, or a restart of the node process, settles it",
			link.ID, link.Addrs)
	}
	a.o.Log.WarnContext(ctx, "removing a link that nobody uses", "host_if", link.HostIf)
	return a.o.Datapath.Detach(ctx, link)
}

// adoptAll takes over what runs without a record, at the start, when no handler works on anything: the records may have been
// lost, the containers live on, and what they have must not be given to others.
func (a *Agent) adoptAll(ctx context.Context) error {
	inv, err := a.inventory(ctx)
	if err != nil {
		return fmt.Errorf("look for containers that are attached: %w", err)
	}
	for _, link := range unrecorded(inv, a.o.Store.All()) {
		if !named(link) || len(link.Addrs) == 0 {
			continue // the sweep looks again
		}
		err := a.adopt(ctx, link)
		if errors.Is(err, ErrAddress) {
			// Nobody else gets them, as they are on record, and which of the two is right is not to be seen from here.
			a.o.Log.ErrorContext(ctx, "a link has addresses that are on record for another container", "host_if", link.HostIf, "err", err)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// adopt makes a record of what the kernel shows of an attachment.
func (a *Agent) adopt(ctx context.Context, link Attachment) error {
	c := a.config.Load()
	link.Created = a.o.Now()
	// The kernel does not tell; this is so unless the network's configuration said otherwise.
	link.NoDefault = link.ID.IfName != firstInterface
	if link.MAC == (MAC{}) {
		link.MAC = a.mac(link.ID, "pod") // what it was given, if nobody asked for another
	}
	for _, addr := range link.Addrs {
		link.Pools = append(link.Pools, c.poolOf(addr))
	}
	// That it has been reached at an anycast address tells that it claims it, and serves.
	link.Pod.Intent.Anycast, link.Pod.Ready = makeClaims(link.Anycast), len(link.Anycast) > 0
	_, created, err := a.o.Store.Reserve(link.ID, func(taken Taken) (Attachment, error) {
		for _, addr := range link.Addrs {
			if taken.Addr(addr) {
				return link, fmt.Errorf("%w: %s of link %s is in use", ErrAddress, addr, link.HostIf)
			}
		}
		return link, nil
	})
	if err == nil && !created {
		err = fmt.Errorf("%w: the container is on record with another link than %s", ErrAddress, link.HostIf)
	}
	if err == nil {
		err = a.o.Store.Commit(link.ID, link.Namespace)
	}
	if err != nil {
		return fmt.Errorf("take over %s: %w", link.ID, err)
	}
	a.o.Log.WarnContext(ctx, "took over an attachment that had no record", "pod", link.Pod.Key,
		"container", link.ID.ContainerID, "ifname", link.ID.IfName, "addr", link.Addrs, "host_if", link.HostIf)
	return nil
}

// named reports whether a link's description names the attachment that the link's own name is made of.
func named(link Attachment) bool {
	const names = 4 // of one attachment; more are never taken in practice
	if link.ID == (cni.ID{}) {
		return false
	}
	for n := range names {
		if link.HostIf == HostIf(link.ID, n) {
			return true
		}
	}
	return false
}
