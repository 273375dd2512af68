package node

// Intent is what a pod's annotations ask for.
type Intent struct {
	IPv4 *bool `json:"ipv4,omitempty"` // nil: as configured
	IPv6 *bool `json:"ipv6,omitempty"`
}
