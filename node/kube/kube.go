// Package kube is the cluster as one node sees it: its own pods, its own Node, the NodeConfigs with what they refer to, and
// the Events that it tells. It alone speaks to the API server. It holds facts and makes no decisions: what a fact means for
// the network is the core's matter. Nothing here is needed to keep running what runs: while the API server is away, the last
// known facts remain, and only [Cluster.Pod] and Events notice.
package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gaggle-cni/gaggle/node"
	"github.com/gaggle-cni/gaggle/node/nodeconfig"
)

// Options are what a [Cluster] works with.
type Options struct {
	Kubeconfig string // path of a file; empty for the service account of the pod that this process runs in
	Node       string // the node's name
	Namespace  string // that of the Secrets that NodeConfigs refer to
	Version    string // of this program, for the API server's logs
	// Documents count for this node beside the NodeConfigs of the cluster, with their own priority.
	Documents []nodeconfig.Document
	Log       *slog.Logger
	Now       func() time.Time
	// Changed is called after something has changed, from several goroutines. It must not block.
	Changed func(Change)
}

// A Change says what has changed.
type Change int

// The changes.
const (
	PodsChanged   Change = iota // see [Cluster.Pods]
	NodeChanged                 // see [Cluster.Node]
	ConfigChanged               // see [Cluster.Config]
)

// A Cluster is the connection to the cluster. Make one with [New]; it does nothing until [Cluster.Run]. Its other methods may
// be called at any time, from any goroutine.
type Cluster struct {
	o       Options
	clients clients

	pods    *watched[node.PodFacts]
	node    *watched[NodeFacts]
	configs *watched[configItem]

	assembly assembly
	events   events
	ready    atomic.Bool   // the network is
	dirty    chan struct{} // something that the configuration is made of has changed
	patch    chan struct{} // the Node's condition may have to be set
}

// New reads the credentials and prepares everything. It asks the API server nothing.
func New(o Options) (*Cluster, error) {
	switch {
	case o.Node == "":
		return nil, errors.New("the node's name is empty")
	case o.Namespace == "":
		return nil, errors.New("the namespace of this process is empty")
	}
	c := &Cluster{o: o, dirty: make(chan struct{}, 1), patch: make(chan struct{}, 1)}
	var err error
	if c.clients, err = newClients(o); err != nil {
		return nil, err
	}
	c.pods = newWatched(c, "pods", c.clients.list("pods", "", "spec.nodeName="+o.Node), &corev1.Pod{}, podFacts, func() { o.Changed(PodsChanged) })
	c.node = newWatched(c, "the node", c.clients.list("nodes", "", "metadata.name="+o.Node), &corev1.Node{}, nodeFacts, func() {
		o.Changed(NodeChanged)
		signal(c.dirty)
		signal(c.patch)
	})
	c.configs = newWatched(c, "NodeConfigs", c.clients.nodeConfigs(), nil, readConfig, func() { signal(c.dirty) })
	c.assembly.first = make(chan struct{})
	c.events.init()
	return c, nil
}

// Run watches the cluster until the context ends, and returns when everything that it started has ended.
func (c *Cluster) Run(ctx context.Context) error {
	ctx = withQuietLog(ctx, c.o.Log)
	var all sync.WaitGroup
	for _, run := range []func(context.Context){c.pods.run, c.node.run, c.configs.run, c.assemble, c.sendEvents, c.keepCondition} {
		all.Go(func() { run(ctx) })
	}
	all.Wait()
	return nil
}

// signal wakes up whoever reads the channel. It never blocks.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Health is how the connection does.
type Health struct {
	// Synced tells that pods, Node and NodeConfigs have been seen as a whole at least once.
	Synced bool
	// Away is since when some watch has not been able to reach the API server, or to see what it must; zero while all is well.
	Away time.Time
	// Err is the last trouble of each watch that is in trouble.
	Err error
	// DroppedEvents counts those that were not told: there were too many of them, or the API server did not take them.
	DroppedEvents uint64
}

// Health tells how the connection does.
func (c *Cluster) Health() Health {
	h := Health{Synced: true, DroppedEvents: c.events.dropped.Load()}
	for _, w := range slices.Concat([]prober{c.pods, c.node, c.configs}, c.assembly.probers()) {
		s := w.probe()
		h.Synced = h.Synced && s.synced
		if s.err == nil {
			continue
		}
		h.Err = errors.Join(h.Err, s.err)
		if h.Away.IsZero() || s.since.Before(h.Away) {
			h.Away = s.since
		}
	}
	return h
}

// Pods returns the pods of this node, and whether they are all: false until the API server has once said which there are. The
// map is the caller's.
func (c *Cluster) Pods() (pods map[node.PodKey]node.PodFacts, synced bool) {
	items, synced := c.pods.all()
	pods = make(map[node.PodKey]node.PodFacts, len(items))
	for f := range maps.Values(items) {
		pods[f.Key] = f
	}
	return pods, synced
}

// Node returns what the cluster says of this node; ok is false while it says nothing.
func (c *Cluster) Node() (f NodeFacts, ok bool) {
	return c.node.get(c.o.Node)
}

// lookupTimeout bounds one question about a pod.
const lookupTimeout = 3 * time.Second

// Pod returns the facts of a pod that a runtime speaks of. It answers from what is known if the UID fits, and else asks the API
// server once, for three seconds at most. Its errors are [node.ErrUnknownPod] and [node.ErrNoAPI].
func (c *Cluster) Pod(ctx context.Context, key node.PodKey, uid string) (node.PodFacts, error) {
	if f, ok := c.pods.get(key.String()); ok && f.Is(uid) {
		return f, nil
	}
	ctx, cancel := context.WithTimeout(withQuietLog(ctx, c.o.Log), lookupTimeout)
	defer cancel()
	var pod corev1.Pod
	err := c.clients.core.Get().Namespace(key.Namespace).Resource("pods").Name(key.Name).Do(ctx).Into(&pod)
	switch {
	case troubleOf(err) == missing:
		return node.PodFacts{}, fmt.Errorf("%w: there is no pod %s", node.ErrUnknownPod, key)
	case err != nil:
		return node.PodFacts{}, fmt.Errorf("%w: %w", node.ErrNoAPI, err)
	}
	_, f, err := podFacts(&pod)
	if err == nil && !f.Is(uid) {
		err = fmt.Errorf("%w: pod %s has the UID %s, not %s", node.ErrUnknownPod, key, f.UID, uid)
	}
	if err != nil {
		return node.PodFacts{}, err
	}
	return f, nil
}
