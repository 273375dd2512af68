// Package node decides what a node's network must look like and brings it about. Requests, facts about pods, configuration
// and the stored records flow into a plan, and the plan flows out through reconcilers into kernel and BGP speaker. The
// package holds decisions and no drivers: netlink, bbolt, GoBGP and Kubernetes are behind the interfaces declared here.
package node

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/cni"
)

// A PodKey names a pod in Kubernetes.
type PodKey struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// String returns "namespace/name", or nothing when the pod is not known.
func (k PodKey) String() string {
	if k.Name == "" {
		return ""
	}
	return k.Namespace + "/" + k.Name
}

// LogValue is the name as it is written everywhere.
func (k PodKey) LogValue() slog.Value { return slog.StringValue(k.String()) }

// A Pod is what is known of a pod, and no more.
type Pod struct {
	Key    PodKey `json:"key,omitzero"`
	UID    string `json:"uid,omitempty"`
	Intent Intent `json:"intent,omitzero"`
	// App is the stable name of the workload, Image that of the first container's image; empty where they are not known.
	App   string `json:"app,omitempty"`
	Image string `json:"image,omitempty"`
	// Ready tells that the pod serves, and is not being deleted. Draining is when it began to be deleted while it was Ready, by
	// this node's clock. Both are only ever set by Kubernetes.
	Ready    bool      `json:"ready,omitempty"`
	Draining time.Time `json:"draining,omitzero"`
}

// An Attachment is one interface in one container, as it is stored. It holds everything that was chosen for it, so that
// wiring it, and telling the runtime about it, are functions of it alone.
//
//	pending ─Commit→ committed ─Retire→ pending ─Release→ gone
//
// A pending attachment holds its addresses but is never planned. Whatever is pending at start is undone.
type Attachment struct {
	ID      cni.ID       `json:"id"`
	Pod     Pod          `json:"pod,omitzero"`
	HostIf  string       `json:"hostIf"`
	HostMAC MAC          `json:"hostMAC"`
	MAC     MAC          `json:"mac"`
	MTU     int          `json:"mtu"`
	Addrs   []netip.Addr `json:"addrs"` // the primary address of each family, IPv6 first
	Pools   []string     `json:"pools"` // the pool of each address; empty for a static one
	// Extra are further static addresses, and Anycast those that are shared with other pods. Neither is ever chosen as a
	// source.
	Extra   []netip.Addr `json:"extra,omitempty"`
	Anycast []netip.Addr `json:"anycast,omitempty"`
	// IPAlgo is what the IPv6 address was composed by; empty for a random one.
	IPAlgo string `json:"ipAlgo,omitempty"`

	NetnsPath string `json:"netnsPath,omitempty"`
	// NoDefault leaves the container's default routes to another interface.
	NoDefault bool `json:"noDefault,omitempty"`
	// Namespace is the container's network namespace, once it is wired.
	Namespace NetnsID   `json:"namespace"`
	Created   time.Time `json:"created"`
	Committed bool      `json:"committed"`
}

// Own returns the addresses that no other pod has: the primary and the further static ones.
func (a Attachment) Own() []netip.Addr { return slices.Concat(a.Addrs, a.Extra) }

// Bound returns every address of the container's interface.
func (a Attachment) Bound() []netip.Addr { return slices.Concat(a.Addrs, a.Extra, a.Anycast) }

// A NetnsID is the kernel's number of a network namespace, as the node's own namespace knows it (ip netns list-id). The
// kernel gives the number up when the namespace ends, and may give it to another then.
type NetnsID int32

// NoNetns is the number of a namespace that is not known (NETNSA_NSID_NOT_ASSIGNED, linux/net_namespace.h).
const NoNetns NetnsID = -1

// A MAC is an EUI-48 address.
type MAC [6]byte

// String returns the colon-separated form.
func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// MarshalText writes the colon-separated form.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads the colon-separated form.
func (m *MAC) UnmarshalText(text []byte) error {
	hw, err := net.ParseMAC(string(text))
	if err != nil || len(hw) != len(m) {
		return fmt.Errorf("%q: not a MAC address", text)
	}
	copy(m[:], hw)
	return nil
}

// The addresses a pod sees as its gateways. Every host veth answers for both.
var (
	Gateway4 = netip.AddrFrom4([4]byte{169, 254, 1, 1})
	Gateway6 = netip.MustParseAddr("fe80::1")
)

// A RouteKind says why a route exists.
type RouteKind string

// The kinds of routes.
const (
	RouteHost      RouteKind = "host"      // to a pod, over its veth
	RouteAnycast   RouteKind = "anycast"   // to pods that share an address, each by its own address
	RouteAggregate RouteKind = "aggregate" // unreachable; what no pod has must not leave the node
	RouteLearned   RouteKind = "learned"   // from a BGP peer
)

// A Route is a route of the node. It is comparable: two routes are the same only if every field is.
type Route struct {
	Kind   RouteKind
	Link   string     // output interface of a host route
	Source netip.Addr // preferred source; invalid for the kernel's choice
	Hops   bgp.Hops   // next hops of a learned route
	Vias   Vias       // the pods of an anycast route
}

// A Via is a pod's way: its own address, and the link that leads to it.
type Via struct {
	Addr netip.Addr
	Link string
}

// Vias are ways as canonical text, sorted, without repeats: "10.1.0.5%ggl0123456789ab".
type Vias string

// MakeVias returns the set.
func MakeVias(vias []Via) Vias {
	texts := make([]string, 0, len(vias))
	for _, v := range vias {
		texts = append(texts, v.Addr.String()+"%"+v.Link)
	}
	slices.Sort(texts)
	return Vias(strings.Join(slices.Compact(texts), " "))
}

// Values returns the ways in order.
func (v Vias) Values() (vias []Via) {
	for text := range strings.FieldsSeq(string(v)) {
		addr, link, _ := strings.Cut(text, "%")
		vias = append(vias, Via{netip.MustParseAddr(addr), link})
	}
	return vias
}

// A LinkName is the name of a link of the node.
type LinkName string

// Compare orders names.
func (n LinkName) Compare(other LinkName) int { return strings.Compare(string(n), string(other)) }

// String returns the name.
func (n LinkName) String() string { return string(n) }

// An End is the host's end of a pod's veth pair, as far as it can be lost and made anew.
type End struct {
	IPv4, IPv6 bool // it has the gateway's address of the family
	Up         bool
	Settings   bool // the kernel's settings of the link are as the families need
}

// A SourceCheck is what a link's container may send from.
type SourceCheck struct {
	On    bool // all else is dropped
	Addrs Addrs
}

// Addrs is a set of addresses as canonical text, sorted, without repeats.
type Addrs string

// MakeAddrs returns the set.
func MakeAddrs(addrs []netip.Addr) Addrs {
	sorted := slices.SortedFunc(slices.Values(addrs), netip.Addr.Compare)
	return Addrs(joinAddrs(slices.Compact(sorted)))
}

// joinAddrs writes addresses with blanks between them.
func joinAddrs(addrs []netip.Addr) string {
	texts := make([]string, 0, len(addrs))
	for _, a := range addrs {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, " ")
}

// Values returns the addresses in order.
func (a Addrs) Values() (addrs []netip.Addr) {
	for text := range strings.FieldsSeq(string(a)) {
		addrs = append(addrs, netip.MustParseAddr(text))
	}
	return addrs
}

// An Uplink is how the node reaches one destination.
type Uplink struct {
	Link       string
	MTU        int
	IPv4, IPv6 netip.Addr // the node's own global addresses on that link; invalid when there is none
	Gateway    netip.Addr // the router that the way goes by; invalid when there is none
}

// A Store keeps the attachments. It alone allocates: choosing an address and writing it down is one transaction.
type Store interface {
	// Reserve returns the record of id, or makes one: choose is called inside the transaction and what it returns is
	// stored as pending. created tells the two apart. A failing choose stores nothing.
	Reserve(id cni.ID, choose func(Taken) (Attachment, error)) (a Attachment, created bool, err error)
	// Commit makes the record take part in the plan, now that it is wired into a namespace. The record must exist.
	Commit(id cni.ID, ns NetnsID) error
	// Observe notes what is known of the pod now. Absent is no error.
	Observe(id cni.ID, pod Pod) error
	// Retire takes the record out of the plan; its addresses stay taken. Absent is no error.
	Retire(id cni.ID) error
	// Release forgets the record and frees its addresses, which then rest for a while. Absent is no error.
	Release(id cni.ID, rest time.Duration) error
	// All returns every record, ordered by ID. The slice is shared and must not be changed.
	All() []Attachment
}

// Taken tells what a new attachment must not use. Its functions are valid only while choose runs.
type Taken struct {
	Addr   func(netip.Addr) bool
	HostIf func(string) bool
	// Resting tells of an address that is free, but was another's until a short while ago.
	Resting func(netip.Addr) bool
	// Rested returns the addresses that rest, the one that has rested longest first.
	Rested func() []netip.Addr
}

// A Datapath wires sandboxes and knows the kernel. Its routes are a [Target].
type Datapath interface {
	// Attach makes the veth pair, the addresses, routes and neighbours of an attachment, and tells the number of the namespace.
	// What an earlier attempt for the same attachment left is replaced. It fails with [ErrInterfaceExists] if the container
	// has an interface of that name.
	Attach(ctx context.Context, netns *os.File, a Attachment) (NetnsID, error)
	// Detach removes the attachment's veth pair, and then what the kernel remembers of connections with its addresses. Absent
	// is no error; a link that is not ours is left alone.
	Detach(ctx context.Context, a Attachment) error
	// Attached reports whether the attachment's veth pair is there, with its end in this namespace.
	Attached(ctx context.Context, netns *os.File, a Attachment) (bool, error)
	// Check compares an attachment with the kernel, at both ends, and names each difference. It changes nothing. An error
	// means that it could not see.
	Check(ctx context.Context, netns *os.File, a Attachment) (differences []error, err error)
	// Inventory tells what is in the kernel, whatever the records say.
	Inventory(ctx context.Context) (Inventory, error)
	// Uplinks tells how each destination is reached. The unspecified addresses stand for the default routes. A destination
	// that cannot be reached is left out.
	Uplinks(ctx context.Context, dsts []netip.Addr) (map[netip.Addr]Uplink, error)
	// Connected returns the node's own global addresses, each with the length of its subnet, and what is at the other end of
	// point-to-point links. Pods' links are not among them. The slice is not nil.
	Connected(ctx context.Context) ([]netip.Prefix, error)
}

// An Inventory is what the kernel knows of attachments.
type Inventory struct {
	// Links are the host links with our mark, by name, each as far as an [Attachment] can be read off it: without an ID if its
	// description does not name one.
	Links map[string]Attachment
	// Namespaces are the network namespaces that live and that the node's own has to do with.
	Namespaces map[NetnsID]bool
}

// Sessions tells what the BGP sessions do now. Its methods may be called concurrently.
type Sessions interface {
	// States returns the state of every session.
	States(ctx context.Context) (map[bgp.PeerID]bgp.PeerState, error)
	// Learned returns the routes that the peers offer and their import policies accept.
	Learned(ctx context.Context) ([]bgp.LearnedRoute, error)
}
