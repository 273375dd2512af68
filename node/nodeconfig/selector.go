package nodeconfig

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gaggle-cni/gaggle/node/api/v1alpha1"
)

// The operators of a label requirement.
const (
	opIn           = "In"
	opNotIn        = "NotIn"
	opExists       = "Exists"
	opDoesNotExist = "DoesNotExist"
)

// A Selector selects by labels, as in Kubernetes.
type Selector struct{ raw v1alpha1.LabelSelector }

// Matches reports whether all of the selector holds. An operator that is not known matches nothing.
func (s Selector) Matches(labels map[string]string) bool {
	for key, want := range s.raw.MatchLabels {
		if got, ok := labels[key]; !ok || got != want {
			return false
		}
	}
	for _, r := range s.raw.MatchExpressions {
		got, ok := labels[r.Key]
		var holds bool
		switch r.Operator {
		case opIn:
			holds = ok && slices.Contains(r.Values, got)
		case opNotIn: // an absent label is not in the set either
			holds = !ok || !slices.Contains(r.Values, got)
		case opExists:
			holds = ok
		case opDoesNotExist:
			holds = !ok
		}
		if !holds {
			return false
		}
	}
	return true
}

// String is the same for selectors that say the same in the same order.
func (s Selector) String() string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(s.raw.MatchLabels)) {
		parts = append(parts, key+"="+s.raw.MatchLabels[key])
	}
	for _, r := range s.raw.MatchExpressions {
		parts = append(parts, fmt.Sprintf("%s %s (%s)", r.Key, r.Operator, strings.Join(r.Values, ",")))
	}
	return strings.Join(parts, ",")
}

// selector notes what is wrong with one.
func (c *converter) selector(path string, s *v1alpha1.LabelSelector) {
	for i, r := range s.MatchExpressions {
		path := fmt.Sprintf("%s.matchExpressions[%d]", path, i)
		if r.Key == "" {
			c.problem(path+".key", "is missing; want the name of a label")
		}
		switch r.Operator {
		case opIn, opNotIn:
			if len(r.Values) == 0 {
				c.problem(path+".values", "is empty; %s needs values", r.Operator)
			}
		case opExists, opDoesNotExist:
			if len(r.Values) > 0 {
				c.problem(path+".values", "%s takes no values", r.Operator)
			}
		default:
			c.problem(path+".operator", "%q: want In, NotIn, Exists or DoesNotExist", r.Operator)
		}
	}
}
