package nodeconfig

import (
	"fmt"
	"net/netip"
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
	// bad are the paths, in their documents, that could not be decoded: what is missing there, or below, has been reported already.
	bad []place

	warnings   Problems
	noPodCIDRs bool // a pool waits for the cluster
}

// problem notes a problem unless the decoder has noted one there.
func (c *converter) problem(path, format string, args ...any) {
	where := c.place(path)
	for _, bad := range c.bad {
		if rest, ok := strings.CutPrefix(where.path, bad.path); ok && where.doc == bad.doc && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return
		}
	}
	c.decoder.problem(path, format, args...)
}

func (c *converter) convert(doc v1alpha1.NodeConfig) node.Config {
	c.identity(doc)
	spec := doc.Spec
	if spec.NodeSelector != nil {
		c.selector("spec.nodeSelector", spec.NodeSelector)
	}
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

		DrainTime:     c.drainTime(spec.BGP),
		Services:      services,
		NoSourceCheck: spec.Defaults.SourceCheck != nil && !*spec.Defaults.SourceCheck,
		BGP:           c.bgp(spec.BGP, pools),
	}
}

func (c *converter) identity(doc v1alpha1.NodeConfig) {
	if doc.APIVersion != v1alpha1.APIVersion {
		c.problem("apiVersion", "%q: want %s", doc.APIVersion, v1alpha1.APIVersion)
	}
	if doc.Kind != v1alpha1.Kind {
		c.problem("kind", "%q: want %s", doc.Kind, v1alpha1.Kind)
	}
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
