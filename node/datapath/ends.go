package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/gaggle-cni/gaggle/node"
)

// Ends are the host's ends of pods' veth pairs, a [node.Target]. They come with [Datapath.Attach] and go with
// [Datapath.Detach]; here, what was changed on them is put right.
type Ends struct{ d *Datapath }

var _ node.Target[node.LinkName, node.End] = (*Ends)(nil)

// Ends returns the target.
func (d *Datapath) Ends() *Ends { return &Ends{d} }

// List implements [node.Target].
func (e *Ends) List(ctx context.Context) (map[node.LinkName]node.End, error) {
	h, giveBack, err := e.d.handle()
	if err != nil {
		return nil, err
	}
	defer giveBack()
	all, err := links(ctx, h)
	if err != nil {
		return nil, err
	}
	addrs, err := addresses(ctx, h, nil)
	if err != nil {
		return nil, err
	}
	type on struct {
		link int
		addr netip.Prefix
	}
	has := make(map[on]bool, len(addrs))
	for _, a := range addrs {
		has[on{a.LinkIndex, addrPrefix(a)}] = true
	}
	out := make(map[node.LinkName]node.End)
	err = inNamespace(e.d.ns, func() error {
		for _, link := range all {
			if !ours(link) {
				continue
			}
			name, index := link.Attrs().Name, link.Attrs().Index
			end := node.End{IPv4: has[on{index, gateway4}], IPv6: has[on{index, gateway6}], Up: isUp(link)}
			end.Settings = e.d.isSet(hostSettings(name, end.IPv6))
			out[node.LinkName(name)] = end
		}
		return nil
	})
	return out, err
}

// Put implements [node.Target].
func (e *Ends) Put(_ context.Context, name node.LinkName, end node.End) error {
	h, giveBack, err := e.d.handle()
	if err != nil {
		return err
	}
	defer giveBack()
	link, err := h.LinkByName(string(name))
	if err != nil {
		return fmt.Errorf("find the link: %w", err)
	}
	if !ours(link) {
		return node.ErrForeignLink
	}
	return e.d.setEnd(h, link, end)
}

// Delete implements [node.Target]. It is not the way in which a link goes.
func (*Ends) Delete(context.Context, node.LinkName) error { return errors.ErrUnsupported }

// setEnd makes a host's end what it must be. What is right already is not touched.
func (d *Datapath) setEnd(h *handle, link netlink.Link, end node.End) error {
	name := link.Attrs().Name
	if err := d.setLinks(d.ns, hostSettings(name, end.IPv6)); err != nil {
		return err
	}
	if err := addAddrs(h, link, gatewayAddrs(end)); err != nil {
		return err
	}
	if isUp(link) {
		return nil
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up %s: %w", name, err)
	}
	return nil
}

func hostSettings(link string, ipv6 bool) []setting {
	settings := []setting{
		{"ipv6", link, "accept_ra", "0"},
		{"ipv6", link, "accept_dad", "0"},
		{"ipv6", link, "forwarding", "1"},
		{"ipv4", link, "forwarding", "1"},
		// Loose: the kernel takes the larger of this and the setting for all links, so that only 2 is sure to hold whatever
		// the host's defaults are.
		{"ipv4", link, "rp_filter", "2"},
	}
	if ipv6 {
		settings = append(settings, setting{"ipv6", link, "disable_ipv6", "0"})
	}
	return settings
}
