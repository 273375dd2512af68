package node

import (
	"net/netip"
	"slices"
	"time"

	"github.com/gaggle-cni/gaggle/bgp"
)

// A sharing is who answers at an anycast address of this node.
type sharing struct {
	serving, draining []Via
	until             time.Time // when the first of those that drain stops
}

// planAnycast shares each address among the pods that have it and serve. The kernel reaches each by the pod's own address, which
// it resolves as ever. When all that are left drain, traffic still comes to them while the routers look for another way.
func (d *Desired) planAnycast(w World, self bgp.NextHops) {
	shared := make(map[netip.Addr]*sharing)
	newest := w.newestSandboxes()
	for _, a := range w.Attachments {
		if !a.Committed || a.Pod.Key != (PodKey{}) && newest[interfaceOf(a)].ID != a.ID {
			continue
		}
		for _, addr := range a.Anycast {
			d.shareAnycast(shared, w, a, addr)
		}
	}
	for addr, s := range shared {
		host := netip.PrefixFrom(addr, addr.BitLen())
		vias, attributes := s.serving, w.Config.attributes(bgp.KindAnycast)
		if len(vias) == 0 {
			vias, attributes = s.draining, shutdown(attributes)
			d.recheck(s.until)
		}
		d.Routes[host] = Route{Kind: RouteAnycast, Vias: MakeVias(vias), Source: ownAddr(self, addr)}
		d.announceAs(w.Config, host, bgp.KindAnycast, attributes)
	}
}

// A podInterface is an interface of a pod, whichever sandbox it is in.
type podInterface struct {
	pod    PodKey
	ifName string
}

func interfaceOf(a Attachment) podInterface { return podInterface{a.Pod.Key, a.ID.IfName} }

// newestSandboxes tells which attachment is a pod's own now. Of an older one nothing is left but its DEL.
func (w World) newestSandboxes() map[podInterface]Attachment {
	newest := make(map[podInterface]Attachment)
	for _, a := range w.Attachments {
		other, ok := newest[interfaceOf(a)]
		if a.Committed && (!ok || other.Created.Before(a.Created)) {
			newest[interfaceOf(a)] = a
		}
	}
	return newest
}

// shareAnycast adds a pod to those that share an address, if it may and does.
func (d *Desired) shareAnycast(shared map[netip.Addr]*sharing, w World, a Attachment, addr netip.Addr) {
	if !slices.Contains(a.Pod.Intent.Anycast.Values(), addr) {
		return // its annotation claims it no more
	}
	if err := w.Config.granted(a.Pod.Key.Namespace, UseAnycast, addr); err != nil {
		d.Refused = append(d.Refused, Refusal{a.Pod, err})
		return
	}
	i := slices.IndexFunc(a.Addrs, func(own netip.Addr) bool { return own.Is4() == addr.Is4() })
	if i < 0 { // it was chosen so that there is one, and what is read off the kernel may lack it
		return
	}
	via := Via{a.Addrs[i], a.HostIf}
	drained := a.Pod.Draining.Add(w.Config.DrainTime)
	serves := !w.Readiness || a.Pod.Ready
	drains := !a.Pod.Draining.IsZero() && drained.After(w.Now)
	if !serves && !drains {
		return
	}
	s := shared[addr]
	if s == nil {
		s = &sharing{}
		shared[addr] = s
	}
	if serves {
		s.serving = append(s.serving, via)
		return
	}
	s.draining = append(s.draining, via)
	if s.until.IsZero() || drained.Before(s.until) {
		s.until = drained
	}
}

// recheck asks for a plan at a time, or sooner.
func (d *Desired) recheck(at time.Time) {
	if d.Recheck.IsZero() || at.Before(d.Recheck) {
		d.Recheck = at
	}
}

// shutdown marks an announcement with GRACEFUL_SHUTDOWN (RFC 8326): routers prefer any other way.
func shutdown(a bgp.Attributes) bgp.Attributes {
	a.Communities = a.Communities.With(bgp.GracefulShutdown)
	return a
}
