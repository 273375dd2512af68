package nodeconfig

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/ipam"
	"github.com/gaggle-cni/gaggle/node"
	"github.com/gaggle-cni/gaggle/node/api/v1alpha1"
)

// ErrNoPodCIDRs means that a pool takes what the cluster assigns to the node, and the cluster has not assigned anything yet.
// It passes by itself, once the node's spec.podCIDRs is filled.
var ErrNoPodCIDRs = errors.New("the cluster has not assigned pod CIDRs to this node yet (spec.podCIDRs of the Node is empty)")

// sourcePodCIDRs makes a pool of what the cluster assigns to the node.
const sourcePodCIDRs = "PodCIDRs"

func (c *converter) pools(raw []v1alpha1.Pool) (pools []node.Pool) {
	if len(raw) == 0 && c.o.Cluster != nil {
		raw = []v1alpha1.Pool{{Name: "pods", Source: sourcePodCIDRs}}
	}
	if len(raw) == 0 {
		c.problem("spec.pools", "is empty; pods need at least one pool, as in {name: pods, cidr: 2001:db8:1::/64}")
	}
	seen := make(map[string]bool)
	for i, r := range raw {
		path := fmt.Sprintf("spec.pools[%d]", i)
		c.name(path+".name", r.Name, seen)
		announce := c.announce(path+".announce", r.Announce)
		for _, prefix := range c.poolPrefixes(path, r) {
			p := node.Pool{Name: r.Name, Prefix: prefix, Announce: announce, Namespaces: slices.Clone(r.Namespaces)}
			for _, other := range pools {
				if other.Prefix.Overlaps(prefix) {
					c.problem(poolPath(path, r), "%s: overlaps %s of pool %q", prefix, other.Prefix, other.Name)
				}
			}
			p.Reserved = c.reserved(path+".reserved", r, prefix)
			if r.Masquerade != nil {
				p.Masquerade, p.Direct = true, c.direct(path+".masquerade.except", r, prefix)
			}
			pools = append(pools, p)
		}
	}
	return pools
}

// poolPath is what a pool's prefix comes from.
func poolPath(path string, r v1alpha1.Pool) string {
	if r.CIDR == "" && r.Source != "" {
		return path + ".source"
	}
	return path + ".cidr"
}

// poolPrefixes are the one that is written, or those that the cluster assigns to the node, one a family.
func (c *converter) poolPrefixes(path string, r v1alpha1.Pool) []netip.Prefix {
	switch {
	case r.Source != "" && r.CIDR != "":
		c.problem(path+".source", "%q: the pool has a cidr too; choose one", r.Source)
	case r.CIDR != "" || r.Source == "" && c.o.Cluster == nil:
		if p, ok := c.poolPrefix(path+".cidr", r.CIDR); ok {
			return []netip.Prefix{p}
		}
	case r.Source != "" && r.Source != sourcePodCIDRs:
		c.problem(path+".source", "%q: want %s", r.Source, sourcePodCIDRs)
	case c.o.Cluster == nil:
		c.problem(path+".source", "%q: needs Kubernetes, and this process runs without; give the pool a cidr", r.Source)
	case len(c.o.Cluster.PodCIDRs) == 0:
		c.noPodCIDRs = true
	default:
		for _, p := range c.o.Cluster.PodCIDRs {
			if err := ipam.CheckPrefix(p); err != nil {
				c.problem(path+".source", "%s, which the cluster assigned to the node: %v", p, err)
			}
		}
		return c.o.Cluster.PodCIDRs
	}
	return nil
}

// reserved are the parts of a pool that pods get no address from. With what the cluster assigns, one document serves many
// nodes, and what lies in another node's part is that node's matter.
func (c *converter) reserved(path string, r v1alpha1.Pool, pool netip.Prefix) (parts []netip.Prefix) {
	all := c.prefixes(path, r.Reserved, func(path string, part netip.Prefix) {
		if r.CIDR != "" && !within(part, pool) {
			c.problem(path, "%s: is no part of %s", part, pool)
		}
	})
	return slices.DeleteFunc(all, func(part netip.Prefix) bool { return !within(part, pool) })
}

// direct are the destinations that see a masqueraded pool's own addresses. With what the cluster assigns, those of both families
// stand in one list.
func (c *converter) direct(path string, r v1alpha1.Pool, pool netip.Prefix) bgp.Prefixes {
	other := func(to netip.Prefix) bool { return to.Addr().Is4() != pool.Addr().Is4() }
	all := c.prefixes(path, r.Masquerade.Except, func(path string, to netip.Prefix) {
		if r.CIDR != "" && other(to) {
			c.problem(path, "%s: the pool is %s", to, bgp.FamilyOf(pool.Addr()))
		}
	})
	return bgp.MakePrefixes(slices.DeleteFunc(all, other))
}

func (c *converter) announce(path, text string) node.Announce {
	switch text {
	case "", "Aggregate":
		return node.AnnounceAggregate
	case "Hosts":
		return node.AnnounceHosts
	case "None":
		return node.AnnounceNone
	}
	c.problem(path, "%q: want Aggregate, Hosts or None", text)
	return node.AnnounceAggregate
}

func within(part, whole netip.Prefix) bool {
	return part.Bits() >= whole.Bits() && whole.Contains(part.Addr())
}

func (c *converter) poolPrefix(path, text string) (netip.Prefix, bool) {
	if text == "" {
		c.problem(path, "is missing; want a prefix such as 2001:db8:1::/64 or 10.1.0.0/24")
		return netip.Prefix{}, false
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		c.problem(path, "%q: not a prefix; want one such as 2001:db8:1::/64 or 10.1.0.0/24", text)
		return netip.Prefix{}, false
	}
	if err := ipam.CheckPrefix(p); err != nil {
		c.problem(path, "%v", err)
		return netip.Prefix{}, false
	}
	return p, true
}
