// Package v1alpha1 is NodeConfig as users write it. It holds text; package node/nodeconfig turns that into a node.Config and
// says what is wrong with it. docs/reference.md describes every field.
//
// The markers (+kubebuilder, +listType) are those of controller-gen, and say what the API server checks: deploy/crd is made of
// them by this package's test, which fails when it is stale. controller-gen itself wants the metadata types of apimachinery in a
// document, and with them the core would depend on it.
//
// There are no defaults in the schema: several documents merge, and a default that the API server fills in would count as
// something that the document says.
package v1alpha1

// The identity of the document.
const (
	APIVersion = "gaggle.dev/v1alpha1"
	Kind       = "NodeConfig"
)

// A NodeConfig configures the nodes that it selects. Several that select a node are merged by priority, lists by name.
//
// +kubebuilder:printcolumn:name="Priority",type="integer",JSONPath=".spec.priority"
// +kubebuilder:printcolumn:name="ASN",type="integer",JSONPath=".spec.bgp.asn"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
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

	// Pools are what pods get addresses from, in the order in which they are tried.
	//
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Pools []Pool `json:"pools"`

	Defaults Defaults `json:"defaults"`

	// Grants are what pods may claim by annotation. Without an entry they may claim nothing.
	//
	// +kubebuilder:validation:MaxItems=256
	Grants []Grant `json:"grants"`

	// ServiceCIDRs are the cluster's ranges of service addresses, which no pod can claim.
	//
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self) || isIP(self)",message="want a prefix"
	ServiceCIDRs []string `json:"serviceCIDRs"`

	BGP *BGP `json:"bgp"`
}

// A LabelSelector selects nodes or namespaces by their labels, as everywhere in Kubernetes: all of it must hold, and an empty
// one selects everything.
type LabelSelector struct {
	MatchLabels map[string]string `json:"matchLabels"`
	// +kubebuilder:validation:MaxItems=32
	MatchExpressions []LabelRequirement `json:"matchExpressions"`
}

// A LabelRequirement is one condition on one label.
//
// +kubebuilder:validation:XValidation:rule="self.operator in ['In', 'NotIn'] == (has(self.values) && size(self.values) > 0)",message="In and NotIn need values, and Exists and DoesNotExist take none"
type LabelRequirement struct {
	// +kubebuilder:validation:Required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key"`
	// +kubebuilder:validation:Required
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	Operator string `json:"operator"`
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	Values []string `json:"values"`
}

// A Pool is a prefix that pods get addresses from.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.cidr) && has(self.source))",message="cidr and source are alternatives; choose one"
type Pool struct {
	// +kubebuilder:validation:Required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// CIDR is an IPv6 prefix of /32 to /120 or an IPv4 prefix of /8 to /29.
	//
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self) == cidr(self).masked()",message="want a prefix without bits beyond its length, such as 2001:db8:1::/64 or 10.1.0.0/24"
	CIDR string `json:"cidr"`
	// Source PodCIDRs is what the cluster gives the node; the default without a cidr.
	//
	// +kubebuilder:validation:Enum=PodCIDRs
	Source string `json:"source"`
	// Announce says whether the prefix is announced as a whole (Aggregate, the default), each pod's address by itself (Hosts), or
	// nothing (None).
	//
	// +kubebuilder:validation:Enum=Aggregate;Hosts;None
	Announce string `json:"announce"`
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=63
	Namespaces []string `json:"namespaces"`
	// Reserved are prefixes and addresses that no pod gets.
	//
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self) || isIP(self)",message="want a prefix or an address"
	Reserved []string `json:"reserved"`

	Masquerade *Masquerade `json:"masquerade"`
}

// Masquerade lets what leaves the node have the node's own address.
type Masquerade struct {
	// Except are destinations that see the pods' own addresses.
	//
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self) || isIP(self)",message="want a prefix or an address"
	Except []string `json:"except"`
}

// A Grant lets the pods of some namespaces claim addresses by annotation.
//
// +kubebuilder:validation:XValidation:rule="has(self.namespaceSelector) || has(self.namespaces) && size(self.namespaces) > 0",message="name the namespaces that the grant is for, or select them"
type Grant struct {
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=63
	Namespaces []string `json:"namespaces"`
	// NamespaceSelector selects further namespaces by their labels.
	NamespaceSelector *LabelSelector `json:"namespaceSelector"`
	// +kubebuilder:validation:Required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self) || isIP(self)",message="want a prefix or an address"
	Prefixes []string `json:"prefixes"`
	// +kubebuilder:validation:Required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:Enum=Addresses;Anycast
	Uses []string `json:"uses"`
}

// Defaults hold for pods that do not say otherwise.
type Defaults struct {
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:Enum=IPv6;IPv4
	Families []string `json:"families"`
	// MTU is in bytes; 0 for that of the uplink.
	//
	// +kubebuilder:validation:XValidation:rule="self == 0 || self >= 1280 && self <= 65535",message="want 1280 to 65535, or 0 for that of the uplink"
	MTU    int32  `json:"mtu"`
	IPAlgo string `json:"ipAlgo"` // fields of IPv6 addresses, such as namespace,app
	// CoolDown is how long an address rests before another pod gets it.
	CoolDown Duration `json:"coolDown"`
	// SourceCheck, unless false, keeps pods from sending from addresses that are not theirs.
	SourceCheck *bool `json:"sourceCheck"`
}

// BGP configures the speaker.
type BGP struct {
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967294
	ASN uint32 `json:"asn"`
	// RouterID is 32 bits written as an IPv4 address; empty for the node's IPv4 address.
	//
	// +kubebuilder:validation:MaxLength=15
	RouterID string `json:"routerID"`
	// ListenPort is a TCP port; 0 not to listen.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	ListenPort *int32 `json:"listenPort"`
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Peers         []Peer        `json:"peers"`
	Announcements Announcements `json:"announcements"`
}

// A Peer is an upstream router.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.multihop) && self.multihop != 0 && has(self.ttlSecurity) && self.ttlSecurity)",message="ttlSecurity is for directly connected routers, and multihop for others; choose one"
type Peer struct {
	// +kubebuilder:validation:Required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// Address is the router's.
	//
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="want the router's IP address"
	Address string `json:"address"`
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967294
	ASN      uint32    `json:"asn"`
	Password *Password `json:"password"`
	// HoldTime is at least 3s, or 0s for no keepalives.
	HoldTime      Duration `json:"holdTime"`
	KeepaliveTime Duration `json:"keepaliveTime"`
	ConnectRetry  Duration `json:"connectRetry"`
	Passive       bool     `json:"passive"` // wait for the router to connect
	// Multihop is the TTL for a router that is not on a connected link; 0 for one that is.
	//
	// +kubebuilder:validation:XValidation:rule="self == 0 || self >= 2 && self <= 255",message="want 2 to 255 hops, or 0 for a directly connected router"
	Multihop    int32 `json:"multihop"`
	TTLSecurity bool  `json:"ttlSecurity"` // RFC 5082
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:Enum=IPv6;IPv4
	Families        []string         `json:"families"`
	GracefulRestart *GracefulRestart `json:"gracefulRestart"`
	Import          *Import          `json:"import"`
}

// A Duration is a time with a unit, such as 30s. Only 0 needs none.
//
// +kubebuilder:validation:Pattern="^(0|([0-9]+(\\.[0-9]+)?(ns|us|ms|s|m|h))+)$"
// +kubebuilder:validation:MaxLength=32
type Duration string

// A Password is a TCP MD5 key (RFC 2385).
//
// +kubebuilder:validation:XValidation:rule="has(self.file) != has(self.secretRef)",message="want one of file and secretRef"
type Password struct {
	File      string     `json:"file"` // its content without the final line break
	SecretRef *SecretRef `json:"secretRef"`
}

// A SecretRef names one entry of a Secret in the namespace that the node process runs in.
type SecretRef struct {
	// +kubebuilder:validation:Required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// +kubebuilder:validation:Required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key"`
}

// GracefulRestart configures RFC 4724.
type GracefulRestart struct {
	Enabled     *bool    `json:"enabled"`
	RestartTime Duration `json:"restartTime"`
}

// Import says which of the peer's routes go into the node's kernel.
type Import struct {
	DefaultRoute bool `json:"defaultRoute"`
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self)",message="want a prefix"
	Prefixes    []string `json:"prefixes"`
	MaxPrefixes uint32   `json:"maxPrefixes"`
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
	// +kubebuilder:validation:MaxItems=64
	Communities []string `json:"communities"`
	// +kubebuilder:validation:MaxItems=64
	LargeCommunities []string `json:"largeCommunities"`
	MED              *uint32  `json:"med"`
	LocalPref        uint32   `json:"localPref"`
	// Prepend is how often the own AS number is prepended in addition.
	//
	// +kubebuilder:validation:Maximum=20
	Prepend uint8 `json:"prepend"`
}
