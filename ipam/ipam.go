// Package ipam chooses addresses. It is pure: what is taken and where randomness comes from are arguments, and nothing is
// remembered between calls. Writing a choice down is the store's part.
package ipam

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
)

// ErrExhausted means that the pool has no free address.
var ErrExhausted = errors.New("no free address")

// The lengths of prefixes that can be a pool.
const (
	MinBits4 = 8
	MaxBits4 = 29
	MinBits6 = 32
	MaxBits6 = 120
)

// probes is how many random addresses are tried before the pool is walked. At nine tenths full, one in a thousand choices
// gets past them.
const probes = 64

// maxWalk bounds the walk. Pools up to this size are searched completely; a larger one cannot be full, as a node has fewer
// pods than that.
const maxWalk = 1 << 16

// CheckPrefix tells why a prefix cannot be a pool.
func CheckPrefix(p netip.Prefix) error {
	lo, hi := MinBits6, MaxBits6
	if p.Addr().Is4() {
		lo, hi = MinBits4, MaxBits4
	}
	switch {
	case p.Addr().Is4In6():
		return fmt.Errorf("%s: IPv4-mapped; write the IPv4 prefix", p)
	case p != p.Masked():
		return fmt.Errorf("%s: has bits beyond its length; did you mean %s?", p, p.Masked())
	case p.Bits() < lo || p.Bits() > hi:
		return fmt.Errorf("%s: length %d; want /%d to /%d", p, p.Bits(), lo, hi)
	case p.Addr().IsMulticast() || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast() || p.Addr().IsUnspecified():
		return fmt.Errorf("%s: pods need unicast addresses that can be routed", p)
	}
	return nil
}

// Usable reports whether a pod may have the address. Of an IPv4 pool the network's and the broadcast address are never
// used, of an IPv6 pool the subnet-router anycast address (RFC 4291 section 2.6.1).
func Usable(pool netip.Prefix, a netip.Addr) bool {
	return pool.Contains(a) && a != pool.Masked().Addr() && (a.Is6() || a != last(pool))
}

// Size returns how many addresses of a pool can be used at once, without its reserved parts; it is approximate beyond 2^53.
func Size(pool netip.Prefix, reserved []netip.Prefix) float64 {
	size := func(p netip.Prefix) float64 { return math.Exp2(float64(p.Addr().BitLen() - p.Bits())) }
	unusable := []netip.Addr{pool.Masked().Addr()}
	if pool.Addr().Is4() {
		unusable = append(unusable, last(pool))
	}
	parts := slices.Clone(reserved)
	for _, a := range unusable {
		parts = append(parts, netip.PrefixFrom(a, a.BitLen()))
	}
	// The longer prefixes last, so that what lies in another, or is there twice, follows it.
	slices.SortFunc(parts, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() })
	n := size(pool)
	for i, p := range parts {
		if !slices.ContainsFunc(parts[:i], func(larger netip.Prefix) bool { return larger.Contains(p.Addr()) }) {
			n -= size(p)
		}
	}
	return n
}

// Pick chooses a free address of a part of the pool, which may be the whole. The same seed gives the same address as long as
// that is free, and without the seed it cannot be guessed (in the spirit of RFC 7217). The cost does not depend on the
// pool's size.
func Pick(pool, part netip.Prefix, seed [32]byte, taken func(netip.Addr) bool) (netip.Addr, error) {
	if part.Bits() < pool.Bits() || !pool.Contains(part.Addr()) {
		return netip.Addr{}, fmt.Errorf("%s is no part of pool %s", part, pool)
	}
	src := rand.NewChaCha8(seed)
	var a netip.Addr
	for range probes {
		a = randomHost(part, src)
		if Usable(pool, a) && !taken(a) {
			return a, nil
		}
	}
	for range maxWalk {
		if a = a.Next(); !part.Contains(a) {
			a = part.Masked().Addr()
		}
		if Usable(pool, a) && !taken(a) {
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("pool %s: %w", part, ErrExhausted)
}

// randomHost fills the bits beyond the prefix's length.
func randomHost(pool netip.Prefix, src *rand.ChaCha8) netip.Addr {
	host := pool.Masked().Addr().AsSlice()
	random := make([]byte, len(host))
	_, _ = src.Read(random) // never fails
	for i := range host {
		host[i] |= random[i] & hostMask(pool.Bits(), i)
	}
	a, _ := netip.AddrFromSlice(host)
	return a
}

func last(pool netip.Prefix) netip.Addr {
	host := pool.Masked().Addr().AsSlice()
	for i := range host {
		host[i] |= hostMask(pool.Bits(), i)
	}
	a, _ := netip.AddrFromSlice(host)
	return a
}

// hostMask returns the mask of host bits in byte i of an address with the given prefix length.
func hostMask(bits, i int) byte {
	return byte(0xff >> min(max(bits-8*i, 0), 8))
}
