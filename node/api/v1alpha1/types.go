// Package v1alpha1 is NodeConfig as users write it. It holds text; package node/nodeconfig turns that into a node.Config and
// says what is wrong with it. docs/reference.md describes every field.
package v1alpha1

// The identity of the document.
const (
	APIVersion = "gaggle.dev/v1alpha1"
	Kind       = "NodeConfig"
)

// A NodeConfig configures the nodes that it selects.
type NodeConfig struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   Metadata       `json:"metadata"`
	Spec       NodeConfigSpec `json:"spec"`
}

// Metadata names the document.
type Metadata struct {
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// A NodeConfigSpec is what is configured.
type NodeConfigSpec struct {
	// NodeSelector and Priority choose between documents in a cluster. A file is always for the node that reads it.
	NodeSelector *LabelSelector `json:"nodeSelector"`
	Priority     int32          `json:"priority"`

	Pools    []Pool   `json:"pools"`
	Defaults Defaults `json:"defaults"`
	Grants   []Grant  `json:"grants"`
	// ServiceCIDRs are the cluster's ranges of service addresses, which no pod can claim.
	ServiceCIDRs []string `json:"serviceCIDRs"`
	BGP          *BGP     `json:"bgp"`
}

// A LabelSelector selects nodes or namespaces by their labels, as everywhere in Kubernetes: all of it must hold, and an empty
// one selects everything.
type LabelSelector struct {
	MatchLabels      map[string]string  `json:"matchLabels"`
	MatchExpressions []LabelRequirement `json:"matchExpressions"`
}

// A LabelRequirement is one condition on one label.
type LabelRequirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"` // In, NotIn, Exists, DoesNotExist
	Values   []string `json:"values"`
}

// A Pool is a prefix that pods get addresses from.
type Pool struct {
	Name       string   `json:"name"`
	CIDR       string   `json:"cidr"`
	Source     string   `json:"source"`   // PodCIDRs: what the cluster gives the node; the default without a cidr
	Announce   string   `json:"announce"` // Aggregate (default), Hosts or None
	Namespaces []string `json:"namespaces"`
	Reserved   []string `json:"reserved"` // prefixes that no pod gets an address from

	Masquerade *Masquerade `json:"masquerade"`
}

// Masquerade lets what leaves the node have the node's own address.
type Masquerade struct {
	Except []string `json:"except"` // destinations that see the pods' own addresses
}

// A Grant lets the pods of some namespaces claim addresses by annotation.
type Grant struct {
	Namespaces        []string       `json:"namespaces"`
	NamespaceSelector *LabelSelector `json:"namespaceSelector"`
	Prefixes          []string       `json:"prefixes"`
	Uses              []string       `json:"uses"` // Addresses, Anycast
}

// Defaults hold for pods that do not say otherwise.
type Defaults struct {
	Families []string `json:"families"` // IPv6, IPv4
	MTU      int32    `json:"mtu"`      // bytes; 0: that of the uplink
	IPAlgo   string   `json:"ipAlgo"`   // fields of IPv6 addresses, such as namespace,app
	CoolDown Duration `json:"coolDown"` // how long an address rests before another pod gets it
	// SourceCheck, unless false, keeps pods from sending from addresses that are not theirs.
	SourceCheck *bool `json:"sourceCheck"`
}

// BGP configures the speaker.
type BGP struct {
	ASN           uint32        `json:"asn"`
	RouterID      string        `json:"routerID"`
	ListenPort    *int32        `json:"listenPort"`
	Peers         []Peer        `json:"peers"`
	Announcements Announcements `json:"announcements"`
}

// A Peer is an upstream router.
type Peer struct {
	Name            string           `json:"name"`
	Address         string           `json:"address"`
	ASN             uint32           `json:"asn"`
	Password        *Password        `json:"password"`
	HoldTime        Duration         `json:"holdTime"`
	KeepaliveTime   Duration         `json:"keepaliveTime"`
	ConnectRetry    Duration         `json:"connectRetry"`
	Passive         bool             `json:"passive"`
	Multihop        int32            `json:"multihop"`
	TTLSecurity     bool             `json:"ttlSecurity"`
	Families        []string         `json:"families"`
	GracefulRestart *GracefulRestart `json:"gracefulRestart"`
	Import          *Import          `json:"import"`
}

// A Duration is a time with a unit, such as 30s. Only 0 needs none.
type Duration string

// A Password is a TCP MD5 key (RFC 2385).
type Password struct {
	File      string     `json:"file"` // its content without the final line break
	SecretRef *SecretRef `json:"secretRef"`
}

// A SecretRef names one entry of a Secret in the namespace that the node process runs in.
type SecretRef struct {
	Name string `json:"name"`
	Key  string `json:"key"`
}

// GracefulRestart configures RFC 4724.
type GracefulRestart struct {
	Enabled     *bool    `json:"enabled"`
	RestartTime Duration `json:"restartTime"`
}

// Import says which of the peer's routes go into the node's kernel.
type Import struct {
	DefaultRoute bool     `json:"defaultRoute"`
	Prefixes     []string `json:"prefixes"`
	MaxPrefixes  uint32   `json:"maxPrefixes"`
}

// Announcements are the path attributes of each kind of announcement.
type Announcements struct {
	Pool Attributes `json:"pool"` // aggregates
	Pod  Attributes `json:"pod"`  // single addresses of pools

	Addresses Attributes `json:"addresses"` // static addresses
	Anycast   Anycast    `json:"anycast"`
}

// Anycast are the path attributes of anycast addresses, and how they end.
type Anycast struct {
	Attributes `json:",inline"`
	// DrainTime is how long an address is announced as one to avoid while its last pod is being deleted.
	DrainTime Duration `json:"drainTime"`
}

// Attributes are path attributes.
type Attributes struct {
	Communities      []string `json:"communities"`
	LargeCommunities []string `json:"largeCommunities"`
	MED              *uint32  `json:"med"`
	LocalPref        uint32   `json:"localPref"`
	Prepend          uint8    `json:"prepend"`
}
