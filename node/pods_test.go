package node_test

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/cni/wire"
	"github.com/gaggle-cni/gaggle/ipam"
	"github.com/gaggle-cni/gaggle/node"
	"github.com/gaggle-cni/gaggle/node/nodetest"
)

const shared = "203.0.113.9"

// clusterWorld is a node in a cluster, with pods 1 to n as the API server has them: not ready, with an anycast address.
func clusterWorld(t *testing.T, config node.Config, n int) *world {
	t.Helper()
	w := newWorld(t, config)
	w.pods = &nodetest.Pods{}
	for i := range n {
		w.pods.Set(factsOf(i + 1))
	}
	w.start()
	return w
}

func factsOf(n int) node.PodFacts {
	r := request(n)
	return node.PodFacts{
		Key: node.PodKey{Namespace: r.Pod.Namespace, Name: r.Pod.Name}, UID: r.Pod.UID, App: "web", Image: "registry.example/web@sha256:" + strings.Repeat("ab", 32),
		Annotations: map[string]string{node.AnnotationAnycast: shared},
	}
}

// learn is a change that the informer brings.
func (w *world) learn(n int, change func(f *node.PodFacts)) {
	w.t.Helper()
	f := factsOf(n)
	change(&f)
	w.pods.Set(f)
	w.settle()
}

func (w *world) settle() {
	w.t.Helper()
	if _, err := w.agent.Settle(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

func ready(f *node.PodFacts)       { f.Ready = true }
func terminating(f *node.PodFacts) { f.Terminating = true }
func nothing(*node.PodFacts)       {}

// anycast tells how the shared address is announced, and by how many pods it is reached.
func (w *world) anycast() (announced string, pods int) {
	if ann, ok := w.announced.Items()[one(shared)]; ok {
		announced = strings.TrimSpace(string(ann.Kind) + " " + string(ann.Communities))
	}
	return announced, len(w.routes.Items()[one(shared)].Vias.Values())
}

func (w *world) wantAnycast(when, announced string, pods int) {
	w.t.Helper()
	if a, n := w.anycast(); a != announced || n != pods {
		w.t.Errorf("%s: announced %q with %d pods, want %q with %d", when, a, n, announced, pods)
	}
}

// An anycast address is served by the pods that are ready and not being deleted. When the last of them is being deleted it
// drains; when that only stops being ready, or the drain is over, it is withdrawn. A restart changes nothing of it, also while
// the API server is away. J07.
func TestAnycastFollowsReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := grantingConfig()
		config.DrainTime = 5 * time.Second
		config.BGP.Attributes = map[bgp.Kind]bgp.Attributes{bgp.KindAnycast: {Communities: "64512:200"}}
		w := clusterWorld(t, config, 2)
		const normal, avoided = "anycast 64512:200", "anycast 64512:200 65535:0"
		for n := range 2 {
			w.mustAdd(request(n + 1)) // the annotations come from the API server
		}
		w.wantAnycast("no pod is ready", "", 0)
		w.learn(1, ready)
		w.wantAnycast("one is", normal, 1)
		w.learn(2, ready)
		w.wantAnycast("both are", normal, 2)
		w.learn(1, nothing)
		w.wantAnycast("one is no longer", normal, 1)
		w.learn(2, nothing)
		w.wantAnycast("none is", "", 0)

		w.learn(1, ready)
		w.learn(2, ready)
		w.learn(1, terminating)
		w.wantAnycast("one is being deleted", normal, 1)
		w.learn(2, terminating)
		w.wantAnycast("both are", avoided, 2)
		time.Sleep(2 * time.Second)
		w.kill()
		w.pods.Away(true)
		w.start()
		w.wantAnycast("in a process that knows nothing but its records", avoided, 2)
		w.pods.Away(false)
		time.Sleep(4 * time.Second)
		synctest.Wait()
		w.wantAnycast("after the drain", "", 0)

		w.learn(1, ready) // which the API never does, and is right all the same
		w.kill()
		w.pods.Away(true)
		w.start()
		w.wantAnycast("with the API server away", normal, 1)
		w.pods.Away(false)
		w.learn(1, func(f *node.PodFacts) { ready(f); f.Annotations = nil })
		w.wantAnycast("its annotation is gone", "", 0)
		w.learn(1, ready)
		w.wantAnycast("and back", normal, 1)
		w.learn(1, func(f *node.PodFacts) { ready(f); f.UID = "another" })
		w.wantAnycast("another pod has its name", "", 0)
	})
}

// Of two sandboxes of one pod, both of which the API calls by its name, the newer serves.
func TestAnycastOfTheNewestSandbox(t *testing.T) {
	w := clusterWorld(t, grantingConfig(), 1)
	w.mustAdd(request(1))
	w.learn(1, ready)
	again := request(1)
	again.ID.ContainerID = "again"
	r := w.mustAdd(again)
	w.learn(1, ready)
	vias := w.routes.Items()[one(shared)].Vias.Values()
	if len(vias) != 1 || vias[0].Link != r.HostIf {
		t.Errorf("it is reached by %v, want %s alone", vias, r.HostIf)
	}
}

// A static address of a pod that is being deleted is announced as one to avoid: its next pod may be on another node already.
func TestStaticAddressOfATerminatingPod(t *testing.T) {
	w := clusterWorld(t, grantingConfig(), 0)
	static := func(f *node.PodFacts) {
		f.Annotations = map[string]string{node.AnnotationAddresses: "203.0.113.1"}
		f.Ready = true
	}
	f := factsOf(1)
	static(&f)
	w.pods.Set(f)
	w.mustAdd(request(1))
	w.settle()
	if got := w.announced.Items()[one("203.0.113.1")]; got.Kind != bgp.KindAddresses || got.Communities != "" {
		t.Errorf("announced as %+v", got)
	}
	w.learn(1, func(f *node.PodFacts) { static(f); f.Ready, f.Terminating = false, true })
	if got := w.announced.Items()[one("203.0.113.1")]; got.Communities != bgp.GracefulShutdown {
		t.Errorf("while it is being deleted it is announced as %+v", got)
	}
}

// Where the runtime passes the annotations, also none, an ADD needs no API server; else it asks for another try. B-032, C43, C44.
func TestPodFacts(t *testing.T) {
	config := grantingConfig()
	config.IPAlgo = ipam.Algo{{Name: ipam.FieldApp, Bits: 16}, {Name: ipam.FieldImage, Bits: 8}}
	w := clusterWorld(t, config, 1)
	w.pods.Set(node.PodFacts{Key: node.PodKey{Namespace: "ns", Name: "p2"}, UID: "another"})
	pool := config.Pools[0].Prefix

	// What Kubernetes says of the workload counts, not the shape of the name.
	addr := w.mustAdd(request(1)).IPs[0].Address.Addr()
	if values, err := config.IPAlgo.Decode(pool, addr); err != nil || !values[0].Is("web") || values[1].String() != "ab" {
		t.Errorf("%s: %v, %v, want app web and the image's digest", addr, values, err)
	}
	passed := annotated(3)
	passed.Conf.HasAnnotations = true
	for _, tt := range []struct {
		name string
		away bool
		pod  int
		text string
	}{
		{"another pod of the name", false, 2, "does not know the pod"},
		{"no such pod", false, 9, "does not know the pod"},
		{"API server away", true, 1, "gives no answer"},
	} {
		w.pods.Away(tt.away)
		r := request(tt.pod)
		r.ID.ContainerID = "other"
		_, err := w.agent.Add(t.Context(), r)
		hasError(t, err, wire.CodeTryAgainLater, tt.text)
	}
	w.mustAdd(passed)
	w.check(map[int]bool{1: true, 3: true})
}

// What the owner of a pod can mend is told, once.
func TestTrouble(t *testing.T) {
	config := grantingConfig()
	w := clusterWorld(t, config, 1)
	w.mustAdd(request(1))
	w.learn(1, ready)
	bad := annotated(2, "gaggle.dev/ipv4", "maybe")
	bad.Conf.HasAnnotations = true
	claim := annotated(3, node.AnnotationAddresses, "203.0.113.99")
	claim.Conf.HasAnnotations = true
	for _, r := range []struct {
		n    int
		text string
	}{{2, "ns/p2 InvalidAnnotation: "}, {3, "ns/p3 ClaimRefused: "}} {
		req := bad
		if r.n == 3 {
			req = claim
		}
		if _, err := w.agent.Add(t.Context(), req); err == nil {
			t.Errorf("pod %d is attached", r.n)
		}
		if told := w.events(); len(told) != 1 || !strings.HasPrefix(told[0], r.text) {
			t.Errorf("told: %q, want %q", told, r.text)
		}
	}
	// What is no reason to refuse the pod is told, too.
	misspelled := annotated(4, node.AnnotationIPAlgo, "nonsense")
	misspelled.Conf.HasAnnotations = true
	w.mustAdd(misspelled)
	if told := w.events(); len(told) != 1 || !strings.HasPrefix(told[0], "ns/p4 InvalidIPAlgo: the ip-algo of the pod: ") {
		t.Errorf("told: %q", told)
	}
	// A grant is revoked while the pod runs: it is withdrawn and told at once.
	revoked := config
	revoked.Grants = nil
	w.agent.Configure(revoked)
	w.settle()
	w.settle()
	w.wantAnycast("without the grant", "", 0)
	if told := w.events(); len(told) != 1 || !strings.HasPrefix(told[0], "ns/p1 ClaimRefused: not granted: "+shared) {
		t.Errorf("told: %q", told)
	}
	w.agent.Configure(config)
	w.settle()
	w.wantAnycast("with the grant again", "anycast", 1)
}

// A pool that is added, or goes, while pods are attached: nothing of theirs changes but how they are announced.
func TestConfigure(t *testing.T) {
	config := testConfig()
	w := newWorld(t, config)
	w.start()
	addr := w.mustAdd(request(1)).IPs[1].Address.Addr()
	config.Pools = []node.Pool{config.Pools[0], {Name: "other", Prefix: netip.MustParsePrefix("10.2.0.0/24")}}
	w.agent.Configure(config)
	w.settle()
	if w.announced.Items()[one(addr.String())].Kind != bgp.KindPod {
		t.Errorf("%s, whose pool is gone, is not announced", addr)
	}
	if got := w.mustAdd(request(2)).IPs[1].Address.Addr(); !config.Pools[1].Prefix.Contains(got) {
		t.Errorf("a new pod has %s, want one of %s", got, config.Pools[1].Prefix)
	}
	w.config = config
	w.check(map[int]bool{1: true, 2: true})
}
