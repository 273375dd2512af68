package node

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gaggle-cni/gaggle/bgp"
)

// Domain is what our annotations begin with.
const Domain = "gaggle.dev/"

// The annotations of a pod.
const (
	AnnotationIPv4 = Domain + "ipv4"
	AnnotationIPv6 = Domain + "ipv6"
)

// ErrAnnotation means that an annotation cannot be understood.
var ErrAnnotation = errors.New("bad annotation")

// Intent is what a pod's annotations ask for. It is comparable; the zero value asks for nothing.
type Intent struct {
	With    bgp.Families `json:"with,omitempty"`    // families turned on
	Without bgp.Families `json:"without,omitempty"` // families turned off
}

// ParseIntent reads a pod's annotations. Annotations outside our domain are none of our business, unknown ones inside it
// are an error: a misspelled wish must not be silently forgotten. All problems are reported at once.
func ParseIntent(annotations map[string]string) (in Intent, err error) {
	var problems []error
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if !strings.HasPrefix(key, Domain) {
			continue
		}
		value := annotations[key]
		var problem error
		switch key {
		case AnnotationIPv4:
			problem = in.family(bgp.IPv4, value)
		case AnnotationIPv6:
			problem = in.family(bgp.IPv6, value)
		default:
			problem = fmt.Errorf("unknown; this version knows %s and %s", AnnotationIPv4, AnnotationIPv6)
		}
		if problem != nil {
			problems = append(problems, fmt.Errorf("annotation %s: %w", clip(key, 100), problem))
		}
	}
	if len(problems) > 0 {
		return Intent{}, fmt.Errorf("%w: %w", ErrAnnotation, errors.Join(problems...))
	}
	return in, nil
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
