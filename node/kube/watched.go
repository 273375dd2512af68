package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Bounds of how often a watch that fails is begun again. All nodes of a cluster do it at once after an outage.
const (
	firstRetry = 500 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// A watched is what the API server says of some objects: of each only the facts T, so that a change of nothing else is none,
// and nothing else takes memory. It implements [cache.ReflectorStore].
//
//	nothing known ─Replace→ synced: all of it; from then on the last known, whatever becomes of the API server
type watched[T any] struct {
	what    string // for people
	from    *cache.ListWatch
	example runtime.Object // nil for one whose type is not compiled in
	facts   func(obj any) (key string, facts T, err error)
	changed func()
	state   func() // is called when trouble begins, changes or ends
	log     *slog.Logger
	now     func() time.Time

	mu      sync.Mutex
	items   map[string]T
	synced  bool
	trouble trouble
	err     error     // of the trouble
	since   time.Time // of the trouble
}

func newWatched[T any](c *Cluster, what string, from *cache.ListWatch, example runtime.Object,
	facts func(obj any) (string, T, error), changed func(),
) *watched[T] {
	return &watched[T]{
		what: what, from: from, example: example, facts: facts, changed: changed, state: func() { signal(c.dirty) },
		log: c.o.Log, now: c.o.Now, items: make(map[string]T),
	}
}

// run watches until the context ends.
func (w *watched[T]) run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	r := cache.NewReflectorWithOptions(w.observed(), w.example, w, cache.ReflectorOptions{
		Name: w.what, TypeDescription: w.what, Logger: &logger,
		Backoff: &wait.Backoff{Duration: firstRetry, Factor: 2, Jitter: 0.5, Steps: 20, Cap: lastRetry},
	})
	r.RunWithContext(ctx)
}

// observed notes what becomes of each request.
func (w *watched[T]) observed() *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			timed, cancel := context.WithTimeout(ctx, listTimeout)
			defer cancel()
			list, err := w.from.ListWithContextFunc(timed, o)
			w.note(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			events, err := w.from.WatchFuncWithContext(ctx, o)
			w.note(ctx, err)
			return events, err
		},
	}
}

// note remembers trouble and its end, and logs when it begins, changes or ends.
func (w *watched[T]) note(ctx context.Context, err error) {
	kind := troubleOf(err)
	if ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	before := w.trouble
	if kind != none && before == none {
		w.since = w.now()
	}
	w.trouble, w.err = kind, nil
	if kind != none {
		w.err = fmt.Errorf("watch %s: %w", w.what, err)
	}
	w.mu.Unlock()
	switch kind {
	case before:
		return
	case none:
		w.log.InfoContext(ctx, "the cluster can be watched again", "target", w.what)
	default:
		w.log.WarnContext(ctx, "the cluster cannot be watched; what is known remains, and this is tried again", "target", w.what,
			"reason", kind.String(), "err", err)
	}
	w.state()
}

// A probed is how a watch does.
type probed struct {
	synced  bool
	err     error // nil while there is no trouble
	trouble trouble
	since   time.Time
}

type prober interface{ probe() probed }

func (w *watched[T]) probe() probed {
	w.mu.Lock()
	defer w.mu.Unlock()
	return probed{w.synced, w.err, w.trouble, w.since}
}

func (w *watched[T]) get(key string) (T, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f, ok := w.items[key]
	return f, ok
}

// all returns a copy, and whether it is all there is.
func (w *watched[T]) all() (map[string]T, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.items), w.synced
}

// Add implements [cache.ReflectorStore].
func (w *watched[T]) Add(obj any) error { return w.Update(obj) }

// Update implements [cache.ReflectorStore].
func (w *watched[T]) Update(obj any) error {
	key, f, err := w.facts(obj)
	if err != nil {
		return err
	}
	w.mu.Lock()
	old, known := w.items[key]
	w.items[key] = f
	w.mu.Unlock()
	if !known || !reflect.DeepEqual(old, f) {
		w.changed()
	}
	return nil
}

// Delete implements [cache.ReflectorStore].
func (w *watched[T]) Delete(obj any) error {
	key, _, err := w.facts(obj)
	if err != nil {
		return err
	}
	w.mu.Lock()
	_, known := w.items[key]
	delete(w.items, key)
	w.mu.Unlock()
	if known {
		w.changed()
	}
	return nil
}

// Replace implements [cache.ReflectorStore].
func (w *watched[T]) Replace(list []any, _ string) error {
	items := make(map[string]T, len(list))
	var problems []error
	for _, obj := range list {
		key, f, err := w.facts(obj)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		items[key] = f
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	w.mu.Lock()
	changed := !w.synced || !reflect.DeepEqual(items, w.items)
	w.items, w.synced = items, true
	w.mu.Unlock()
	if changed {
		w.changed()
	}
	return nil
}

// Resync implements [cache.ReflectorStore].
func (w *watched[T]) Resync() error { return nil }
