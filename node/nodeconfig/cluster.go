package nodeconfig

import (
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/gaggle-cni/gaggle/node/api/v1alpha1"
)

// A Cluster is what a configuration takes from Kubernetes besides documents. It is a value that can be stored: with it and the
// document a configuration can be made again without an API server.
type Cluster struct {
	// PodCIDRs are what the cluster assigned to the node, one a family; empty if it has not yet.
	PodCIDRs []netip.Prefix `json:"podCIDRs,omitempty"`
	// Namespaces are the names that each selector selects, by the selector's text.
	Namespaces map[string][]string `json:"namespaces,omitempty"`
	// Secrets are the entries that are referred to, by the reference's text.
	Secrets map[string]Secret `json:"secrets,omitempty"`
}

// A Secret is one entry of a Secret, or why it is not there. Its JSON has the value, for whoever stores it; it does not print.
type Secret struct {
	Value   string `json:"value,omitempty"`
	Problem string `json:"problem,omitempty"`
}

// String hides the value.
func (s Secret) String() string {
	if s.Problem != "" {
		return s.Problem
	}
	return "[redacted]"
}

// GoString hides the value from %#v.
func (s Secret) GoString() string { return fmt.Sprintf("%q", s.String()) }

// LogValue hides the value from slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// A SecretRef names one entry of a Secret in the namespace that the node process runs in.
type SecretRef v1alpha1.SecretRef

// String returns "name/key".
func (r SecretRef) String() string { return r.Name + "/" + r.Key }

// References are what a document needs from a cluster.
type References struct {
	Secrets    []SecretRef
	Namespaces []Selector
}

func references(doc v1alpha1.NodeConfig) (r References) {
	for _, g := range doc.Spec.Grants {
		if g.NamespaceSelector != nil {
			r.Namespaces = append(r.Namespaces, Selector{*g.NamespaceSelector})
		}
	}
	if doc.Spec.BGP == nil {
		return r
	}
	for _, p := range doc.Spec.BGP.Peers {
		if p.Password != nil && p.Password.SecretRef != nil && p.Password.SecretRef.Name != "" {
			r.Secrets = append(r.Secrets, SecretRef(*p.Password.SecretRef))
		}
	}
	return r
}
