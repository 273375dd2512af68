package node

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/ipam"
)

// A Config is what is configured for this node, parsed and with every default filled in. It is immutable: a change is a
// new Config.
type Config struct {
	Node     string // the node's name
	Pools    []Pool // in the order in which they are tried
	Families bgp.Families
	MTU      int           // 0: that of the uplink
	CoolDown time.Duration // how long an address rests before another pod gets it
	IPAlgo   ipam.Algo     // of pods that do not say; empty for random addresses
	Grants   []Grant       // what annotations may claim
	// DrainTime is how long an anycast address goes on to be announced, as one to avoid, when its last pod is being deleted.
	DrainTime time.Duration
	// Services are the cluster's ranges of service addresses, which no pod can have.
	Services []netip.Prefix
	// NoSourceCheck lets pods send from any address.
	NoSourceCheck bool
	// NodeIPs override the node's own addresses, which are otherwise those of its uplink.
	NodeIPs bgp.NextHops
	BGP     *BGP // nil: no BGP
}

// A Pool is a prefix that pods get addresses from.
type Pool struct {
	Name     string
	Prefix   netip.Prefix
	Announce Announce
	// Masquerade lets what leaves the node have the node's own address, but for these destinations.
	Masquerade bool
	Direct     bgp.Prefixes
	// Namespaces restricts the pool to pods of these; empty for all.
	Namespaces []string
	// Reserved are parts that no pod gets an address from.
	Reserved []netip.Prefix
}

// Announce says how a pool's addresses are announced.
type Announce string

// The ways to announce a pool.
const (
	AnnounceAggregate Announce = ""      // the prefix
	AnnounceHosts     Announce = "Hosts" // each address that is in use
	AnnounceNone      Announce = "None"  // not at all
)

// String returns what a NodeConfig says.
func (a Announce) String() string { return cmp.Or(string(a), "Aggregate") }

// Usable reports whether a pod may have the address.
func (p Pool) Usable(a netip.Addr) bool {
	return ipam.Usable(p.Prefix, a) && !slices.ContainsFunc(p.Reserved, func(r netip.Prefix) bool { return r.Contains(a) })
}

// Family returns the family of the pool's addresses.
func (p Pool) Family() bgp.Families { return bgp.FamilyOf(p.Prefix.Addr()) }

// Serves reports whether pods of the namespace may use the pool.
func (p Pool) Serves(namespace string) bool {
	return len(p.Namespaces) == 0 || slices.Contains(p.Namespaces, namespace)
}

// BGP is the configuration of the speaker.
type BGP struct {
	ASN        uint32
	RouterID   netip.Addr // invalid: the node's IPv4 address, else derived from its name
	ListenPort int        // 0: do not listen
	Peers      map[bgp.PeerID]bgp.Peer
	Attributes map[bgp.Kind]bgp.Attributes
}

// attributes are those of a kind of announcement.
func (c Config) attributes(kind bgp.Kind) bgp.Attributes {
	if c.BGP == nil {
		return bgp.Attributes{}
	}
	return c.BGP.Attributes[kind]
}

// poolsFor returns the pools of a family that a namespace may use, those made for it first.
func (c Config) poolsFor(family bgp.Families, namespace string) []Pool {
	var own, general []Pool
	for _, p := range c.Pools {
		switch {
		case p.Family() != family || !p.Serves(namespace):
		case len(p.Namespaces) > 0:
			own = append(own, p)
		default:
			general = append(general, p)
		}
	}
	return append(own, general...)
}

// poolFamilies returns the families that a namespace has a pool for.
func (c Config) poolFamilies(namespace string) (f bgp.Families) {
	for _, p := range c.Pools {
		if p.Serves(namespace) {
			f |= p.Family()
		}
	}
	return f
}

// poolOf returns the name of the pool that an address is of; nothing if there is none any more.
func (c Config) poolOf(addr netip.Addr) string {
	p, _ := c.poolWith(addr)
	return p.Name
}

func (c Config) poolWith(addr netip.Addr) (Pool, bool) {
	i := slices.IndexFunc(c.Pools, func(p Pool) bool { return p.Prefix.Contains(addr) })
	if i < 0 {
		return Pool{}, false
	}
	return c.Pools[i], true
}

// destinations returns what the node must know the way to: the default routes and its peers.
func (c Config) destinations() []netip.Addr {
	dsts := []netip.Addr{netip.IPv6Unspecified(), netip.IPv4Unspecified()}
	if c.BGP != nil {
		for _, id := range sortedKeys(c.BGP.Peers) {
			dsts = append(dsts, id.Addr)
		}
	}
	return dsts
}
