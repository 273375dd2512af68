package node

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gaggle-cni/gaggle/bgp"
)

// ErrNotGranted means that a pod claims an address it may not have.
var ErrNotGranted = errors.New("not granted")

// A Use is what an address is claimed for.
type Use string

// The uses.
const (
	UseAddresses Use = "Addresses" // gaggle.dev/addresses
	UseAnycast   Use = "Anycast"   // gaggle.dev/anycast
)

// A Grant lets the pods of some namespaces claim addresses.
type Grant struct {
	Namespaces []string
	Prefixes   []netip.Prefix
	Uses       []Use
}

// granted tells why a namespace may not use an address.
func (c Config) granted(namespace string, use Use, addr netip.Addr) error {
	for _, g := range c.Grants {
		if slices.Contains(g.Namespaces, namespace) && slices.Contains(g.Uses, use) &&
			slices.ContainsFunc(g.Prefixes, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			return nil
		}
	}
	return fmt.Errorf("%w: %s: no entry of spec.grants lets namespace %q use it for %s", ErrNotGranted, addr, namespace, use)
}

// claims are what one pod claims, checked: the addresses that are its own, and those that it shares.
type claims struct {
	addresses, anycast []netip.Addr
}

// families are those of the addresses that are the pod's own.
func (c claims) families() (f bgp.Families) {
	for _, addr := range c.addresses {
		f |= bgp.FamilyOf(addr)
	}
	return f
}

// primary returns the first address of a family.
func (c claims) primary(family bgp.Families) (netip.Addr, bool) {
	i := slices.IndexFunc(c.addresses, func(a netip.Addr) bool { return bgp.FamilyOf(a) == family })
	if i < 0 {
		return netip.Addr{}, false
	}
	return c.addresses[i], true
}

// claims checks what a pod's annotations claim, against the configuration, the node's own addresses and the other pods.
func (a *Agent) claims(c Config, pod Pod, own map[netip.Addr]bool) (claims, error) {
	got := claims{pod.Intent.Addresses.Values(), pod.Intent.Anycast.Values()}
	var problems []error
	check := func(use Use, addrs []netip.Addr) {
		for _, addr := range addrs {
			switch err := c.granted(pod.Key.Namespace, use, addr); {
			case err != nil:
				problems = append(problems, err)
			case own[addr]:
				problems = append(problems, fmt.Errorf("%w: %s is an address of the node, of a peer or of a router, which no pod can have", ErrNotGranted, addr))
			case slices.ContainsFunc(c.Services, func(p netip.Prefix) bool { return p.Contains(addr) }):
				problems = append(problems, fmt.Errorf("%w: %s is of the cluster's service range, which no pod can have", ErrNotGranted, addr))
			default:
				problems = append(problems, a.holder(pod, use, addr))
			}
		}
	}
	check(UseAddresses, got.addresses)
	check(UseAnycast, got.anycast)
	return got, errors.Join(problems...)
}

// holder tells which other pod stands in the way. An older sandbox of the same pod does not, nor do others that share an
// anycast address.
func (a *Agent) holder(pod Pod, use Use, addr netip.Addr) error {
	for _, att := range a.o.Store.All() {
		if pod.Key == att.Pod.Key && pod.Key != (PodKey{}) {
			continue
		}
		if slices.Contains(att.Own(), addr) || use == UseAddresses && slices.Contains(att.Anycast, addr) {
			return fmt.Errorf("%w: %s is that of pod %s (container %s)", ErrAddress, addr, att.Pod.Key, att.ID.ContainerID)
		}
	}
	return nil
}
