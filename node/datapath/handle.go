package datapath

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A handle is a netlink socket in one namespace. Everything that it changes passes by Options.Before.
type handle struct {
	*netlink.Handle
	before func(op string) error
}

// handle borrows a socket in the node's namespace.
func (d *Datapath) handle() (h *handle, giveBack func(), err error) {
	select {
	case h = <-d.handles:
	default:
		if h, err = d.handleAt(d.ns); err != nil {
			return nil, nil, fmt.Errorf("open netlink socket: %w", err)
		}
	}
	return h, func() {
		select {
		case d.handles <- h:
		default:
			h.Close()
		}
	}, nil
}

// handleAt opens a socket in any namespace. The caller closes it.
func (d *Datapath) handleAt(ns netns.NsHandle) (*handle, error) {
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	return &handle{h, d.o.Before}, nil
}

func (h *handle) LinkAdd(l netlink.Link) error {
	if err := h.before("link add"); err != nil {
		return err
	}
	return h.Handle.LinkAdd(l)
}

func (h *handle) LinkDel(l netlink.Link) error {
	if err := h.before("link delete"); err != nil {
		return err
	}
	return h.Handle.LinkDel(l)
}

func (h *handle) LinkSetAlias(l netlink.Link, name string) error {
	if err := h.before("link alias"); err != nil {
		return err
	}
	return h.Handle.LinkSetAlias(l, name)
}

func (h *handle) LinkSetUp(l netlink.Link) error {
	if err := h.before("link up"); err != nil {
		return err
	}
	return h.Handle.LinkSetUp(l)
}

func (h *handle) LinkSetIP6AddrGenMode(l netlink.Link, mode int) error {
	if err := h.before("link addrgenmode"); err != nil {
		return err
	}
	return h.Handle.LinkSetIP6AddrGenMode(l, mode)
}

func (h *handle) AddrAdd(l netlink.Link, a *netlink.Addr) error {
	if err := h.before("address add"); err != nil {
		return err
	}
	return h.Handle.AddrAdd(l, a)
}

func (h *handle) NeighSet(n *netlink.Neigh) error {
	if err := h.before("neighbour set"); err != nil {
		return err
	}
	return h.Handle.NeighSet(n)
}

func (h *handle) RouteAdd(r *netlink.Route) error {
	if err := h.before("route add"); err != nil {
		return err
	}
	return h.Handle.RouteAdd(r)
}

func (h *handle) RouteReplace(r *netlink.Route) error {
	if err := h.before("route replace"); err != nil {
		return err
	}
	return h.Handle.RouteReplace(r)
}

func (h *handle) RouteDel(r *netlink.Route) error {
	if err := h.before("route delete"); err != nil {
		return err
	}
	return h.Handle.RouteDel(r)
}
