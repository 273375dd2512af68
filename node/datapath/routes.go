package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/node"
)

// metricLearned is the metric of learned routes. It is worse than that of routes an operator adds without one in IPv4, and
// better than the 1024 of IPv6 routes without one, router advertisements' default routes among them.
const metricLearned = 200

// Routes is a [node.Target] of the routes in the main table that carry one of our protocol numbers. It sees and touches no
// other.
type Routes struct {
	d        *Datapath
	protocol netlink.RouteProtocol
}

// Routes returns the host routes and aggregates.
func (d *Datapath) Routes() *Routes { return &Routes{d, Protocol} }

// Learned returns the routes that came from BGP peers.
func (d *Datapath) Learned() *Routes { return &Routes{d, ProtocolLearned} }

var _ node.Target[netip.Prefix, node.Route] = (*Routes)(nil)

// errForeignRoute: the place of a route is taken.
var errForeignRoute = errors.New("somebody else has a route to this prefix")

// List implements [node.Target].
func (r *Routes) List(ctx context.Context) (map[netip.Prefix]node.Route, error) {
	h, giveBack, err := r.d.handle()
	if err != nil {
		return nil, err
	}
	defer giveBack()
	names, err := linkNames(ctx, h)
	if err != nil {
		return nil, err
	}
	out := make(map[netip.Prefix]node.Route)
	for _, family := range []int{netlink.FAMILY_V6, netlink.FAMILY_V4} {
		routes, err := mainRoutes(ctx, h, family, r.protocol)
		if err != nil {
			return nil, err
		}
		for _, route := range routes {
			p := prefixOf(route.Dst, family)
			if _, twice := out[p]; twice {
				out[p] = node.Route{} // of different metrics; not as we make it either
				continue
			}
			out[p] = r.fromKernel(route, names)
		}
	}
	return out, nil
}

// fromKernel reads a route. One that we would not have made so gets no kind and is therefore replaced.
func (r *Routes) fromKernel(k netlink.Route, names map[int]string) node.Route {
	route := node.Route{Source: addrOf(k.Src)}
	switch {
	case r.protocol == ProtocolLearned:
		if k.Priority != metricLearned {
			return node.Route{}
		}
		route.Kind, route.Hops = node.RouteLearned, hops(k, names)
	case k.Type == unix.RTN_UNREACHABLE:
		route.Kind = node.RouteAggregate
	case k.Type == unix.RTN_UNICAST && (k.Gw != nil || len(k.MultiPath) > 0):
		var vias []node.Via
		for _, hop := range nexthops(k) {
			vias = append(vias, node.Via{Addr: addrOf(hop.Gw), Link: names[hop.LinkIndex]})
		}
		route.Kind, route.Vias = node.RouteAnycast, node.MakeVias(vias)
	case k.Type == unix.RTN_UNICAST && k.Via == nil:
		route.Kind, route.Link = node.RouteHost, names[k.LinkIndex]
	}
	return route
}

// nexthops are those of a route, be they one or many.
func nexthops(k netlink.Route) []*netlink.NexthopInfo {
	if len(k.MultiPath) > 0 {
		return k.MultiPath
	}
	return []*netlink.NexthopInfo{{LinkIndex: k.LinkIndex, Gw: k.Gw, Via: k.Via}}
}

func hops(k netlink.Route, names map[int]string) bgp.Hops {
	var out []netip.Addr
	for _, p := range nexthops(k) {
		gw := addrOf(p.Gw)
		if via, ok := p.Via.(*netlink.Via); ok {
			gw = addrOf(via.Addr)
		}
		if gw.Is6() && gw.IsLinkLocalUnicast() {
			gw = gw.WithZone(names[p.LinkIndex])
		}
		out = append(out, gw)
	}
	return bgp.MakeHops(out)
}

// Put implements [node.Target].
func (r *Routes) Put(ctx context.Context, p netip.Prefix, v node.Route) error {
	h, giveBack, err := r.d.handle()
	if err != nil {
		return err
	}
	defer giveBack()
	route, err := r.toKernel(h, p, v)
	if err != nil {
		return err
	}
	err = h.RouteAdd(route)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	// Something is there. If it is ours it is replaced, if it is not it stays.
	there, err := r.at(ctx, h, p)
	if err != nil {
		return err
	}
	switch {
	case len(there) == 0:
		return errForeignRoute
	case len(there) == 1 && there[0].Type == route.Type && there[0].Priority == metric(route):
		return h.RouteReplace(route) // no packet finds the route missing
	}
	for _, old := range there {
		if err := r.remove(h, p, old); err != nil {
			return err
		}
	}
	if err := h.RouteAdd(route); err != nil {
		return fmt.Errorf("replace: %w", err)
	}
	return nil
}

// metric is what the kernel makes of a route's: in IPv6 none is 1024 (IP6_RT_PRIO_USER, linux/ipv6_route.h).
func metric(r *netlink.Route) int {
	if r.Priority == 0 && r.Dst.IP.To4() == nil {
		return 1024
	}
	return r.Priority
}

// at returns our routes to a prefix.
func (r *Routes) at(ctx context.Context, h *handle, p netip.Prefix) ([]netlink.Route, error) {
	family := netlink.FAMILY_V6
	if p.Addr().Is4() {
		family = netlink.FAMILY_V4
	}
	all, err := mainRoutes(ctx, h, family, 0)
	if err != nil {
		return nil, err
	}
	var out []netlink.Route
	for _, route := range all {
		if route.Protocol == r.protocol && prefixOf(route.Dst, family) == p {
			out = append(out, route)
		}
	}
	return out, nil
}

func (r *Routes) toKernel(h *handle, p netip.Prefix, v node.Route) (*netlink.Route, error) {
	route := &netlink.Route{
		Dst: ipNet(p), Protocol: r.protocol, Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST,
		Src: v.Source.AsSlice(),
	}
	switch v.Kind {
	case node.RouteAggregate:
		route.Type = unix.RTN_UNREACHABLE
	case node.RouteHost:
		link, err := h.LinkByName(v.Link)
		if err != nil {
			return nil, fmt.Errorf("find %s: %w", v.Link, err)
		}
		route.LinkIndex = link.Attrs().Index
		if p.Addr().Is4() {
			route.Scope = netlink.SCOPE_LINK
		}
	case node.RouteAnycast:
		if err := setVias(h, route, v.Vias); err != nil {
			return nil, err
		}
	case node.RouteLearned:
		route.Priority = metricLearned
		if err := setHops(h, route, v.Hops); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("unknown kind %q", v.Kind)
	}
	return route, nil
}

// setHops gives a route its next hops: one directly, several as a multipath route.
func setHops(h *handle, route *netlink.Route, set bgp.Hops) error {
	var paths []*netlink.NexthopInfo
	for _, hop := range set.Values() {
		path := &netlink.NexthopInfo{Gw: hop.WithZone("").AsSlice()}
		if hop.Is6() && route.Dst.IP.To4() != nil {
			path.Gw, path.Via = nil, &netlink.Via{AddrFamily: unix.AF_INET6, Addr: hop.WithZone("").AsSlice()} // RFC 8950
		}
		if zone := hop.Zone(); zone != "" {
			link, err := h.LinkByName(zone)
			if err != nil {
				return fmt.Errorf("find %s: %w", zone, err)
			}
			path.LinkIndex = link.Attrs().Index
		}
		paths = append(paths, path)
	}
	return setPaths(route, paths)
}

// setVias leads a route to pods by their own addresses. They are on the link although no subnet says so.
func setVias(h *handle, route *netlink.Route, vias node.Vias) error {
	var paths []*netlink.NexthopInfo
	for _, via := range vias.Values() {
		link, err := h.LinkByName(via.Link)
		if gone(err) {
			continue // the others still serve
		}
		if err != nil {
			return fmt.Errorf("find %s: %w", via.Link, err)
		}
		paths = append(paths, &netlink.NexthopInfo{LinkIndex: link.Attrs().Index, Gw: via.Addr.AsSlice(), Flags: int(netlink.FLAG_ONLINK)})
	}
	if len(paths) == 0 {
		return errors.New("the links of all its pods are gone")
	}
	return setPaths(route, paths)
}

func setPaths(route *netlink.Route, paths []*netlink.NexthopInfo) error {
	switch len(paths) {
	case 0:
		return errors.New("a route has no next hop")
	case 1:
		route.Gw, route.Via, route.LinkIndex, route.Flags = paths[0].Gw, paths[0].Via, paths[0].LinkIndex, paths[0].Flags
	default:
		route.MultiPath = paths
	}
	return nil
}

// Delete implements [node.Target].
func (r *Routes) Delete(ctx context.Context, p netip.Prefix) error {
	h, giveBack, err := r.d.handle()
	if err != nil {
		return err
	}
	defer giveBack()
	there, err := r.at(ctx, h, p)
	if err != nil {
		return err
	}
	for _, route := range there {
		if err := r.remove(h, p, route); err != nil {
			return err
		}
	}
	return nil
}

func (r *Routes) remove(h *handle, p netip.Prefix, route netlink.Route) error {
	r.d.expected.add(routeEvent(p))
	if err := h.RouteDel(&route); err != nil {
		r.d.expected.take(routeEvent(p))
		if !gone(err) {
			return err
		}
	}
	return nil
}
