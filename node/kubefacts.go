package node

import (
	"errors"
	"time"
)

// Errors of asking Kubernetes for a pod.
var (
	// ErrUnknownPod: the API server has no such pod, or has another one of its name. A pod that was made just now may not be
	// there yet, and one that is gone will not come back.
	ErrUnknownPod = errors.New("the API server does not know the pod")
	// ErrNoAPI: the API server cannot be asked now.
	ErrNoAPI = errors.New("the API server gives no answer")
)

// PodFacts are what Kubernetes says of a pod of this node, as far as it matters here.
type PodFacts struct {
	Key PodKey
	UID string
	// ManifestUID is set for a static pod: what kubelet calls it, while UID is that of its mirror in the API.
	ManifestUID string
	// Annotations are those under [Domain].
	Annotations map[string]string
	App         string // the stable name of the workload, see ipam.AppName
	Image       string // of the first container, as in the spec
	// Ready is the condition of that name, and false from the moment the pod is being deleted or has finished.
	Ready bool
	// Since is when the condition last changed, by the clock of kubelet; zero if it never has.
	Since       time.Time
	Terminating bool // it is being deleted
	Finished    bool // it ran to its end, and will not run again
	HostNetwork bool // it has the node's addresses, and none of ours
}

// Is reports whether a runtime means this pod by the UID. Without one the name decides.
func (f PodFacts) Is(uid string) bool {
	return uid == "" || uid == f.UID || uid == f.ManifestUID
}
