package nodeconfig

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/node"
	"github.com/gaggle-cni/gaggle/node/api/v1alpha1"
)

// Defaults and bounds of BGP. docs/reference.md repeats them; a test compares.
const (
	defaultListenPort   = 179
	defaultHoldTime     = 90 * time.Second // RFC 4271 section 10
	defaultConnectRetry = 2 * time.Second
	defaultRestartTime  = 120 * time.Second

	defaultDrainTime = 5 * time.Second

	minHoldTime    = 3 * time.Second // RFC 4271 section 4.2, besides 0
	maxHoldTime    = 65535 * time.Second
	maxRestartTime = 4095 * time.Second // twelve bits, RFC 4724 section 3
	maxDrainTime   = time.Hour
	maxPassword    = 80 // TCP_MD5SIG_MAXKEYLEN in the kernel's linux/tcp.h
	asTrans        = 23456
)

func (c *converter) bgp(raw *v1alpha1.BGP, pools []node.Pool) *node.BGP {
	if raw == nil {
		return nil
	}
	b := &node.BGP{
		ASN: c.asn("spec.bgp.asn", raw.ASN), RouterID: c.routerID(raw.RouterID), ListenPort: defaultListenPort,
		Peers: make(map[bgp.PeerID]bgp.Peer),
		Attributes: map[bgp.Kind]bgp.Attributes{
			bgp.KindPool: c.attributes("spec.bgp.announcements.pool", raw.Announcements.Pool),
			bgp.KindPod:  c.attributes("spec.bgp.announcements.pod", raw.Announcements.Pod),

			bgp.KindAddresses: c.attributes("spec.bgp.announcements.addresses", raw.Announcements.Addresses),
			bgp.KindAnycast:   c.attributes("spec.bgp.announcements.anycast", raw.Announcements.Anycast.Attributes),
		},
	}
	if raw.ListenPort != nil {
		b.ListenPort = int(*raw.ListenPort)
		if b.ListenPort < 0 || b.ListenPort > 65535 {
			c.problem("spec.bgp.listenPort", "%d: want a port, or 0 not to listen", b.ListenPort)
		}
	}
	names := make(map[string]bool)
	for i, r := range raw.Peers {
		path := fmt.Sprintf("spec.bgp.peers[%d]", i)
		c.name(path+".name", r.Name, names)
		id, ok := c.peerID(path+".address", r.Address)
		p := c.peer(path, r, b)
		var usable bool
		p.Password, usable = c.password(path+".password", r.Name, r.Password)
		if !ok {
			continue
		}
		for _, pool := range pools {
			if pool.Prefix.Contains(id.Addr) {
				c.problem(path+".address", "%s: is within pool %q (%s), so that the router could not be reached; pools are for pods alone",
					id, pool.Name, pool.Prefix)
			}
		}
		if other, ok := b.Peers[id]; ok {
			c.problem(path+".address", "%s: peer %q has this address", id, other.Name)
		}
		if usable {
			b.Peers[id] = p
		}
	}
	return b
}

// drainTime is of no use without BGP, and then not looked at.
func (c *converter) drainTime(raw *v1alpha1.BGP) time.Duration {
	if raw == nil {
		return 0
	}
	return c.duration("spec.bgp.announcements.anycast.drainTime", raw.Announcements.Anycast.DrainTime, defaultDrainTime, 0, maxDrainTime)
}

func (c *converter) asn(path string, asn uint32) uint32 {
	// RFC 7607, RFC 6793 section 9, RFC 7300
	if asn == 0 || asn == asTrans || asn == 65535 || asn == 1<<32-1 {
		c.problem(path, "%d: want an AS number; private ones are 64512 to 65534 and 4200000000 to 4294967294", asn)
	}
	return asn
}

func (c *converter) routerID(text string) netip.Addr {
	if text == "" {
		return netip.Addr{}
	}
	id, err := netip.ParseAddr(text)
	if err != nil || !id.Is4() || id.IsUnspecified() {
		c.problem("spec.bgp.routerID", "%q: want 32 bits written as an IPv4 address, as in 192.0.2.1", text)
	}
	return id
}

func (c *converter) peerID(path, text string) (bgp.PeerID, bool) {
	a, err := netip.ParseAddr(text)
	switch {
	case text == "":
		c.problem(path, "is missing; want the router's address")
	case err != nil:
		c.problem(path, "%q: not an IP address", text)
	case a.Is4In6():
		c.problem(path, "%s: write it as %s", text, a.Unmap())
	case a.IsUnspecified() || a.IsMulticast() || a.IsLoopback():
		c.problem(path, "%s: not the address of a router", text)
	case a.IsLinkLocalUnicast() || a.Zone() != "":
		c.problem(path, "%s: this version does not support link-local addresses of routers", text)
	default:
		return bgp.PeerID{Addr: a}, true
	}
	return bgp.PeerID{}, false
}

func (c *converter) peer(path string, r v1alpha1.Peer, b *node.BGP) bgp.Peer {
	p := bgp.Peer{
		Name: r.Name, ASN: c.asn(path+".asn", r.ASN),
		HoldTime:        c.holdTime(path+".holdTime", r.HoldTime),
		ConnectRetry:    c.duration(path+".connectRetry", r.ConnectRetry, defaultConnectRetry, time.Second, time.Hour),
		Passive:         r.Passive,
		TTLSecurity:     r.TTLSecurity,
		Families:        c.families(path+".families", r.Families),
		GracefulRestart: c.gracefulRestart(path+".gracefulRestart", r.GracefulRestart),
		Import:          c.importRules(path+".import", r.Import),
	}
	p.Keepalive = c.duration(path+".keepaliveTime", r.KeepaliveTime, (p.HoldTime / 3).Truncate(time.Second), time.Second, maxHoldTime)
	if p.HoldTime > 0 && p.Keepalive >= p.HoldTime {
		c.problem(path+".keepaliveTime", "%v: want less than the hold time, %v", p.Keepalive, p.HoldTime)
	}
	if r.Multihop != 0 {
		if r.Multihop < 2 || r.Multihop > 255 {
			c.problem(path+".multihop", "%d: want 2 to 255 hops, or 0 for a directly connected router", r.Multihop)
		}
		if r.TTLSecurity {
			c.problem(path+".multihop", "%d: ttlSecurity is for directly connected routers; choose one of them", r.Multihop)
		}
		p.Multihop = uint8(r.Multihop)
	}
	if r.Passive && b.ListenPort == 0 {
		c.problem(path+".passive", "true: nobody can connect, as spec.bgp.listenPort is 0")
	}
	return p
}

func (c *converter) holdTime(path string, text v1alpha1.Duration) time.Duration {
	if text == "0" || text == "0s" {
		return 0
	}
	return c.duration(path, text, defaultHoldTime, minHoldTime, maxHoldTime)
}

func (c *converter) gracefulRestart(path string, r *v1alpha1.GracefulRestart) bgp.GracefulRestart {
	gr := bgp.GracefulRestart{Enabled: true, RestartTime: defaultRestartTime}
	if r == nil {
		return gr
	}
	if r.Enabled != nil {
		gr.Enabled = *r.Enabled
	}
	gr.RestartTime = c.duration(path+".restartTime", r.RestartTime, defaultRestartTime, time.Second, maxRestartTime)
	return gr
}

func (c *converter) importRules(path string, r *v1alpha1.Import) bgp.Import {
	if r == nil {
		return bgp.Import{}
	}
	var prefixes []netip.Prefix
	for i, text := range r.Prefixes {
		p, err := netip.ParsePrefix(text)
		sub := fmt.Sprintf("%s.prefixes[%d]", path, i)
		switch {
		case err != nil:
			c.problem(sub, "%q: not a prefix", text)
		case p != p.Masked():
			c.problem(sub, "%s: has bits beyond its length; did you mean %s?", p, p.Masked())
		case p.Bits() == 0:
			c.problem(sub, "%s: write defaultRoute: true; a full table does not belong on a node", p)
		default:
			prefixes = append(prefixes, p)
		}
	}
	return bgp.Import{DefaultRoute: r.DefaultRoute, Prefixes: bgp.MakePrefixes(prefixes), MaxPrefixes: r.MaxPrefixes}
}
