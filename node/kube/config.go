package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gaggle-cni/gaggle/node/nodeconfig"
)

// Errors of making a configuration.
var (
	// ErrNotSynced: the cluster has not yet said everything that the configuration is made of.
	ErrNotSynced = errors.New("the cluster has not been read yet")
	// ErrNoNode: there is no Node of this node's name.
	ErrNoNode = errors.New("the node is not registered in the cluster")
)

// settleTime is how long a configuration waits for what it refers to. Then what is missing is reported as missing.
const settleTime = 5 * time.Second

// A Config is what the cluster wants of this node. It is immutable.
type Config struct {
	// Merged is the effective NodeConfig, and Cluster what it refers to: nodeconfig makes the configuration of both.
	Merged  nodeconfig.Merged
	Cluster nodeconfig.Cluster
	// Generation grows with each change of the two. It is 0 until they are known for the first time.
	Generation uint64
	// Err tells why the two are not what the cluster wants now: they are the last that were.
	Err error
}

// Config returns what the cluster wants.
func (c *Cluster) Config() Config {
	c.assembly.mu.Lock()
	defer c.assembly.mu.Unlock()
	return c.assembly.config
}

// Await returns the first configuration. When the context ends before there is one, its error says what is missing.
func (c *Cluster) Await(ctx context.Context) (Config, error) {
	select {
	case <-c.assembly.first:
		return c.Config(), nil
	case <-ctx.Done():
		return Config{}, fmt.Errorf("wait for the cluster's configuration: %w", errors.Join(c.Config().Err, c.Health().Err, context.Cause(ctx)))
	}
}

// A configItem is a NodeConfig of the cluster, or why it cannot be read.
type configItem struct {
	text string // is compared
	doc  nodeconfig.Document
	err  error
}

// readConfig reads a NodeConfig off the API. A bad one is an item, not an error: the others are read.
func readConfig(obj any) (key string, item configItem, err error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return "", item, fmt.Errorf("%T: want a NodeConfig", obj)
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": u.GetAPIVersion(), "kind": u.GetKind(), "metadata": map[string]any{"name": u.GetName()}, "spec": u.Object["spec"],
	})
	if err != nil {
		return "", item, fmt.Errorf("NodeConfig %s: %w", u.GetName(), err)
	}
	item.text = string(text)
	item.doc, item.err = nodeconfig.Read(text)
	return u.GetName(), item, nil
}

// An assembly puts the configuration together. Its goroutine owns the watches of what the document refers to.
type assembly struct {
	first chan struct{} // closed with the first configuration
	since time.Time     // when what is not there yet was first waited for

	mu         sync.Mutex
	config     Config
	secrets    map[string]*running[map[string]string]
	namespaces *running[map[string]string]
}

// A running is a watch with what ends it.
type running[T any] struct {
	*watched[T]
	stop func()
}

// start runs a watch until it is stopped.
func start[T any](ctx context.Context, w *watched[T]) *running[T] {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.run(ctx)
	}()
	return &running[T]{w, func() { cancel(); <-ended }}
}

func (a *assembly) probers() (all []prober) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(a.secrets)) {
		all = append(all, a.secrets[name])
	}
	if a.namespaces != nil {
		all = append(all, a.namespaces)
	}
	return all
}

// assemble makes the configuration anew whenever something changes, until the context ends.
func (c *Cluster) assemble(ctx context.Context) {
	defer c.watchReferred(ctx, nodeconfig.References{}) // stops everything
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		next, settled := c.effective(ctx)
		timer.Stop()
		if settled {
			c.publish(next)
		} else {
			timer.Reset(settleTime)
		}
		select {
		case <-ctx.Done():
			return
		case <-c.dirty:
		case <-timer.C:
		}
	}
}

// publish puts a configuration in the place of the last one, if it is another.
func (c *Cluster) publish(next Config) {
	a := &c.assembly
	a.mu.Lock()
	last := a.config
	if next.Err != nil { // the last good one remains
		next.Merged, next.Cluster, next.Generation = last.Merged, last.Cluster, last.Generation
	} else if next.Generation = last.Generation; last.Generation == 0 || !sameWish(last, next) {
		next.Generation++
	}
	a.config = next
	a.mu.Unlock()
	if next.Err == nil && last.Generation == 0 {
		close(a.first)
	}
	if next.Generation != last.Generation || fmt.Sprint(next.Err) != fmt.Sprint(last.Err) {
		c.o.Changed(ConfigChanged)
	}
}

func sameWish(a, b Config) bool {
	return slices.Equal(a.Merged.Names, b.Merged.Names) && string(a.Merged.Text()) == string(b.Merged.Text()) &&
		maps.Equal(a.Merged.Origins(), b.Merged.Origins()) && reflect.DeepEqual(a.Cluster, b.Cluster)
}

// effective is the configuration by what is known now. It is not settled while something is waited for that will come.
func (c *Cluster) effective(ctx context.Context) (next Config, settled bool) {
	n, known := c.Node()
	items, synced := c.configs.all()
	switch {
	case !synced || !c.node.probe().synced:
		return Config{Err: ErrNotSynced}, true
	case !known:
		return Config{Err: fmt.Errorf("%w: there is no Node %q", ErrNoNode, c.o.Node)}, true
	}
	docs := slices.Clone(c.o.Documents)
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(items)) {
		if err := items[name].err; err != nil {
			problems = append(problems, err) // it may be for this node
			continue
		}
		docs = append(docs, items[name].doc)
	}
	if err := errors.Join(problems...); err != nil {
		return Config{Err: err}, true
	}
	next.Merged = nodeconfig.Merge(nodeconfig.Select(docs, n.Labels))
	next.Cluster.PodCIDRs = n.PodCIDRs
	refs := next.Merged.References()
	c.watchReferred(ctx, refs)
	var waiting bool
	next.Cluster.Secrets, waiting = c.secrets(refs.Secrets)
	namespaces, synced := c.namespaces(refs.Namespaces)
	next.Cluster.Namespaces = namespaces
	waiting = waiting || !synced

	a := &c.assembly
	switch {
	case !waiting:
		a.since = time.Time{}
	case a.since.IsZero():
		a.since = c.o.Now()
	}
	return next, !waiting || c.o.Now().Sub(a.since) >= settleTime
}
