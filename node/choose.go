package node

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"

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
	var err error
	att.Addrs, att.Pools, err = a.addresses(c, req, pod, taken)
	return att, err
}

// addresses chooses one of each family, or none at all.
func (a *Agent) addresses(c Config, req cni.Request, pod Pod, taken Taken) (addrs []netip.Addr, pools []string, err error) {
	ns := pod.Key.Namespace
	families := pod.Intent.Families(c.Families & c.poolFamilies(ns))
	if families == 0 {
		return nil, nil, fmt.Errorf("%w: configured are %q, pools are there for %q", ErrNoFamily,
			pod.Intent.Families(c.Families), c.poolFamilies(ns))
	}
	wanted := make(map[bgp.Families]netip.Addr)
	for _, addr := range req.Conf.IPs {
		family := bgp.FamilyOf(addr)
		if !families.Has(family) {
			return nil, nil, fmt.Errorf("%w: %s: %s is off for this pod, or there is no pool of it", ErrAddress, addr, family)
		}
		wanted[family] = addr
	}
	own := a.Last().World.ownAddrs()
	given := taken.Addr
	taken.Addr = func(addr netip.Addr) bool { return own[addr] || given(addr) }
	for _, family := range []bgp.Families{bgp.IPv6, bgp.IPv4} {
		if !families.Has(family) {
			continue
		}
		var pool string
		addr, asked := wanted[family]
		if asked {
			pool, err = claim(c.poolsFor(family, ns), addr, taken.Addr)
		} else {
			addr, pool, err = a.pick(c.poolsFor(family, ns), req.ID, taken)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("choose an %s address: %w", family, err)
		}
		addrs, pools = append(addrs, addr), append(pools, pool)
	}
	return addrs, pools, nil
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
		if !ipam.Usable(p.Prefix, addr) {
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
func (a *Agent) pick(pools []Pool, id cni.ID, taken Taken) (netip.Addr, string, error) {
	if len(pools) == 0 {
		return netip.Addr{}, "", fmt.Errorf("%w: no pool of that family is for this namespace", ErrNoFamily)
	}
	own := 0 // those that are for the namespace alone; they come first, and are used up first
	for own < len(pools) && len(pools[own].Namespaces) > 0 {
		own++
	}
	var errs []error
	for _, group := range [][]Pool{pools[:own], pools[own:]} {
		addr, pool, err := a.pickOf(group, id, taken)
		if err == nil && addr.IsValid() {
			return addr, pool, nil
		}
		errs = append(errs, err)
	}
	return netip.Addr{}, "", errors.Join(errs...)
}

// pickOf takes an address from pools of one rank; an invalid one if there are no pools.
func (a *Agent) pickOf(pools []Pool, id cni.ID, taken Taken) (netip.Addr, string, error) {
	unfit := func(addr netip.Addr) bool { return taken.Addr(addr) || taken.Resting(addr) }
	var errs []error
	for _, p := range pools {
		addr, err := ipam.Pick(p.Prefix, [32]byte(a.derive(id, "address", p.Prefix.String())), unfit)
		if err == nil {
			return addr, p.Name, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", p.Name, err))
	}
	for _, addr := range taken.Rested() {
		if name, err := claim(pools, addr, taken.Addr); err == nil {
			return addr, name, nil
		}
	}
	return netip.Addr{}, "", errors.Join(errs...)
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
