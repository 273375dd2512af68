package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// A Key identifies one object of a [Target].
type Key[K any] interface {
	comparable
	Compare(K) int
	String() string
}

// A Target is shared state outside the process: routes in the kernel, paths and peers in the BGP speaker. Only the pass
// changes it, always through a [Syncer].
type Target[K Key[K], V comparable] interface {
	// List returns what is there and is ours. An error is not an empty map.
	List(ctx context.Context) (map[K]V, error)
	// Put creates or replaces. Putting what is there already must do no harm.
	Put(ctx context.Context, k K, v V) error
	// Delete removes. Absent is no error.
	Delete(ctx context.Context, k K) error
}

// A Syncer makes a [Target] hold what is wanted. It remembers what it put there, so that a pass that changes nothing does
// no I/O, and lists again whenever that memory is in doubt. It is not safe for concurrent use.
type Syncer[K Key[K], V comparable] struct {
	name   string
	target Target[K, V]

	have map[K]V // nil when in doubt
}

// NewSyncer returns a Syncer in doubt. The name appears in its errors.
func NewSyncer[K Key[K], V comparable](name string, target Target[K, V]) *Syncer[K, V] {
	return &Syncer[K, V]{name: name, target: target}
}

// Doubt makes the next step look at the target again: something else may have changed it.
func (s *Syncer[K, V]) Doubt() { s.have = nil }

// Ensure puts everything that is wanted and not there. It goes on after a failure and reports all of them. When the
// target cannot be listed, everything that is wanted has failed.
func (s *Syncer[K, V]) Ensure(ctx context.Context, want map[K]V) Failures[K] {
	failed := make(Failures[K])
	if err := s.observe(ctx); err != nil {
		for k := range want {
			failed[k] = err
		}
		return failed
	}
	for _, k := range sortedKeys(want) {
		if have, ok := s.have[k]; ok && have == want[k] {
			continue
		}
		if err := s.target.Put(ctx, k, want[k]); err != nil {
			failed[k] = fmt.Errorf("put %s %s: %w", s.name, k, err)
			continue
		}
		s.have[k] = want[k]
	}
	return s.done(failed)
}

// Prune deletes everything that is there and not wanted. It deletes nothing when the target cannot be listed.
func (s *Syncer[K, V]) Prune(ctx context.Context, want map[K]V) Failures[K] {
	failed := make(Failures[K])
	if err := s.observe(ctx); err != nil {
		return failed // Ensure has reported it, and nothing is known to be superfluous
	}
	for _, k := range sortedKeys(s.have) {
		if _, ok := want[k]; ok {
			continue
		}
		if err := s.target.Delete(ctx, k); err != nil {
			failed[k] = fmt.Errorf("delete %s %s: %w", s.name, k, err)
			continue
		}
		delete(s.have, k)
	}
	return s.done(failed)
}

// Keep forgets everything that is not wanted, for a target whose objects go by another way.
func (s *Syncer[K, V]) Keep(want map[K]V) {
	maps.DeleteFunc(s.have, func(k K, _ V) bool {
		_, ok := want[k]
		return !ok
	})
}

func (s *Syncer[K, V]) observe(ctx context.Context) error {
	if s.have != nil {
		return nil
	}
	have, err := s.target.List(ctx)
	if err != nil {
		return fmt.Errorf("list %s: %w", s.name, err)
	}
	s.have = make(map[K]V, len(have))
	maps.Copy(s.have, have)
	return nil
}

// done doubts after a failure: a failed step may have been half done.
func (s *Syncer[K, V]) done(failed Failures[K]) Failures[K] {
	if len(failed) > 0 {
		s.Doubt()
	}
	return failed
}

// Failures are the steps of a pass that failed, by what they were about.
type Failures[K Key[K]] map[K]error

// Err joins the failures in the order of their keys; nil when there are none.
func (f Failures[K]) Err() error {
	var errs []error
	for _, k := range sortedKeys(f) {
		errs = append(errs, f[k])
	}
	return errors.Join(errs...)
}

func sortedKeys[K Key[K], V any](m map[K]V) []K {
	return slices.SortedFunc(maps.Keys(m), K.Compare)
}
