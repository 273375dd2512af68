package kube

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gaggle-cni/gaggle/node"
	"github.com/gaggle-cni/gaggle/node/nodeconfig"
)

const (
	nodePath = "api/v1/nodes/node1"
	podPath  = "api/v1/namespaces/shop/pods/web"
	ownPath  = "apis/gaggle.dev/v1alpha1/nodeconfigs/"
	secret   = "api/v1/namespaces/gaggle-system/secrets/tor"

	aNode = `{"metadata": {"uid": "n1", "labels": {"rack": "1"}}, "spec": {"podCIDRs": ["2001:db8:1::/64", "10.1.0.0/24"]},
		"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "node1"}]}}`
	aPod = `{"metadata": {"uid": "u1", "labels": {"pod-template-hash": "5d4f"}, "annotations": {"gaggle.dev/anycast": "203.0.113.1", "other": "x"},
		"ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d4f", "uid": "r", "controller": true}]},
		"spec": {"nodeName": "node1", "containers": [{"name": "a", "image": "web:1"}, {"name": "b", "image": "side:1"}]},
		"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}]}}`
)

// A world is a cluster with what is known of it.
type world struct {
	*Cluster
	api *apiServer
	log *safeBuffer

	mu      sync.Mutex
	changes map[Change]int
}

func (w *world) count(c Change) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changes[c]
}

// safeBuffer is a log that is read while it is written.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// newWorld returns a cluster that is not running yet.
func newWorld(t *testing.T, s *apiServer, change ...func(*Options)) *world {
	t.Helper()
	w := &world{api: s, log: new(safeBuffer), changes: make(map[Change]int)}
	o := Options{
		Kubeconfig: s.kubeconfig(t), Node: "node1", Namespace: "gaggle-system", Version: "test",
		Log: slog.New(slog.NewTextHandler(w.log, nil)), Now: time.Now,
		Changed: func(c Change) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.changes[c]++
		},
	}
	for _, f := range change {
		f(&o)
	}
	var err error
	if w.Cluster, err = New(o); err != nil {
		t.Fatal(err)
	}
	return w
}

// run runs it until the test ends, and then insists that it ends.
func (w *world) run(t *testing.T) *world {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Run() = %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("Run does not end")
		}
	})
	return w
}

func TestNewRefuses(t *testing.T) {
	for name, o := range map[string]Options{
		"no node": {Namespace: "x"}, "no namespace": {Node: "x"}, "no cluster": {Node: "x", Namespace: "x"},
		"no kubeconfig": {Node: "x", Namespace: "x", Kubeconfig: "/none"},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

var webFacts = node.PodFacts{
	Key: node.PodKey{Namespace: "shop", Name: "web"}, UID: "u1", Annotations: map[string]string{"gaggle.dev/anycast": "203.0.113.1"},
	App: "web", Image: "web:1", Ready: true, Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
}

func TestPods(t *testing.T) {
	api := newAPIServer(t)
	api.put(t, nodePath, aNode)
	api.put(t, podPath, aPod)
	api.put(t, "api/v1/namespaces/shop/pods/elsewhere", strings.ReplaceAll(aPod, "node1", "node2"))
	w := newWorld(t, api)
	if pods, synced := w.Pods(); synced || len(pods) > 0 {
		t.Errorf("before the start: %v, %v", pods, synced)
	}
	w.run(t)
	eventually(t, "synced", func() bool { _, synced := w.Pods(); return synced })
	pods, _ := w.Pods()
	want := map[node.PodKey]node.PodFacts{webFacts.Key: webFacts}
	opt := cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) })
	if diff := cmp.Diff(want, pods, opt); diff != "" {
		t.Errorf("Pods() (-want +got):\n%s", diff)
	}

	pod := func() node.PodFacts { pods, _ := w.Pods(); return pods[webFacts.Key] }
	t.Run("not ready", func(t *testing.T) {
		api.put(t, podPath, strings.Replace(aPod, `"True"`, `"False"`, 1))
		eventually(t, "not ready", func() bool { return !pod().Ready })
	})
	t.Run("being deleted", func(t *testing.T) {
		api.put(t, podPath, aPod)
		eventually(t, "ready", func() bool { return pod().Ready })
		api.put(t, podPath, strings.Replace(aPod, `"uid": "u1"`, `"uid": "u1", "deletionTimestamp": "2026-01-02T03:04:05Z"`, 1))
		eventually(t, "terminating", func() bool { return pod().Terminating && !pod().Ready })
	})
	t.Run("finished", func(t *testing.T) {
		api.put(t, podPath, strings.Replace(aPod, "Running", "Succeeded", 1))
		eventually(t, "finished", func() bool { return pod().Finished && !pod().Ready })
	})
	t.Run("a change of nothing that matters", func(t *testing.T) {
		before := w.count(PodsChanged)
		api.put(t, podPath, strings.Replace(aPod, "Running", `Succeeded", "message": "x`, 1))
		api.put(t, "api/v1/namespaces/shop/pods/last", aPod)
		eventually(t, "the next one", func() bool { pods, _ := w.Pods(); return len(pods) == 2 })
		if got := w.count(PodsChanged); got != before+1 {
			t.Errorf("%d changes, want 1", got-before)
		}
	})
	t.Run("gone", func(t *testing.T) {
		api.remove(podPath)
		eventually(t, "gone", func() bool { return pod().UID == "" })
	})
	if writes := api.written(); len(writes) > 0 {
		t.Errorf("writes: %v", writes)
	}
}

func TestPod(t *testing.T) {
	api := newAPIServer(t)
	api.put(t, podPath, aPod)
	w := newWorld(t, api) // nothing is watched: each is asked for
	ctx := t.Context()
	key := webFacts.Key
	if got, err := w.Pod(ctx, key, "u1"); err != nil || got.UID != "u1" || got.App != "web" {
		t.Errorf("Pod() = %+v, %v", got, err)
	}
	if _, err := w.Pod(ctx, key, ""); err != nil {
		t.Errorf("without a UID: %v", err)
	}
	if _, err := w.Pod(ctx, key, "u2"); !errors.Is(err, node.ErrUnknownPod) {
		t.Errorf("another UID: %v", err)
	}
	if _, err := w.Pod(ctx, node.PodKey{Namespace: "shop", Name: "none"}, "u2"); !errors.Is(err, node.ErrUnknownPod) {
		t.Errorf("no such pod: %v", err)
	}
	api.setRefusal("pods", 403)
	if _, err := w.Pod(ctx, key, "u1"); !errors.Is(err, node.ErrNoAPI) {
		t.Errorf("refused: %v", err)
	}
	api.setRefusal("pods", 0)
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	api.mu.Lock()
	api.hang = make(chan struct{})
	api.mu.Unlock()
	if _, err := w.Pod(short, key, "u1"); !errors.Is(err, node.ErrNoAPI) {
		t.Errorf("no answer: %v", err)
	}
	api.CloseClientConnections()
	api.Close()
	if _, err := w.Pod(ctx, key, "u1"); !errors.Is(err, node.ErrNoAPI) {
		t.Errorf("no API server: %v", err)
	}
}

// A pod that is known is not asked for, and what is known serves while the API server is away.
func TestPodOfTheCache(t *testing.T) {
	api := newAPIServer(t)
	api.put(t, podPath, aPod)
	w := newWorld(t, api).run(t)
	eventually(t, "synced", func() bool { _, synced := w.Pods(); return synced })
	if _, err := w.Pod(t.Context(), webFacts.Key, "u1"); err != nil {
		t.Error(err)
	}
	api.mu.Lock()
	gets := slices.Clone(api.gets)
	api.mu.Unlock()
	if len(gets) > 0 {
		t.Errorf("asked for %v", gets)
	}
	api.setRefusal("v1", 503)
	api.dropWatches()
	eventually(t, "away", func() bool { return !w.Health().Away.IsZero() })
	if _, err := w.Pod(t.Context(), webFacts.Key, "u1"); err != nil {
		t.Error(err)
	}
}

// B-049: kubelet's UID of a static pod is not that of its mirror.
func TestStaticPod(t *testing.T) {
	api := newAPIServer(t)
	api.put(t, podPath, `{"metadata": {"uid": "mirror", "annotations": {"kubernetes.io/config.mirror": "h1", "kubernetes.io/config.hash": "h1"},
		"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node1", "uid": "n", "controller": true}]}, "spec": {"nodeName": "node1"}}`)
	api.put(t, "api/v1/namespaces/shop/pods/pretender", `{"metadata": {"uid": "p1", "annotations": {"kubernetes.io/config.hash": "h1"}}, "spec": {"nodeName": "node1"}}`)
	w := newWorld(t, api)
	for _, uid := range []string{"h1", "mirror"} {
		if f, err := w.Pod(t.Context(), webFacts.Key, uid); err != nil || f.App != "web" {
			t.Errorf("Pod(%s) = %+v, %v", uid, f, err)
		}
	}
	if _, err := w.Pod(t.Context(), node.PodKey{Namespace: "shop", Name: "pretender"}, "h1"); !errors.Is(err, node.ErrUnknownPod) {
		t.Errorf("no mirror: %v", err)
	}
}

func TestNode(t *testing.T) {
	api := newAPIServer(t)
	api.put(t, nodePath, aNode)
	w := newWorld(t, api).run(t)
	eventually(t, "known", func() bool { _, ok := w.Node(); return ok })
	got, _ := w.Node()
	if got.UID != "n1" || got.Labels["rack"] != "1" || !slices.Equal(got.Addresses, []netip.Addr{netip.MustParseAddr("192.0.2.1")}) ||
		!slices.Equal(got.PodCIDRs, []netip.Prefix{netip.MustParsePrefix("2001:db8:1::/64"), netip.MustParsePrefix("10.1.0.0/24")}) {
		t.Errorf("Node() = %+v", got)
	}
	api.put(t, nodePath, strings.Replace(aNode, `"podCIDRs": ["2001:db8:1::/64", "10.1.0.0/24"]`, `"podCIDR": "10.2.0.0/24"`, 1))
	eventually(t, "the old field", func() bool { n, _ := w.Node(); return len(n.PodCIDRs) == 1 })
}

// Trouble is told once when it begins and once when it ends; what is known remains; and afterwards all goes on.
func TestAPIServerAway(t *testing.T) {
	for name, status := range map[string]int{"trouble": 503, "refused": 403} {
		t.Run(name, func(t *testing.T) {
			api := newAPIServer(t)
			api.put(t, nodePath, aNode)
			api.put(t, podPath, aPod)
			w := newWorld(t, api).run(t)
			eventually(t, "synced", func() bool { return w.Health().Synced })
			if h := w.Health(); h.Err != nil || !h.Away.IsZero() {
				t.Errorf("Health() = %+v", h)
			}
			eventually(t, "watches", func() bool {
				api.mu.Lock()
				defer api.mu.Unlock()
				return len(api.watchers) == 3
			})
			api.setRefusal("v1", status)
			api.dropWatches()
			eventually(t, "away", func() bool { return strings.Contains(w.log.String(), "again\" target=pods") })
			if pods, synced := w.Pods(); len(pods) != 1 || !synced {
				t.Errorf("while away: %v, %v", pods, synced)
			}
			api.put(t, podPath, strings.Replace(aPod, `"True"`, `"False"`, 1))
			api.setRefusal("v1", 0)
			eventually(t, "what was missed", func() bool { pods, _ := w.Pods(); return !pods[webFacts.Key].Ready })
			api.dropWatches()
			eventually(t, "well", func() bool { h := w.Health(); return h.Err == nil && h.Away.IsZero() })
			if n := strings.Count(w.log.String(), `cannot be watched; what is known remains, and this is tried again" target=pods`); n != 1 {
				t.Errorf("told %d times of the pods:\n%s", n, w.log)
			}
			if n := strings.Count(w.log.String(), `can be watched again" target=pods`); n != 1 {
				t.Errorf("told %d times of the end:\n%s", n, w.log)
			}
		})
	}
}

// B26: neither the start nor anything after it needs an API server.
func TestNoAPIServer(t *testing.T) {
	api := newAPIServer(t)
	w := newWorld(t, api)
	api.Close()
	w.run(t)
	eventually(t, "away", func() bool { return w.Health().Err != nil })
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := w.Await(short); !errors.Is(err, ErrNotSynced) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Await() = %v", err)
	}
	if h := w.Health(); h.Synced {
		t.Errorf("Health() = %+v", h)
	}
}

// A document of the node's own takes part by its priority.
func TestDocumentOfTheNode(t *testing.T) {
	doc, err := os.ReadFile("testdata/file.yaml")
	if err != nil {
		t.Fatal(err)
	}
	d, err := nodeconfig.Read(doc)
	if err != nil {
		t.Fatal(err)
	}
	api := newAPIServer(t)
	api.put(t, nodePath, aNode)
	api.put(t, ownPath+"all", `{"spec": {"priority": 1, "defaults": {"mtu": 1400, "ipAlgo": "namespace"}}}`)
	w := newWorld(t, api, func(o *Options) { o.Documents = []nodeconfig.Document{d} }).run(t)
	c, err := w.Await(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"file", "all"}, c.Merged.Names); diff != "" {
		t.Errorf("Names (-want +got):\n%s", diff)
	}
}
