package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	"github.com/gaggle-cni/gaggle/bgp"
)

// Domain is what our annotations begin with.
const Domain = "gaggle.dev/"

// The annotations of a pod.
const (
	AnnotationIPv4      = Domain + "ipv4"
	AnnotationIPv6      = Domain + "ipv6"
	AnnotationCIDR4     = Domain + "cidr4"
	AnnotationCIDR6     = Domain + "cidr6"
	AnnotationIPAlgo    = Domain + "ip-algo"
	AnnotationAddresses = Domain + "addresses"
	AnnotationAnycast   = Domain + "anycast"
)

// maxClaims bounds the addresses of one annotation.
const maxClaims = 16

// ErrAnnotation means that an annotation cannot be understood.
var ErrAnnotation = errors.New("bad annotation")

// Intent is what a pod's annotations ask for. It is comparable; the zero value asks for nothing.
type Intent struct {
	With    bgp.Families `json:"with,omitempty"`    // families turned on
	Without bgp.Families `json:"without,omitempty"` // families turned off
	// CIDR6 and CIDR4 are the parts of pools that addresses must come from.
	CIDR6 netip.Prefix `json:"cidr6,omitzero"`
	CIDR4 netip.Prefix `json:"cidr4,omitzero"`
	// IPAlgo is as it was written: what is wrong with it is no reason to refuse the pod.
	IPAlgo string `json:"ipAlgo,omitempty"`
	// Addresses are static ones, the primary of each family first; Anycast are shared with other pods.
	Addresses Claims `json:"addresses,omitempty"`
	Anycast   Claims `json:"anycast,omitempty"`
}

// Claims are addresses as text, in order, separated by blanks.
type Claims string

// Values returns the addresses.
func (c Claims) Values() (addrs []netip.Addr) {
	for text := range strings.FieldsSeq(string(c)) {
		addrs = append(addrs, netip.MustParseAddr(text)) // ParseIntent wrote it
	}
	return addrs
}

func makeClaims(addrs []netip.Addr) Claims { return Claims(joinAddrs(addrs)) }

// ParseIntent reads a pod's annotations. Annotations outside our domain are none of our business, unknown ones inside it
// are an error: a misspelled wish must not be silently forgotten. All problems are reported at once.
func ParseIntent(annotations map[string]string) (in Intent, err error) {
	var problems []error
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if !strings.HasPrefix(key, Domain) {
			continue
		}
		if problem := in.parse(key, annotations[key]); problem != nil {
			problems = append(problems, fmt.Errorf("annotation %s: %w", clip(key, 100), problem))
		}
	}
	for _, addr := range in.Anycast.Values() {
		if slices.Contains(in.Addresses.Values(), addr) {
			problems = append(problems, fmt.Errorf("annotation %s: %s: %s claims it too; choose one", AnnotationAnycast, addr, AnnotationAddresses))
		}
	}
	if len(problems) > 0 {
		return Intent{}, fmt.Errorf("%w: %w", ErrAnnotation, errors.Join(problems...))
	}
	return in, nil
}

func (in *Intent) parse(key, value string) (err error) {
	switch key {
	case AnnotationIPv4:
		err = in.family(bgp.IPv4, value)
	case AnnotationIPv6:
		err = in.family(bgp.IPv6, value)
	case AnnotationCIDR4:
		in.CIDR4, err = parsePart(bgp.IPv4, value)
	case AnnotationCIDR6:
		in.CIDR6, err = parsePart(bgp.IPv6, value)
	case AnnotationIPAlgo:
		in.IPAlgo = clip(strings.TrimSpace(value), 200)
	case AnnotationAddresses:
		in.Addresses, err = parseClaims(value)
	case AnnotationAnycast:
		in.Anycast, err = parseClaims(value)
	default:
		err = fmt.Errorf("unknown; this version knows ipv6, ipv4, cidr6, cidr4, ip-algo, addresses and anycast")
	}
	return err
}

func parsePart(family bgp.Families, value string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(strings.TrimSpace(value))
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("%q: want a part of a pool, such as 2001:db8:1:2::/72 or 10.1.0.64/26", clip(value, 100))
	case p.Addr().Is4In6() || bgp.FamilyOf(p.Addr()) != family:
		return netip.Prefix{}, fmt.Errorf("%s: want an %s prefix", p, family)
	case p != p.Masked():
		return netip.Prefix{}, fmt.Errorf("%s: has bits beyond its length; did you mean %s?", p, p.Masked())
	}
	return p, nil
}

// parseClaims reads one address or several, separated by commas or white space, or a JSON list.
func parseClaims(value string) (Claims, error) {
	var texts []string
	if strings.HasPrefix(strings.TrimSpace(value), "[") {
		if err := json.Unmarshal([]byte(value), &texts); err != nil {
			return "", fmt.Errorf("%q: not a JSON list of addresses: %w", clip(value, 100), err)
		}
	} else {
		texts = strings.FieldsFunc(value, func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
	}
	if len(texts) == 0 {
		return "", errors.New("names no address; remove the annotation if there is none to claim")
	}
	if len(texts) > maxClaims {
		return "", fmt.Errorf("names %d addresses; %d are the most", len(texts), maxClaims)
	}
	var out []netip.Addr
	for _, text := range texts {
		addr, err := netip.ParseAddr(text)
		switch {
		case err != nil:
			return "", fmt.Errorf("%q: not an address; want some such as 203.0.113.5 or 2001:db8:f::5", clip(text, 100))
		case addr.Zone() != "" || addr.Is4In6():
			return "", fmt.Errorf("%q: want a plain IPv4 or IPv6 address", clip(text, 100))
		case !addr.IsGlobalUnicast():
			return "", fmt.Errorf("%s: want a unicast address that can be routed; nobody can claim another", addr)
		case slices.Contains(out, addr):
			return "", fmt.Errorf("%s: is there twice", addr)
		}
		out = append(out, addr)
	}
	return makeClaims(out), nil
}

func (in *Intent) family(f bgp.Families, value string) error {
	switch value {
	case "true":
		in.With |= f
	case "false":
		in.Without |= f
	default:
		return fmt.Errorf(`%q: want "true" or "false"`, clip(value, 100))
	}
	return nil
}

// part returns the part of a pool that the pod's address must come from: false if there is none in that pool.
func (in Intent) part(pool netip.Prefix) (netip.Prefix, bool) {
	part := in.CIDR6
	if pool.Addr().Is4() {
		part = in.CIDR4
	}
	if !part.IsValid() {
		return pool, true
	}
	return part, part.Bits() >= pool.Bits() && pool.Contains(part.Addr())
}

// Families returns the families the pod gets, given the configured ones.
func (in Intent) Families(configured bgp.Families) bgp.Families {
	return (configured | in.With) &^ in.Without
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
