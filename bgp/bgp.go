// Package bgp is the vocabulary in which the node's decisions speak about BGP: what is announced, to whom, and what was
// learned. Every type is a comparable value, so that a change is found with == and no field is forgotten in a diff. The
// package knows no BGP implementation; package bgp/gobgp turns these values into sessions and paths.
package bgp

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// A Kind says why a prefix is announced. Attributes are configured per kind.
type Kind string

// The kinds of announcements.
const (
	KindPool      Kind = "pool"      // an aggregate of pod addresses
	KindPod       Kind = "pod"       // a single address of a pool
	KindAddresses Kind = "addresses" // a static address of a pod
	KindAnycast   Kind = "anycast"   // an address shared by many pods
)

// An Announcement is what is said of one prefix. Next hops are not part of it: they depend on the session and are
// given with the [Peer].
type Announcement struct {
	Kind Kind
	Attributes
}

// Attributes are the path attributes an operator can set per kind of announcement.
type Attributes struct {
	Communities      Communities
	LargeCommunities LargeCommunities
	MED              MED
	LocalPref        uint32 // for iBGP; 0 means the speaker's default, 100
	Prepend          uint8  // for eBGP; how often the own ASN is prepended in addition, MaxPrepend at most
}

// MaxPrepend bounds prepending: other networks refuse very long paths.
const MaxPrepend = 20

// MED is an optional MULTI_EXIT_DISC (RFC 4271 section 5.1.4). The zero value sends none.
type MED struct {
	Value uint32
	Set   bool
}

// A PeerID identifies a session. Two configurations with the same PeerID describe the same session, so that renaming a
// peer does not reset it.
type PeerID struct {
	Addr netip.Addr // with a zone when link-local
}

// String returns the peer's address.
func (id PeerID) String() string { return id.Addr.String() }

// Compare orders peers by address.
func (id PeerID) Compare(other PeerID) int { return id.Addr.Compare(other.Addr) }

// A Peer is everything that is configured for one session.
type Peer struct {
	Name     string
	ASN      uint32
	Password Secret // TCP MD5 (RFC 2385); empty for none

	HoldTime     time.Duration // RFC 4271 section 4.2: 0 or at least 3 s
	Keepalive    time.Duration
	ConnectRetry time.Duration
	Passive      bool  // wait for the peer to connect
	Multihop     uint8 // TTL of an eBGP session that is not directly connected; 0 for a directly connected one
	TTLSecurity  bool  // RFC 5082: accept only packets that come with TTL 255
	Families     Families

	GracefulRestart GracefulRestart
	NextHops        NextHops
	Import          Import
}

// Carries reports whether prefixes of the family can be announced to the peer: it is a family of the session, and there is an
// address to send to. Without one the session's own serves, for its own family.
func (p Peer) Carries(id PeerID, family Families) bool {
	return p.Families.Has(family) && (p.NextHops.For(family).IsValid() || FamilyOf(id.Addr) == family)
}

// NextHops are the node's own addresses a peer is told to send to, one per family of prefixes. An invalid address means
// that prefixes of the family cannot be reached by that peer and are kept from it.
type NextHops struct {
	IPv4, IPv6 netip.Addr
}

// For returns the next hop of a family's prefixes.
func (h NextHops) For(family Families) netip.Addr {
	if family == IPv4 {
		return h.IPv4
	}
	return h.IPv6
}

// GracefulRestart configures RFC 4724 for one peer.
type GracefulRestart struct {
	Enabled     bool
	RestartTime time.Duration // how long the peer keeps our routes while we are away; up to 4095 s
}

// Import says which of a peer's routes may be installed in the kernel. The zero value accepts nothing.
type Import struct {
	DefaultRoute bool
	Prefixes     Prefixes // each with everything more specific
	MaxPrefixes  uint32   // per family; the session ends beyond it; 0 for no limit
}

// Any reports whether anything is accepted at all.
func (i Import) Any() bool { return i.DefaultRoute || i.Prefixes != "" }

// Families is the set of address families of a session.
type Families uint8

// The families; a session carries any combination.
const (
	IPv4 Families = 1 << iota
	IPv6
)

// Has reports whether all of g are in f.
func (f Families) Has(g Families) bool { return f&g == g }

// String lists the families separated by commas.
func (f Families) String() string {
	var names []string
	if f.Has(IPv4) {
		names = append(names, "IPv4")
	}
	if f.Has(IPv6) {
		names = append(names, "IPv6")
	}
	return strings.Join(names, ",")
}

// FamilyOf returns the family of an address.
func FamilyOf(a netip.Addr) Families {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// A Secret prints as a placeholder. Convert it to string to use it.
type Secret string

const redacted = "[redacted]"

// String hides the secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// GoString hides the secret from %#v.
func (s Secret) GoString() string { return fmt.Sprintf("%q", s.String()) }

// MarshalText hides the secret from JSON and from slog.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// A LearnedRoute is the best that the peers offer for one prefix.
type LearnedRoute struct {
	Prefix   netip.Prefix
	NextHops Hops // every peer that offers an equally good path
}

// A PeerState is what is known of a session now.
type PeerState struct {
	State        string    `json:"state"` // RFC 4271 section 8.2.2: Idle, Connect, Active, OpenSent, OpenConfirm, Established
	Since        time.Time `json:"since,omitzero"`
	ASN          uint32    `json:"asn"`
	RouterID     string    `json:"routerID,omitempty"`
	LocalAddress string    `json:"localAddress,omitempty"`
	HoldTime     string    `json:"holdTime,omitempty"`
	// GracefulRestart tells whether the peer said it keeps our routes over a restart.
	GracefulRestart bool   `json:"gracefulRestart"`
	Received        uint64 `json:"received"` // prefixes
	Accepted        uint64 `json:"accepted"`
	Advertised      uint64 `json:"advertised"`
	Flaps           uint64 `json:"flaps"`
	LastError       string `json:"lastError,omitempty"`
	// Families are those that both sides have agreed on.
	Families Families `json:"-"`
}

// Established reports whether routes can flow.
func (s PeerState) Established() bool { return s.State == Established }

// Established is the state of a session that carries routes.
const Established = "Established"
