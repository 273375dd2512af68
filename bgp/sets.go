package bgp

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Communities is a set of RFC 1997 communities as canonical text: "64512:100 65535:0", sorted, without repeats.
type Communities string

// LargeCommunities is a set of RFC 8092 large communities as canonical text: "64512:1:1", sorted, without repeats.
type LargeCommunities string

// Prefixes is a set of prefixes as canonical text, sorted, without repeats.
type Prefixes string

// Hops is a set of next hops as canonical text, sorted, without repeats; link-local ones carry their zone.
type Hops string

// Well-known communities and their registered names.
var wellKnown = map[string]uint32{
	"graceful-shutdown":   0xffff0000, // RFC 8326
	"blackhole":           0xffff029a, // RFC 7999
	"no-export":           0xffffff01, // RFC 1997
	"no-advertise":        0xffffff02, // RFC 1997
	"no-export-subconfed": 0xffffff03, // RFC 1997
}

// ParseCommunities reads communities of the form "64512:100", or well-known names such as "no-export".
func ParseCommunities(texts []string) (Communities, error) {
	var values []uint32
	for _, text := range texts {
		v, err := parseCommunity(text)
		if err != nil {
			return "", err
		}
		values = append(values, v)
	}
	return Communities(canonical(values, cmp.Compare[uint32], func(v uint32) string { return fmt.Sprintf("%d:%d", v>>16, v&0xffff) })), nil
}

func parseCommunity(text string) (uint32, error) {
	if v, ok := wellKnown[strings.ToLower(text)]; ok {
		return v, nil
	}
	parts := strings.Split(text, ":")
	if len(parts) != 2 {
		return 0, fmt.Errorf("%q: not a community; want ASN:VALUE with both below 65536, or a well-known name such as no-export", text)
	}
	var v uint32
	for _, part := range parts {
		n, err := strconv.ParseUint(part, 10, 16)
		if err != nil {
			return 0, fmt.Errorf("%q: not a community; want ASN:VALUE with both below 65536 (4-byte ASNs need a large community)", text)
		}
		v = v<<16 | uint32(n)
	}
	return v, nil
}

// GracefulShutdown is the community of that name (RFC 8326).
const GracefulShutdown Communities = "65535:0"

// With returns both sets together.
func (c Communities) With(other Communities) Communities {
	both, _ := ParseCommunities(strings.Fields(string(c) + " " + string(other))) // both were parsed before
	return both
}

// Values returns the communities as numbers.
func (c Communities) Values() []uint32 {
	var out []uint32
	for text := range strings.FieldsSeq(string(c)) {
		if v, err := parseCommunity(text); err == nil {
			out = append(out, v)
		}
	}
	return out
}

// ParseLargeCommunities reads large communities of the form "64512:1:1".
func ParseLargeCommunities(texts []string) (LargeCommunities, error) {
	var values [][3]uint32
	for _, text := range texts {
		v, err := parseLargeCommunity(text)
		if err != nil {
			return "", err
		}
		values = append(values, v)
	}
	return LargeCommunities(canonical(values,
		func(a, b [3]uint32) int { return slices.Compare(a[:], b[:]) },
		func(v [3]uint32) string { return fmt.Sprintf("%d:%d:%d", v[0], v[1], v[2]) })), nil
}

func parseLargeCommunity(text string) (v [3]uint32, err error) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return v, fmt.Errorf("%q: not a large community; want ASN:VALUE:VALUE with each below 4294967296", text)
	}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 32)
		if err != nil {
			return v, fmt.Errorf("%q: not a large community; want ASN:VALUE:VALUE with each below 4294967296", text)
		}
		v[i] = uint32(n)
	}
	if v[0] == 0 {
		return v, fmt.Errorf("%q: AS 0 is nobody's (RFC 7607)", text)
	}
	return v, nil
}

// Values returns the communities as numbers: global administrator and the two parts of local data.
func (c LargeCommunities) Values() [][3]uint32 {
	var out [][3]uint32
	for text := range strings.FieldsSeq(string(c)) {
		if v, err := parseLargeCommunity(text); err == nil {
			out = append(out, v)
		}
	}
	return out
}

// MakePrefixes returns the set of the given prefixes, each masked.
func MakePrefixes(prefixes []netip.Prefix) Prefixes {
	masked := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		masked = append(masked, p.Masked())
	}
	return Prefixes(canonical(masked, netip.Prefix.Compare, netip.Prefix.String))
}

// Values returns the prefixes in order.
func (p Prefixes) Values() []netip.Prefix {
	var out []netip.Prefix
	for text := range strings.FieldsSeq(string(p)) {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// MakeHops returns the set of the given next hops.
func MakeHops(addrs []netip.Addr) Hops {
	return Hops(canonical(slices.Clone(addrs), netip.Addr.Compare, netip.Addr.String))
}

// Values returns the next hops in order.
func (h Hops) Values() []netip.Addr {
	var out []netip.Addr
	for text := range strings.FieldsSeq(string(h)) {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

func canonical[T comparable](values []T, compare func(a, b T) int, format func(T) string) string {
	slices.SortFunc(values, compare)
	var texts []string
	for _, v := range slices.Compact(values) {
		texts = append(texts, format(v))
	}
	return strings.Join(texts, " ")
}
