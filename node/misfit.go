package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// A Misfit is a part of the configuration that does not fit the node that it is for: an address the node does not have, or a
// pool over something the node lives by. The aggregate's unreachable route would swallow what is sent to the hosts of a
// connected subnet, and a pod could be given a router's address.
type Misfit struct {
	Pool   string       // the pool's name; empty for one of Config.NodeIPs
	Prefix netip.Prefix // what is configured
	Own    netip.Prefix // the pool lies over the subnet of this address of the node
	Hop    netip.Addr   // the pool lies over this next hop
}

// Error says what does not fit.
func (m Misfit) Error() string {
	switch {
	case m.Pool == "":
		return fmt.Sprintf("the node has no address %s, which --node-ip says it has", m.Prefix.Addr())
	case m.Hop.IsValid():
		return fmt.Sprintf("pool %q (%s) lies over %s, a router this node sends to", m.Pool, m.Prefix, m.Hop)
	}
	return fmt.Sprintf("pool %q (%s) lies over the subnet of this node's address %s", m.Pool, m.Prefix, m.Own)
}

// Misfits compares the configuration with the node. A pool inside a larger connected subnet counts: the longer prefix wins,
// so that hosts of the subnet in that range would be cut off, and the others would look for pods on the link.
func (w World) Misfits() (misfits []Misfit) {
	if w.Connected == nil {
		return nil // not known yet, which is not empty
	}
	for _, ip := range []netip.Addr{w.Config.NodeIPs.IPv6, w.Config.NodeIPs.IPv4} {
		has := func(own netip.Prefix) bool { return own.Addr() == ip }
		if ip.IsValid() && !slices.ContainsFunc(w.Connected, has) {
			misfits = append(misfits, Misfit{Prefix: netip.PrefixFrom(ip, ip.BitLen())})
		}
	}
	hops := w.hops()
	for _, p := range w.Config.Pools {
		var under []netip.Prefix
		for _, own := range w.Connected {
			if own.Overlaps(p.Prefix) {
				under = append(under, own)
				misfits = append(misfits, Misfit{Pool: p.Name, Prefix: p.Prefix, Own: own})
			}
		}
		for _, hop := range hops {
			said := func(own netip.Prefix) bool { return own.Contains(hop) }
			if p.Prefix.Contains(hop) && !slices.ContainsFunc(under, said) {
				misfits = append(misfits, Misfit{Pool: p.Name, Prefix: p.Prefix, Hop: hop})
			}
		}
	}
	return misfits
}

// hops returns the routers that the node sends to, in order.
func (w World) hops() (hops []netip.Addr) {
	for _, up := range w.Uplinks {
		if up.Gateway.IsValid() {
			hops = append(hops, up.Gateway)
		}
	}
	slices.SortFunc(hops, netip.Addr.Compare)
	return slices.Compact(hops)
}

// misfits joins them to one error; nil when there are none.
func (w World) misfits() error {
	var errs []error
	for _, m := range w.Misfits() {
		errs = append(errs, m)
	}
	return errors.Join(errs...)
}

// Survey returns the world of a node on which nothing has been done yet.
func Survey(ctx context.Context, c Config, d Datapath) (World, error) {
	f, err := look(ctx, c, d)
	return World{Config: c, Uplinks: f.uplinks, Connected: f.connected}, err
}
