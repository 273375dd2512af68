package datapath

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// dump repeats a dump that a concurrent change interrupted: what came back then may lack entries, and must never be taken
// for the truth.
func dump[T any](ctx context.Context, what string, list func() ([]T, error)) ([]T, error) {
	for {
		items, err := list()
		if err == nil {
			return items, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("list %s: %w", what, err)
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("list %s: %w", what, errors.Join(err, ctx.Err()))
		}
	}
}

func links(ctx context.Context, h *handle) ([]netlink.Link, error) {
	return dump(ctx, "links", h.LinkList)
}

// linkNames maps the links' indices to their names.
func linkNames(ctx context.Context, h *handle) (map[int]string, error) {
	all, err := links(ctx, h)
	if err != nil {
		return nil, err
	}
	names := make(map[int]string, len(all))
	for _, l := range all {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	return names, nil
}

// addresses lists those of a link; nil for all links.
func addresses(ctx context.Context, h *handle, link netlink.Link) ([]netlink.Addr, error) {
	return dump(ctx, "addresses", func() ([]netlink.Addr, error) { return h.AddrList(link, netlink.FAMILY_ALL) })
}

// mainRoutes lists the main table, where protocol is not zero the routes of that protocol only.
func mainRoutes(ctx context.Context, h *handle, family int, protocol netlink.RouteProtocol) ([]netlink.Route, error) {
	mask := netlink.RT_FILTER_TABLE
	if protocol != 0 {
		mask |= netlink.RT_FILTER_PROTOCOL
	}
	filter := &netlink.Route{Protocol: protocol, Table: unix.RT_TABLE_MAIN}
	return dump(ctx, "routes", func() ([]netlink.Route, error) { return h.RouteListFiltered(family, filter, mask) })
}

// allRoutes lists every table.
func allRoutes(ctx context.Context, h *handle, family int) ([]netlink.Route, error) {
	// A filter for no table in particular; without one the library leaves out all but the main table.
	filter := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
	return dump(ctx, "routes", func() ([]netlink.Route, error) { return h.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE) })
}

func neighbours(ctx context.Context, h *handle, link netlink.Link, family int) ([]netlink.Neigh, error) {
	return dump(ctx, "neighbours", func() ([]netlink.Neigh, error) { return h.NeighList(link.Attrs().Index, family) })
}
