package node

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/cni"
	"github.com/gaggle-cni/gaggle/ipam"
)

// defaultMTU is used where no uplink is known.
const defaultMTU = 1500

// choose settles everything about a new attachment. It runs inside the store's transaction. A pod gets all the families it
// is to have, or none.
func (a *Agent) choose(req cni.Request, pod Pod, taken Taken) (Attachment, error) {
	c := *a.config.Load()
	last := a.Last().World
	att := Attachment{
		ID: req.ID, Pod: pod, NetnsPath: req.NetnsPath, Created: a.o.Now(),
		HostIf: hostIf(req.ID, taken.HostIf), HostMAC: a.mac(req.ID, "host"), MAC: a.mac(req.ID, "pod"),
		MTU: c.MTU, NoDefault: noDefault(req), Namespace: NoNetns,
	}
	if req.Conf.MAC != (cni.MAC{}) {
		att.MAC = MAC(req.Conf.MAC)
	}
	if att.MTU == 0 {
		att.MTU = last.uplinkMTU()
	}
	if att.MTU == 0 {
		att.MTU = defaultMTU
	}
	if att.NoDefault { // what a pod claims is for the interface that its traffic leaves by
		pod.Intent.Addresses, pod.Intent.Anycast = "", ""
	}
	own := last.ownAddrs()
	given := taken.Addr
	taken.Addr = func(addr netip.Addr) bool { return own[addr] || given(addr) }
	claimed, err := a.claims(c, pod, own)
	if err != nil {
		return att, err
	}
	return att, a.addresses(&att, c, req, pod, claimed, taken)
}

// addresses chooses one of each family, or none at all.
func (a *Agent) addresses(att *Attachment, c Config, req cni.Request, pod Pod, claimed claims, taken Taken) (err error) {
	ns := pod.Key.Namespace
	there := c.poolFamilies(ns) | claimed.families()
	families := pod.Intent.Families(c.Families & there)
	if families == 0 {
		return fmt.Errorf("%w: configured are %q, pools are there for %q", ErrNoFamily, pod.Intent.Families(c.Families), there)
	}
	for _, addr := range slices.Concat(claimed.addresses, claimed.anycast) {
		if family := bgp.FamilyOf(addr); !families.Has(family) {
			return fmt.Errorf("%w: it claims %s, but %s is off for this pod", ErrAnnotation, addr, family)
		}
	}
	wanted := make(map[bgp.Families]netip.Addr)
	for _, addr := range req.Conf.IPs {
		family := bgp.FamilyOf(addr)
		if !families.Has(family) {
			return fmt.Errorf("%w: %s: %s is off for this pod, or there is no pool of it", ErrAddress, addr, family)
		}
		wanted[family] = addr
	}
	for _, family := range []bgp.Families{bgp.IPv6, bgp.IPv4} {
		if !families.Has(family) {
			continue
		}
		var pool string
		addr, asked := wanted[family]
		static, isStatic := claimed.primary(family)
		switch {
		case isStatic && asked && addr != static:
			return fmt.Errorf("%w: the runtime asks for %s, and annotation %s for %s", ErrAddress, addr, AnnotationAddresses, static)
		case isStatic:
			addr = static
		case asked:
			pool, err = claim(c.poolsFor(family, ns), addr, taken.Addr)
		default:
			addr, pool, err = a.pick(att, c, c.poolsFor(family, ns), pod, taken)
		}
		if err != nil {
			return fmt.Errorf("choose an %s address: %w", family, err)
		}
		att.Addrs, att.Pools = append(att.Addrs, addr), append(att.Pools, pool)
	}
	for _, addr := range claimed.addresses {
		if !slices.Contains(att.Addrs, addr) {
			att.Extra = append(att.Extra, addr)
		}
	}
	att.Anycast = claimed.anycast
	return nil
}

// firstInterface is what every runtime calls a container's first one, the one that its traffic leaves by.
const firstInterface = "eth0"

func noDefault(req cni.Request) bool {
	if d := req.Conf.DefaultRoute; d != nil {
		return !*d
	}
	return req.ID.IfName != firstInterface
}

// claim returns the pool of an address that the runtime asks for. Another address is never given instead.
func claim(pools []Pool, addr netip.Addr, taken func(netip.Addr) bool) (pool string, err error) {
	for _, p := range pools {
		if !p.Usable(addr) {
			continue
		}
		if taken(addr) {
			return "", fmt.Errorf("%w: %s is in use", ErrAddress, addr)
		}
		return p.Name, nil
	}
	return "", fmt.Errorf("%w: %s is not an address for pods of any pool of this namespace", ErrAddress, addr)
}

// pick takes an address from the first pool that has one. Those that rest are the last resort.
func (a *Agent) pick(att *Attachment, c Config, pools []Pool, pod Pod, taken Taken) (netip.Addr, string, error) {
	if len(pools) == 0 {
		return netip.Addr{}, "", fmt.Errorf("%w: no pool of that family is for this namespace", ErrNoFamily)
	}
	own := 0 // those that are for the namespace alone; they come first, and are used up first
	for own < len(pools) && len(pools[own].Namespaces) > 0 {
		own++
	}
	var errs []error
	for _, group := range [][]Pool{pools[:own], pools[own:]} {
		addr, pool, err := a.pickOf(att, c, group, pod, taken)
		if err == nil && addr.IsValid() {
			return addr, pool, nil
		}
		errs = append(errs, err)
	}
	return netip.Addr{}, "", errors.Join(errs...)
}

// A part is what of a pool a pod's address may come from, and what makes it so.
type part struct {
	pool   Pool
	within netip.Prefix
	algo   string
}

// pickOf takes an address from pools of one rank; an invalid one if there are no pools.
func (a *Agent) pickOf(att *Attachment, c Config, pools []Pool, pod Pod, taken Taken) (netip.Addr, string, error) {
	var errs []error
	var parts []part
	for _, p := range pools {
		asked, ok := pod.Intent.part(p.Prefix)
		if !ok {
			errs = append(errs, fmt.Errorf("%w: %s does not contain %s, which the pod's annotation asks for", ErrAddress, p.Name, asked))
			continue
		}
		unfit := func(addr netip.Addr) bool { return !p.Usable(addr) || taken.Addr(addr) || taken.Resting(addr) }
		within, algo := a.composed(c, pod, att.ID, asked)
		parts = append(parts, part{p, within, algo})
		addr, err := ipam.Pick(p.Prefix, within, [32]byte(a.derive(att.ID, "address", within.String())), unfit)
		if err == nil {
			att.composedBy(algo)
			return addr, p.Name, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", p.Name, err))
	}
	for _, addr := range taken.Rested() {
		for _, from := range parts {
			if from.within.Contains(addr) && from.pool.Usable(addr) && !taken.Addr(addr) {
				att.composedBy(from.algo)
				return addr, from.pool.Name, nil
			}
		}
	}
	return netip.Addr{}, "", errors.Join(errs...)
}

// composedBy notes what the IPv6 address was composed by; IPv4 ones never are.
func (a *Attachment) composedBy(algo string) {
	if algo != "" {
		a.IPAlgo = algo
	}
}

// composed returns the part of a prefix that the pod's identity leads to, and the algorithm. One that does not serve falls
// through to the next level: the pod's, the node's, random.
func (a *Agent) composed(c Config, pod Pod, id cni.ID, part netip.Prefix) (within netip.Prefix, algo string) {
	if part.Addr().Is4() {
		return part, ""
	}
	warn := func(whose string, err error) {
		a.o.Log.Warn("addresses are not composed as asked for", "pod", pod.Key, "container", id.ContainerID, "of", whose, "err", err)
		if a.o.Reporter != nil {
			a.o.Reporter.PodTrouble(pod, "InvalidIPAlgo", fmt.Sprintf("the ip-algo of %s: %v", whose, err))
		}
	}
	var own ipam.Algo
	if text := pod.Intent.IPAlgo; text != "" {
		var err error
		if own, err = ipam.ParseAlgo(text); err != nil {
			warn("the pod", err)
		}
	}
	for _, l := range []struct {
		whose string
		algo  ipam.Algo
	}{{"the pod", own}, {"the NodeConfig", c.IPAlgo}} {
		if len(l.algo) == 0 {
			continue
		}
		within, err := l.algo.Prefix(part, Identity(c.Node, pod))
		if err == nil {
			return within, l.algo.String()
		}
		warn(l.whose, err)
	}
	return part, ""
}

// Identity is what the fields of a pod's address are made from.
func Identity(node string, pod Pod) ipam.Identity {
	return ipam.Identity{
		Namespace: pod.Key.Namespace, App: cmp.Or(pod.App, ipam.AppNameOf(pod.Key.Name)), Image: pod.Image, Pod: pod.Key.Name, Node: node,
	}
}

// ownAddrs are the addresses a pod must never get although they may lie in a pool: the node's on whatever link, its peers'
// and its routers'.
func (w World) ownAddrs() map[netip.Addr]bool {
	own := make(map[netip.Addr]bool)
	for dst, up := range w.Uplinks {
		own[dst.WithZone("")], own[up.IPv4], own[up.IPv6], own[up.Gateway] = true, true, true, true
	}
	for _, p := range w.Connected {
		own[p.Addr()] = true
	}
	own[w.Config.NodeIPs.IPv4], own[w.Config.NodeIPs.IPv6] = true, true
	return own
}

// hostIf returns the first name for the attachment that no other has: twelve hex digits are many, but not all.
func hostIf(id cni.ID, taken func(string) bool) string {
	for n := 0; ; n++ {
		if name := HostIf(id, n); !taken(name) {
			return name
		}
	}
}

// HostIfPrefix begins the name of every host's end. It is a contract: kube-proxy is told to take links that begin with it
// for pods' (InterfaceNamePrefix).
const HostIfPrefix = "ggl"

// HostIf is the name of the host's end: the prefix and 12 hex digits from the container id and the interface's name. n is how
// many of the names before it are taken, nearly always 0.
func HostIf(id cni.ID, n int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%d", id.ContainerID, id.IfName, n))
	return HostIfPrefix + hex.EncodeToString(sum[:6])
}

// mac derives a locally administered unicast address (IEEE 802, section 8.2). It is stable for the attachment, so that
// nothing has to be set after the link was made.
func (a *Agent) mac(id cni.ID, end string) MAC {
	var m MAC
	copy(m[:], a.derive(id, "mac", end))
	m[0] = m[0]&^1 | 2
	return m
}

// derive makes 32 bytes that only this node can foretell.
func (a *Agent) derive(id cni.ID, purpose ...string) []byte {
	h := hmac.New(sha256.New, a.o.Secret[:])
	fmt.Fprintf(h, "%s %q", id, purpose)
	return h.Sum(nil)
}
