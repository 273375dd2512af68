package node

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/gaggle-cni/gaggle/bgp"
)

// A World is all that a plan depends on.
type World struct {
	Now         time.Time
	Config      Config
	Readiness   bool // the pods' readiness is known; else all that are attached serve
	Attachments []Attachment
	// Uplinks tells how the node reaches its peers and, by the unspecified addresses, everything else.
	Uplinks map[netip.Addr]Uplink
	// Learned are the routes that peers offer and their import policies accept.
	Learned []bgp.LearnedRoute
	// Connected are the node's own addresses with the lengths of their subnets; nil when not known.
	Connected []netip.Prefix
}

// Desired is what must hold outside the process.
type Desired struct {
	Ends     map[LinkName]End
	Routes   map[netip.Prefix]Route // to pods, and aggregates
	Learned  map[netip.Prefix]Route
	Announce map[netip.Prefix]bgp.Announcement
	Peers    map[bgp.PeerID]bgp.Peer

	Sources    map[LinkName]SourceCheck
	Masquerade map[netip.Prefix]bgp.Prefixes // with the destinations that are not

	Refused []Refusal // claims that have lost their grant
	Recheck time.Time // when time alone changes the plan; zero if it does not
}

// refusals joins them to one error; nil when there are none.
func (d Desired) refusals() error {
	var errs []error
	for _, r := range d.Refused {
		errs = append(errs, r)
	}
	return errors.Join(errs...)
}

// Plan says what must hold outside, given the world. It is a pure function: an ADD, a repair and a restart call it with
// more or less in the world, and nothing else.
func Plan(w World) Desired {
	d := Desired{
		Ends:     make(map[LinkName]End),
		Routes:   make(map[netip.Prefix]Route),
		Learned:  make(map[netip.Prefix]Route),
		Announce: make(map[netip.Prefix]bgp.Announcement),
		Peers:    make(map[bgp.PeerID]bgp.Peer),

		Sources:    make(map[LinkName]SourceCheck),
		Masquerade: make(map[netip.Prefix]bgp.Prefixes),
	}
	self := w.self()
	newest := w.holders()
	if !w.Config.NoSourceCheck {
		d.planSources(w.Attachments)
	}
	for _, a := range w.Attachments {
		if a.Committed {
			d.planAttachment(a, w.Config, self, newest)
		}
	}
	d.planAnycast(w, self)
	for _, p := range w.Config.Pools {
		d.Routes[p.Prefix] = Route{Kind: RouteAggregate}
		if p.Announce == AnnounceAggregate {
			d.announce(w.Config, p.Prefix, bgp.KindPool)
		}
		if p.Masquerade {
			d.Masquerade[p.Prefix] = p.Direct
		}
	}
	d.planPeers(w)
	d.planLearned(w, self)
	return d
}

// planSources lets a container send from all its addresses by each of its links: an answer leaves by the default route, whichever
// link the question came by. Also one that comes or goes is checked, as its container may be running.
func (d Desired) planSources(all []Attachment) {
	own := make(map[string][]netip.Addr)
	for _, a := range all {
		own[a.ID.ContainerID] = append(own[a.ID.ContainerID], a.Bound()...)
	}
	for _, a := range all {
		d.Sources[LinkName(a.HostIf)] = SourceCheck{On: true, Addrs: MakeAddrs(own[a.ID.ContainerID])}
	}
}

// holders tells which attachment has each address. A static one is the newest sandbox's of its pod.
func (w World) holders() map[netip.Addr]Attachment {
	newest := make(map[netip.Addr]Attachment)
	for _, a := range w.Attachments {
		if !a.Committed {
			continue
		}
		for _, addr := range a.Own() {
			if other, ok := newest[addr]; !ok || other.Created.Before(a.Created) {
				newest[addr] = a
			}
		}
	}
	return newest
}

func (d *Desired) planAttachment(a Attachment, c Config, self bgp.NextHops, newest map[netip.Addr]Attachment) {
	d.Ends[LinkName(a.HostIf)] = a.End()
	static := a.Pod.Intent.Addresses.Values()
	leaving := !a.Pod.Draining.IsZero()
	for _, addr := range a.Own() {
		if newest[addr].ID != a.ID {
			continue
		}
		host := netip.PrefixFrom(addr, addr.BitLen())
		d.Routes[host] = Route{Kind: RouteHost, Link: a.HostIf, Source: ownAddr(self, addr)}
		kind := bgp.KindPod
		if slices.Contains(static, addr) {
			kind = bgp.KindAddresses
			if err := c.granted(a.Pod.Key.Namespace, UseAddresses, addr); err != nil {
				d.Refused = append(d.Refused, Refusal{a.Pod, err})
				continue
			}
		}
		switch {
		case kind == bgp.KindAddresses && !c.covered(addr) && leaving:
			// Its next sandbox may be on another node already.
			d.announceAs(c, host, kind, shutdown(c.attributes(kind)))
		case kind == bgp.KindAddresses && !c.covered(addr), kind == bgp.KindPod && c.announcesAlone(addr):
			d.announce(c, host, kind)
		}
	}
}

// End is what the host's end of the attachment must be.
func (a Attachment) End() End {
	return End{
		IPv4: slices.ContainsFunc(a.Addrs, netip.Addr.Is4), IPv6: slices.ContainsFunc(a.Addrs, netip.Addr.Is6),
		Up: true, Settings: true,
	}
}

// covered reports whether an announced aggregate draws the address's traffic to this node.
func (c Config) covered(addr netip.Addr) bool {
	p, ok := c.poolWith(addr)
	return ok && p.Announce == AnnounceAggregate
}

// announcesAlone reports whether a pool's address is announced by itself. A pool may have gone from the configuration while
// its pods live on.
func (c Config) announcesAlone(addr netip.Addr) bool {
	p, ok := c.poolWith(addr)
	return !ok || p.Announce == AnnounceHosts
}

func (d Desired) announce(c Config, p netip.Prefix, kind bgp.Kind) {
	d.announceAs(c, p, kind, c.attributes(kind))
}

func (d Desired) announceAs(c Config, p netip.Prefix, kind bgp.Kind, attributes bgp.Attributes) {
	if c.BGP != nil {
		d.Announce[p] = bgp.Announcement{Kind: kind, Attributes: attributes}
	}
}

func (d Desired) planPeers(w World) {
	if w.Config.BGP == nil {
		return
	}
	maps.Copy(d.Peers, w.Config.BGP.Peers)
	for id, p := range d.Peers {
		up := w.Uplinks[id.Addr]
		p.NextHops = bgp.NextHops{IPv4: up.IPv4, IPv6: up.IPv6}
		d.Peers[id] = p
	}
}

func (d Desired) planLearned(w World, self bgp.NextHops) {
	for _, l := range w.Learned {
		if _, own := d.Routes[l.Prefix]; own || w.reserved(l.Prefix) {
			continue
		}
		d.Learned[l.Prefix] = Route{Kind: RouteLearned, Source: ownAddr(self, l.Prefix.Addr()), Hops: l.NextHops}
	}
}

// reserved reports whether a learned prefix would pull local traffic through a router: one that equals, or is part of, a
// connected subnet or a pool. A shorter one does no harm, as the kernel prefers the longer.
func (w World) reserved(p netip.Prefix) bool {
	within := func(local netip.Prefix) bool {
		return local.Bits() <= p.Bits() && local.Contains(p.Addr())
	}
	return slices.ContainsFunc(w.Connected, within) ||
		slices.ContainsFunc(w.Config.Pools, func(pool Pool) bool { return within(pool.Prefix) })
}

// self returns the node's own addresses: the configured ones, else those of the links towards the default routes, else of
// the links towards the peers.
func (w World) self() bgp.NextHops {
	self := w.Config.NodeIPs
	for _, dst := range w.Config.destinations() {
		up, ok := w.Uplinks[dst]
		if !ok {
			continue
		}
		if !self.IPv4.IsValid() {
			self.IPv4 = up.IPv4
		}
		if !self.IPv6.IsValid() {
			self.IPv6 = up.IPv6
		}
	}
	return self
}

// uplinkMTU returns the smallest MTU of the links that pods' traffic leaves by; 0 when there is none.
func (w World) uplinkMTU() (mtu int) {
	for _, up := range w.Uplinks {
		if mtu == 0 || up.MTU < mtu {
			mtu = up.MTU
		}
	}
	return mtu
}

func ownAddr(self bgp.NextHops, dst netip.Addr) netip.Addr {
	if dst.Is4() {
		return self.IPv4
	}
	return self.IPv6
}
