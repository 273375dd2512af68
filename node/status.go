package node

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/ipam"
)

// Status is the one document from which the command line, the metrics and the checks read what the node does. Its JSON is
// documented in docs/reference.md; fields are added but not renamed.
type Status struct {
	Node    string    `json:"node"`
	Version string    `json:"version"`
	Time    time.Time `json:"time"` // when this was read
	Started time.Time `json:"started"`

	Pass          PassStatus           `json:"pass"`
	BGP           *BGPStatus           `json:"bgp,omitempty"`
	IPAlgo        string               `json:"ipAlgo,omitempty"` // of pods that do not say
	SourceCheck   bool                 `json:"sourceCheck"`      // pods send from their own addresses only
	Pools         []PoolStatus         `json:"pools"`
	Pods          []PodStatus          `json:"pods"`
	Announcements []AnnouncementStatus `json:"announcements"`
	Peers         []PeerStatus         `json:"peers"`
	Routes        []RouteStatus        `json:"routes"`
	Misfits       []string             `json:"misfits"` // of the configuration and this node
	Refused       []string             `json:"refused"` // claims of pods that have lost their grant
	Kubernetes    *KubernetesStatus    `json:"kubernetes,omitempty"`
}

// KubernetesStatus is how the connection to the API server does.
type KubernetesStatus struct {
	Synced bool      `json:"synced"`        // everything has been seen once
	Away   time.Time `json:"away,omitzero"` // since when something cannot be watched
	Error  string    `json:"error,omitempty"`
	// NodeConfigs are the documents that are in force, the one that counts most first; ConfigError is why newer ones are not.
	NodeConfigs []string `json:"nodeConfigs"`
	ConfigError string   `json:"configError,omitempty"`
	// DroppedEvents counts those that could not be told.
	DroppedEvents uint64 `json:"droppedEvents,omitempty"`
}

// problems are what an operator must know.
func (k *KubernetesStatus) problems() (problems []string) {
	switch {
	case k == nil:
		return nil
	case k.Error != "":
		problems = append(problems, fmt.Sprintf("the API server cannot be watched since %s: %s", k.Away.UTC().Format(time.RFC3339), k.Error))
	case !k.Synced:
		problems = append(problems, "the cluster has not been read yet")
	}
	if k.ConfigError != "" {
		problems = append(problems, "the newest configuration is not in force: "+k.ConfigError)
	}
	return problems
}

// A Document is the effective NodeConfig.
type Document struct {
	Text    string            `json:"document"`
	Origins map[string]string `json:"origins,omitempty"` // the NodeConfig that each value is from, by path
	Error   string            `json:"error,omitempty"`   // why newer documents are not in force
}

// PassStatus tells whether the network is as it must be.
type PassStatus struct {
	Time   time.Time `json:"time"`
	Took   string    `json:"took"`
	Errors []string  `json:"errors"` // empty when all is well
}

// BGPStatus is the speaker's identity.
type BGPStatus struct {
	ASN      uint32     `json:"asn"`
	RouterID netip.Addr `json:"routerID"`
}

// PoolStatus is a pool and its use.
type PoolStatus struct {
	Name      string       `json:"name"`
	Prefix    netip.Prefix `json:"prefix"`
	Announced string       `json:"announced"` // Aggregate, Hosts or None
	Used      int          `json:"used"`
	Size      float64      `json:"size"` // how many addresses can be used at once; large ones are approximate
	// Masquerade tells that what leaves the node has the node's own address.
	Masquerade bool `json:"masquerade,omitempty"`
}

// PodStatus is an attachment.
type PodStatus struct {
	Namespace   string       `json:"namespace"`
	Name        string       `json:"name"`
	UID         string       `json:"uid"`
	App         string       `json:"app,omitempty"`   // the workload, where Kubernetes told it
	Image       string       `json:"image,omitempty"` // of the first container, likewise
	Ready       *bool        `json:"ready,omitempty"` // absent without Kubernetes
	Network     string       `json:"network"`
	ContainerID string       `json:"containerID"`
	IfName      string       `json:"ifName"`
	HostIf      string       `json:"hostIf"`
	MAC         MAC          `json:"mac"`
	MTU         int          `json:"mtu"`
	Addresses   []netip.Addr `json:"addresses"`         // the primary one of each family
	Extra       []netip.Addr `json:"extra,omitempty"`   // further static ones
	Anycast     []netip.Addr `json:"anycast,omitempty"` // shared with other pods
	IPAlgo      string       `json:"ipAlgo,omitempty"`  // what the IPv6 address is composed by
	State       string       `json:"state"`             // committed or pending
	Created     time.Time    `json:"created"`
}

// Bound returns every address of the container's interface.
func (p PodStatus) Bound() []netip.Addr { return slices.Concat(p.Addresses, p.Extra, p.Anycast) }

// AnnouncementStatus is a prefix the node announces.
type AnnouncementStatus struct {
	Prefix           netip.Prefix `json:"prefix"`
	Kind             bgp.Kind     `json:"kind"`
	Communities      []string     `json:"communities,omitempty"`
	LargeCommunities []string     `json:"largeCommunities,omitempty"`
	Sessions         int          `json:"sessions"` // established ones that it goes to
	// Withheld says why the prefix is not announced although it should be.
	Withheld string `json:"withheld,omitempty"`
}

// PeerStatus is a session.
type PeerStatus struct {
	Name     string `json:"name"`
	Address  string `json:"address"`
	NextHop4 string `json:"nextHop4,omitempty"` // what the peer is told to send IPv4 to
	NextHop6 string `json:"nextHop6,omitempty"`
	bgp.PeerState
}

// RouteStatus is a route the node has made.
type RouteStatus struct {
	Prefix  netip.Prefix `json:"prefix"`
	Kind    RouteKind    `json:"kind"`
	Link    string       `json:"link,omitempty"`
	Source  string       `json:"source,omitempty"`
	NextHop []string     `json:"nextHops,omitempty"`
	Error   string       `json:"error,omitempty"`
}

// Status reads the node's status. Only the sessions' states can fail to be read; everything else is there even then.
func (a *Agent) Status(ctx context.Context) (Status, error) {
	c, p := *a.config.Load(), a.Last()
	s := Status{
		Node: c.Node, Time: a.o.Now(), IPAlgo: c.IPAlgo.String(), SourceCheck: !c.NoSourceCheck,
		Pass:          PassStatus{Time: p.Ended, Took: p.Took.Round(time.Microsecond).String(), Errors: lines(p.Err)},
		Pods:          podStatus(a.o.Store.All(), a.o.Pods != nil),
		Pools:         poolStatus(c, a.o.Store.All()),
		Announcements: announcementStatus(p),
		Routes:        routeStatus(p),
		Peers:         []PeerStatus{},
		Misfits:       lines(p.World.misfits()),
		Refused:       lines(p.Desired.refusals()),
	}
	if a.o.Speaker == nil {
		return s, nil
	}
	s.BGP = &BGPStatus{ASN: c.BGP.ASN, RouterID: c.BGP.RouterID}
	states, err := a.o.Speaker.Sessions.States(ctx)
	for _, id := range sortedKeys(p.Desired.Peers) {
		peer := p.Desired.Peers[id]
		st := PeerStatus{
			Name: peer.Name, Address: id.String(),
			NextHop4: text(peer.NextHops.IPv4), NextHop6: text(peer.NextHops.IPv6),
			PeerState: states[id],
		}
		if st.State == "" {
			st.State = "Unknown"
		}
		if st.ASN == 0 {
			st.ASN = peer.ASN
		}
		if _, ok := p.World.Uplinks[id.Addr]; !ok && err == nil && !st.Established() && !p.Ended.IsZero() {
			st.LastError = "the node has no route to it"
		}
		s.Peers = append(s.Peers, st)
	}
	for i := range s.Announcements {
		s.Announcements[i].count(p.Desired.Peers, states)
	}
	if err != nil {
		return s, fmt.Errorf("read BGP sessions: %w", err)
	}
	return s, nil
}

// count counts the sessions that the announcement goes to.
func (a *AnnouncementStatus) count(peers map[bgp.PeerID]bgp.Peer, states map[bgp.PeerID]bgp.PeerState) {
	if a.Withheld != "" {
		return
	}
	family := bgp.FamilyOf(a.Prefix.Addr())
	for id, p := range peers {
		if st := states[id]; st.Established() && st.Families.Has(family) && p.Carries(id, family) {
			a.Sessions++
		}
	}
}

// Problems are everything that is not as it must be; none when all is well.
func (s Status) Problems() []string {
	problems := slices.Concat(s.Pass.Errors, s.sessionProblems(), s.Misfits, s.Refused, s.Kubernetes.problems())
	if s.Pass.Time.IsZero() {
		problems = append(problems, "the node process is not through with its start")
	}
	return problems
}

func (s Status) sessionProblems() (problems []string) {
	for _, p := range s.Peers {
		if p.Established() {
			continue
		}
		text := fmt.Sprintf("the session with peer %s (%s) is not established: %s", p.Name, p.Address, p.State)
		if p.LastError != "" {
			text += ": " + p.LastError
		}
		problems = append(problems, text)
	}
	return problems
}

func podStatus(all []Attachment, readiness bool) []PodStatus {
	pods := make([]PodStatus, 0, len(all))
	for _, a := range all {
		state := "pending"
		if a.Committed {
			state = "committed"
		}
		var ready *bool
		if readiness {
			ready = &a.Pod.Ready
		}
		pods = append(pods, PodStatus{
			Namespace: a.Pod.Key.Namespace, Name: a.Pod.Key.Name, UID: a.Pod.UID, App: a.Pod.App, Image: a.Pod.Image, Ready: ready,
			Network: a.ID.Network, ContainerID: a.ID.ContainerID, IfName: a.ID.IfName,
			HostIf: a.HostIf, MAC: a.MAC, MTU: a.MTU, Addresses: a.Addrs, Extra: a.Extra, Anycast: a.Anycast, IPAlgo: a.IPAlgo, State: state, Created: a.Created,
		})
	}
	slices.SortStableFunc(pods, func(a, b PodStatus) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return pods
}

func poolStatus(c Config, all []Attachment) []PoolStatus {
	pools := make([]PoolStatus, 0, len(c.Pools))
	for _, p := range c.Pools {
		st := PoolStatus{Name: p.Name, Prefix: p.Prefix, Announced: p.Announce.String(), Masquerade: p.Masquerade, Size: ipam.Size(p.Prefix, p.Reserved)}
		for _, a := range all {
			for _, addr := range a.Own() {
				if p.Prefix.Contains(addr) {
					st.Used++
				}
			}
		}
		pools = append(pools, st)
	}
	return pools
}

func announcementStatus(p Pass) []AnnouncementStatus {
	out := make([]AnnouncementStatus, 0, len(p.Desired.Announce))
	for _, prefix := range sortedKeys(p.Desired.Announce) {
		ann := p.Desired.Announce[prefix]
		st := AnnouncementStatus{
			Prefix: prefix, Kind: ann.Kind,
			Communities:      strings.Fields(string(ann.Communities)),
			LargeCommunities: strings.Fields(string(ann.LargeCommunities)),
		}
		if err, failed := p.Routes[prefix]; failed {
			st.Withheld = err.Error()
		}
		out = append(out, st)
	}
	return out
}

func routeStatus(p Pass) []RouteStatus {
	out := make([]RouteStatus, 0, len(p.Desired.Routes)+len(p.Desired.Learned))
	for _, prefix := range sortedKeys(p.Desired.Routes) {
		r := p.Desired.Routes[prefix]
		st := RouteStatus{Prefix: prefix, Kind: r.Kind, Link: r.Link, Source: text(r.Source), NextHop: strings.Fields(string(r.Vias))}
		if err, failed := p.Routes[prefix]; failed {
			st.Error = err.Error()
		}
		out = append(out, st)
	}
	for _, prefix := range sortedKeys(p.Desired.Learned) {
		r := p.Desired.Learned[prefix]
		out = append(out, RouteStatus{Prefix: prefix, Kind: r.Kind, Source: text(r.Source), NextHop: strings.Fields(string(r.Hops))})
	}
	return out
}

func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func lines(err error) []string {
	if err == nil {
		return []string{}
	}
	return strings.Split(err.Error(), "\n")
}
