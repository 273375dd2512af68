package nodeconfig

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/gaggle-cni/gaggle/node"
	"github.com/gaggle-cni/gaggle/node/api/v1alpha1"
)

func (c *converter) grants(raw []v1alpha1.Grant) []node.Grant {
	var grants []node.Grant
	for i, r := range raw {
		path := fmt.Sprintf("spec.grants[%d]", i)
		g := node.Grant{Namespaces: c.grantedNamespaces(path, r)}
		if len(r.Prefixes) == 0 {
			c.problem(path+".prefixes", "is empty; name what may be claimed, such as 203.0.113.0/28")
		}
		g.Prefixes = c.prefixes(path+".prefixes", r.Prefixes, func(path string, p netip.Prefix) {
			if !p.Addr().IsGlobalUnicast() || p.Bits() == 0 {
				c.problem(path, "%s: want unicast addresses that can be routed", p)
			}
		})
		if len(r.Uses) == 0 {
			c.problem(path+".uses", "is empty; want Addresses, Anycast or both")
		}
		for j, text := range r.Uses {
			use := node.Use(text)
			if use != node.UseAddresses && use != node.UseAnycast {
				c.problem(fmt.Sprintf("%s.uses[%d]", path, j), "%q: want Addresses or Anycast", text)
			}
			g.Uses = append(g.Uses, use)
		}
		grants = append(grants, g)
	}
	return grants
}

// grantedNamespaces are those that are named and those that are selected.
func (c *converter) grantedNamespaces(path string, r v1alpha1.Grant) []string {
	names := slices.Clone(r.Namespaces)
	switch {
	case r.NamespaceSelector == nil && len(names) == 0:
		c.problem(path+".namespaces", "is empty; name the namespaces that the grant is for")
	case r.NamespaceSelector == nil:
	case c.o.Cluster == nil:
		c.problem(path+".namespaceSelector", "needs Kubernetes, and this process runs without; name the namespaces")
	default:
		c.selector(path+".namespaceSelector", r.NamespaceSelector)
		for _, name := range c.o.Cluster.Namespaces[Selector{*r.NamespaceSelector}.String()] {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}
