package nodeconfig

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/cni/wire"
	"github.com/gaggle-cni/gaggle/ipam"
	"github.com/gaggle-cni/gaggle/node"
	"github.com/gaggle-cni/gaggle/node/api/v1alpha1"
)

// Bounds of the MTU: IPv6 needs 1280 (RFC 8200 section 5), the kernel's links take no more than 65535.
const minMTU, maxMTU = 1280, 65535

// Bounds of the time that an address rests.
const defaultCoolDown, maxCoolDown = time.Minute, 24 * time.Hour

// A converter turns fields into values. Its methods note problems and go on.
type converter struct {
	*decoder
	o Options
	// bad are the paths that could not be decoded: what is missing there, or below, has been reported already.
	bad []string
}

// problem notes a problem unless the decoder has noted one there.
func (c *converter) problem(path, format string, args ...any) {
	for _, bad := range c.bad {
		if rest, ok := strings.CutPrefix(path, bad); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return
		}
	}
	c.decoder.problem(path, format, args...)
}

func (c *converter) convert(doc v1alpha1.NodeConfig) node.Config {
	if doc.APIVersion != v1alpha1.APIVersion {
		c.problem("apiVersion", "%q: want %s", doc.APIVersion, v1alpha1.APIVersion)
	}
	if doc.Kind != v1alpha1.Kind {
		c.problem("kind", "%q: want %s", doc.Kind, v1alpha1.Kind)
	}
	spec := doc.Spec
	pools := c.pools(spec.Pools)
	services := c.prefixes("spec.serviceCIDRs", spec.ServiceCIDRs, func(path string, p netip.Prefix) {
		for _, pool := range pools {
			if pool.Prefix.Overlaps(p) {
				c.problem(path, "%s: overlaps pool %q (%s); a pod could get a service's address", p, pool.Name, pool.Prefix)
			}
		}
	})
	return node.Config{
		Node:     c.o.Node,
		Pools:    pools,
		Families: c.podFamilies("spec.defaults.families", spec.Defaults.Families, pools),
		MTU:      c.mtu(spec.Defaults.MTU),
		CoolDown: c.duration("spec.defaults.coolDown", spec.Defaults.CoolDown, defaultCoolDown, 0, maxCoolDown),
		IPAlgo:   c.ipAlgo("spec.defaults.ipAlgo", spec.Defaults.IPAlgo, pools),
		Grants:   c.grants(spec.Grants),

		Services:      services,
		NoSourceCheck: spec.Defaults.SourceCheck != nil && !*spec.Defaults.SourceCheck,
		BGP:           c.bgp(spec.BGP, pools),
	}
}

func (c *converter) pools(raw []v1alpha1.Pool) []node.Pool {
	if len(raw) == 0 {
		c.problem("spec.pools", "is empty; pods need at least one pool, as in {name: pods, cidr: 2001:db8:1::/64}")
	}
	var pools []node.Pool
	seen := make(map[string]bool)
	for i, r := range raw {
		path := fmt.Sprintf("spec.pools[%d]", i)
		c.name(path+".name", r.Name, seen)
		p := node.Pool{Name: r.Name, Announce: c.announce(path+".announce", r.Announce), Namespaces: slices.Clone(r.Namespaces)}
		if r.Source != "" {
			c.problem(path+".source", "%q: needs Kubernetes, which this version does not speak to yet; give the pool a cidr", r.Source)
			continue
		}
		var ok bool
		if p.Prefix, ok = c.poolPrefix(path+".cidr", r.CIDR); !ok {
			continue
		}
		for _, other := range pools {
			if other.Prefix.Overlaps(p.Prefix) {
				c.problem(path+".cidr", "%s: overlaps %s of pool %q", p.Prefix, other.Prefix, other.Name)
			}
		}
		c.masquerade(path+".masquerade", &p, r.Masquerade)
		p.Reserved = c.prefixes(path+".reserved", r.Reserved, func(path string, part netip.Prefix) {
			if part.Bits() < p.Prefix.Bits() || !p.Prefix.Contains(part.Addr()) {
				c.problem(path, "%s: is no part of %s", part, p.Prefix)
			}
		})
		pools = append(pools, p)
	}
	return pools
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

func (c *converter) masquerade(path string, p *node.Pool, raw *v1alpha1.Masquerade) {
	if raw == nil {
		return
	}
	p.Masquerade = true
	p.Direct = bgp.MakePrefixes(c.prefixes(path+".except", raw.Except, func(path string, to netip.Prefix) {
		if to.Addr().Is4() != p.Prefix.Addr().Is4() {
			c.problem(path, "%s: the pool is %s", to, p.Family())
		}
	}))
}

// prefixes reads a list and checks each.
func (c *converter) prefixes(path string, texts []string, check func(path string, p netip.Prefix)) (out []netip.Prefix) {
	for i, text := range texts {
		path := fmt.Sprintf("%s[%d]", path, i)
		if p, ok := c.prefix(path, text); ok {
			check(path, p)
			out = append(out, p)
		}
	}
	return out
}

// prefix reads a prefix, or a single address for the prefix of it alone.
func (c *converter) prefix(path, text string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(text)
	if addr, addrErr := netip.ParseAddr(text); addrErr == nil && addr.Zone() == "" {
		p, err = netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	switch {
	case err != nil:
		c.problem(path, "%q: not a prefix; want one such as 2001:db8:f::/64 or 203.0.113.0/28", text)
	case p.Addr().Is4In6():
		c.problem(path, "%s: IPv4-mapped; write the IPv4 prefix", p)
	case p != p.Masked():
		c.problem(path, "%s: has bits beyond its length; did you mean %s?", p, p.Masked())
	default:
		return p, true
	}
	return netip.Prefix{}, false
}

// ipAlgo must fit each IPv6 pool: what is configured for all pods is no matter of chance.
func (c *converter) ipAlgo(path, text string, pools []node.Pool) ipam.Algo {
	if text == "" {
		return nil
	}
	algo, err := ipam.ParseAlgo(text)
	if err != nil {
		c.problem(path, "%v", err)
		return nil
	}
	for _, p := range pools {
		if p.Family() != bgp.IPv6 {
			continue
		}
		if err := algo.Fits(p.Prefix); err != nil {
			c.problem(path, "pool %q: %v", p.Name, err)
		}
	}
	return algo
}

func (c *converter) grants(raw []v1alpha1.Grant) []node.Grant {
	var grants []node.Grant
	for i, r := range raw {
		path := fmt.Sprintf("spec.grants[%d]", i)
		g := node.Grant{Namespaces: slices.Clone(r.Namespaces)}
		if r.NamespaceSelector != nil {
			c.problem(path+".namespaceSelector", "needs Kubernetes, which this version does not speak to yet; name the namespaces")
		} else if len(r.Namespaces) == 0 {
			c.problem(path+".namespaces", "is empty; name the namespaces that the grant is for")
		}
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

// name checks that a list's entry has a name of its own. Names end up in metrics and messages.
func (c *converter) name(path, name string, seen map[string]bool) {
	if err := wire.CheckName(name); err != nil {
		c.problem(path, "%v", err)
		return
	}
	if seen[name] {
		c.problem(path, "%q: another entry has this name", name)
	}
	seen[name] = true
}

func (c *converter) families(path string, names []string) (f bgp.Families) {
	for i, name := range names {
		switch name {
		case "IPv4":
			f |= bgp.IPv4
		case "IPv6":
			f |= bgp.IPv6
		default:
			c.problem(fmt.Sprintf("%s[%d]", path, i), "%q: want IPv6 or IPv4", name)
		}
	}
	if len(names) == 0 {
		return bgp.IPv4 | bgp.IPv6
	}
	return f
}

// podFamilies are those of pods. One without a pool is left out, but when none is left no pod could be attached.
func (c *converter) podFamilies(path string, names []string, pools []node.Pool) bgp.Families {
	f := c.families(path, names)
	var there bgp.Families
	for _, p := range pools {
		there |= p.Family()
	}
	if f != 0 && there != 0 && f&there == 0 {
		c.problem(path, "%s: there is no pool of it, so that no pod could be attached; the pools are for %s", f, there)
	}
	return f
}

func (c *converter) mtu(mtu int32) int {
	if mtu != 0 && (mtu < minMTU || mtu > maxMTU) {
		c.problem("spec.defaults.mtu", "%d: want %d to %d, or 0 for that of the uplink", mtu, minMTU, maxMTU)
	}
	return int(mtu)
}

// duration reads a time such as "30s". Empty text is the default.
func (c *converter) duration(path string, raw v1alpha1.Duration, otherwise, lo, hi time.Duration) time.Duration {
	text := string(raw)
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	if _, noUnit := strconv.Atoi(text); noUnit == nil && err != nil {
		c.problem(path, "%q: has no unit; did you mean %ss?", text, text)
		return otherwise
	}
	if err != nil {
		c.problem(path, "%q: not a duration; want one such as 30s", text)
		return otherwise
	}
	if d < lo || d > hi {
		c.problem(path, "%v: want %v to %v", d, lo, hi)
	}
	if d != d.Truncate(time.Second) {
		c.problem(path, "%v: want whole seconds", d)
	}
	return d
}

// parseEach reads a set and reports each bad entry of it.
func parseEach[T any](c *converter, path string, texts []string, parse func([]string) (T, error)) T {
	for i, text := range texts {
		if _, err := parse([]string{text}); err != nil {
			c.problem(fmt.Sprintf("%s[%d]", path, i), "%v", err)
		}
	}
	set, _ := parse(texts) // the entries' errors have been reported
	return set
}

func (c *converter) attributes(path string, raw v1alpha1.Attributes) bgp.Attributes {
	a := bgp.Attributes{LocalPref: raw.LocalPref, Prepend: raw.Prepend}
	a.Communities = parseEach(c, path+".communities", raw.Communities, bgp.ParseCommunities)
	a.LargeCommunities = parseEach(c, path+".largeCommunities", raw.LargeCommunities, bgp.ParseLargeCommunities)
	if raw.MED != nil {
		a.MED = bgp.MED{Value: *raw.MED, Set: true}
	}
	if raw.Prepend > bgp.MaxPrepend {
		c.problem(path+".prepend", "%d: want %d at most", raw.Prepend, bgp.MaxPrepend)
	}
	return a
}

// password reads the key of TCP MD5. Without it there must be no session, so that a file that cannot be read is a problem.
func (c *converter) password(path string, raw *v1alpha1.Password) bgp.Secret {
	if raw == nil {
		return ""
	}
	path += ".file"
	if raw.File == "" {
		c.problem(path, "is missing; want the path of a file that holds the password")
		return ""
	}
	data, err := c.o.ReadFile(raw.File)
	if err != nil {
		c.problem(path, "%v", err)
		return ""
	}
	secret := strings.TrimRight(string(data), "\r\n")
	if secret == "" || len(secret) > maxPassword {
		c.problem(path, "%s: holds %d characters; want 1 to %d", raw.File, len(secret), maxPassword)
	}
	return bgp.Secret(secret)
}
