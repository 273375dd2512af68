package node_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/cni"
	"github.com/gaggle-cni/gaggle/cni/wire"
	"github.com/gaggle-cni/gaggle/ipam"
	"github.com/gaggle-cni/gaggle/node"
)

// grantingConfig lets the pods of namespace ns claim 203.0.113.0/28 and 2001:db8:f::/64.
func grantingConfig() node.Config {
	config := testConfig()
	config.Grants = []node.Grant{{
		Namespaces: []string{"ns"}, Uses: []node.Use{node.UseAddresses, node.UseAnycast},
		Prefixes: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/28"), netip.MustParsePrefix("2001:db8:f::/64"), netip.MustParsePrefix("192.0.2.0/24")},
	}}
	config.Services = []netip.Prefix{netip.MustParsePrefix("203.0.113.14/31")}
	return config
}

// annotated is the call for a pod with annotations: pairs of key and value.
func annotated(n int, pairs ...string) cni.Request {
	r := request(n)
	r.Conf.Annotations = make(map[string]string)
	for i := 0; i < len(pairs); i += 2 {
		r.Conf.Annotations[pairs[i]] = pairs[i+1]
	}
	return r
}

func (w *world) mustAdd(r cni.Request) cni.Result {
	w.t.Helper()
	result, err := w.agent.Add(w.t.Context(), r)
	if err != nil {
		w.t.Fatal(err)
	}
	return result
}

func one(addr string) netip.Prefix {
	a := netip.MustParseAddr(addr)
	return netip.PrefixFrom(a, a.BitLen())
}

// The first static address of a family takes the place of an allocated one, further ones and anycast are not in the result
// (C16); each is routed and announced by itself.
func TestStaticAddresses(t *testing.T) {
	w := newWorld(t, grantingConfig())
	w.start()
	r := w.mustAdd(annotated(1, node.AnnotationAddresses, "203.0.113.1 203.0.113.2", node.AnnotationAnycast, "2001:db8:f::9"))
	if len(r.IPs) != 2 || r.IPs[1].Address != one("203.0.113.1") || !netip.MustParsePrefix("2001:db8:1::/64").Contains(r.IPs[0].Address.Addr()) {
		t.Errorf("result %v, want an IPv6 address of the pool, and 203.0.113.1", r.IPs)
	}
	w.check(map[int]bool{1: true})
	for addr, want := range map[string]bgp.Kind{"203.0.113.1": bgp.KindAddresses, "203.0.113.2": bgp.KindAddresses, "2001:db8:f::9": bgp.KindAnycast} {
		if got := w.announced.Items()[one(addr)].Kind; got != want {
			t.Errorf("%s is announced as %q, want %q", addr, got, want)
		}
	}
	via := w.routes.Items()[one("2001:db8:f::9")]
	if want := node.MakeVias([]node.Via{{Addr: r.IPs[0].Address.Addr(), Link: r.HostIf}}); via.Kind != node.RouteAnycast || via.Vias != want {
		t.Errorf("anycast route %+v, want via %s", via, want)
	}
	if err := w.del(1); err != nil {
		t.Fatal(err)
	}
	w.check(map[int]bool{})
}

// B-118: what is not granted is refused, whoever asks, and so is what somebody else has. L01.
func TestClaimsAreRefused(t *testing.T) {
	w := newWorld(t, grantingConfig())
	w.start()
	held := w.mustAdd(annotated(1, node.AnnotationAddresses, "203.0.113.1"))
	w.mustAdd(annotated(2, node.AnnotationAnycast, "203.0.113.9"))
	stranger := annotated(3, node.AnnotationAddresses, "203.0.113.3")
	stranger.Pod.Namespace = "other"
	for _, tt := range []struct {
		r    cni.Request
		code uint
		text string
	}{
		{stranger, wire.CodeForbidden, `no entry of spec.grants lets namespace "other" use it for Addresses`},
		{annotated(3, node.AnnotationAddresses, "203.0.113.16"), wire.CodeForbidden, "203.0.113.16"},
		{annotated(3, node.AnnotationAnycast, held.IPs[0].Address.Addr().String()), wire.CodeForbidden, "not granted"}, // another pod's own
		{annotated(3, node.AnnotationAddresses, "192.0.2.10"), wire.CodeForbidden, "an address of the node"},
		{annotated(3, node.AnnotationAddresses, "192.0.2.1"), wire.CodeForbidden, "of a peer"},
		{annotated(3, node.AnnotationAnycast, "192.0.2.1"), wire.CodeForbidden, "of a peer"},
		{annotated(3, node.AnnotationAddresses, "203.0.113.14"), wire.CodeForbidden, "of the cluster's service range"},
		{annotated(3, node.AnnotationAnycast, "203.0.113.15"), wire.CodeForbidden, "of the cluster's service range"},
		{annotated(3, node.AnnotationAddresses, "203.0.113.1"), wire.CodeAddress, "is that of pod ns/p1 (container c1)"},
		{annotated(3, node.AnnotationAnycast, "203.0.113.1"), wire.CodeAddress, "is that of pod ns/p1 (container c1)"},
		{annotated(3, node.AnnotationAddresses, "203.0.113.9"), wire.CodeAddress, "is that of pod ns/p2 (container c2)"},
		{annotated(3, node.AnnotationAddresses, "203.0.113.3", node.AnnotationIPv4, "false"), wire.CodeAnnotation, "IPv4 is off"},
		{annotated(3, node.AnnotationAnycast, "203.0.113.3", node.AnnotationIPv4, "false"), wire.CodeAnnotation, "IPv4 is off"},
		{annotated(3, node.AnnotationAddresses, "x"), wire.CodeAnnotation, "not an address"},
		{annotated(3, node.AnnotationCIDR4, "10.2.0.0/28"), wire.CodeAddress, "four does not contain 10.2.0.0/28"},
	} {
		_, err := w.agent.Add(t.Context(), tt.r)
		hasError(t, err, tt.code, tt.text)
	}
	asked := annotated(3, node.AnnotationAddresses, "203.0.113.3")
	asked.Conf.IPs = []netip.Addr{netip.MustParseAddr("10.1.0.9")}
	_, err := w.agent.Add(t.Context(), asked)
	hasError(t, err, wire.CodeAddress, "the runtime asks for 10.1.0.9")
	w.check(map[int]bool{1: true, 2: true})
}

// C11, D07: a static address is the newest sandbox's of its pod. The end of the old one leaves it alone, and if the new one
// goes first it is the old one's again.
func TestStaticAddressMovesToTheNewestSandbox(t *testing.T) {
	for _, first := range []string{"old", "new"} {
		t.Run(first, func(t *testing.T) {
			w := newWorld(t, grantingConfig())
			w.start()
			old := annotated(1, node.AnnotationAddresses, "203.0.113.1")
			again := annotated(2, node.AnnotationAddresses, "203.0.113.1")
			again.Pod = old.Pod
			links := map[string]string{"old": w.mustAdd(old).HostIf, "new": w.mustAdd(again).HostIf}
			leads := func(to string) {
				t.Helper()
				if got := w.routes.Items()[one("203.0.113.1")].Link; got != links[to] {
					t.Errorf("the route leads to %q, want the %s sandbox %q", got, to, links[to])
				}
			}
			leads("new")
			w.kill()
			w.start() // and so it is after a restart
			leads("new")
			goes, stays := old, "new"
			if first == "new" {
				goes, stays = again, "old"
			}
			if err := w.agent.Del(t.Context(), goes); err != nil {
				t.Fatal(err)
			}
			leads(stays)
			_, err := w.agent.Add(t.Context(), annotated(3, node.AnnotationAddresses, "203.0.113.1"))
			hasError(t, err, wire.CodeAddress, "is that of pod ns/p1")
		})
	}
}

// K03: an anycast address is shared, and announced until the last pod has gone.
func TestAnycastIsCounted(t *testing.T) {
	w := newWorld(t, grantingConfig())
	w.start()
	prefix := one("203.0.113.9")
	live := make(map[int]bool)
	for n := range 3 {
		w.mustAdd(annotated(n, node.AnnotationAnycast, "203.0.113.9"))
		live[n] = true
		w.check(live)
	}
	for n := range 3 {
		if got := len(w.routes.Items()[prefix].Vias.Values()); got != len(live) {
			t.Errorf("%d pods share it, want %d", got, len(live))
		}
		if err := w.del(n); err != nil {
			t.Fatal(err)
		}
		delete(live, n)
		if _, announced := w.announced.Items()[prefix]; announced != (len(live) > 0) {
			t.Errorf("announced %v with %d pods", announced, len(live))
		}
		w.check(live)
	}
}

// A grant that is taken back withdraws what was announced by it, and says so; the pods live on.
func TestRevokedGrant(t *testing.T) {
	w := newWorld(t, grantingConfig())
	w.start()
	w.mustAdd(annotated(1, node.AnnotationAddresses, "203.0.113.1", node.AnnotationAnycast, "203.0.113.9"))
	w.kill()
	w.config.Grants = nil
	w.start()
	for _, addr := range []string{"203.0.113.1", "203.0.113.9"} {
		if _, ok := w.announced.Items()[one(addr)]; ok {
			t.Errorf("%s is announced without a grant", addr)
		}
	}
	s, err := w.agent.Status(t.Context())
	if err != nil || len(s.Refused) != 2 || !slices.Contains(s.Problems(), s.Refused[0]) {
		t.Errorf("status: refused %q, problems %q, %v", s.Refused, s.Problems(), err)
	}
	w.check(map[int]bool{1: true})
}

// The fields are the pod's, else the node's; what does not serve falls through. All replicas share them.
func TestComposedAddresses(t *testing.T) {
	config := testConfig()
	config.IPAlgo = ipam.Algo{{Name: ipam.FieldNamespace, Bits: 16}}
	w := newWorld(t, config)
	w.start()
	pool := config.Pools[0].Prefix
	for _, tt := range []struct{ algo, want string }{
		{"", "namespace/16"},
		{"namespace,app", "namespace/16,app/16"},
		{"nonsense", "namespace/16"},
		{"image", "namespace/16"}, // which is not known without Kubernetes
		{"namespace/32,app/32", "namespace/16"},
	} {
		var parts []netip.Prefix
		for i, pod := range []string{"web-7d9c6b8f5d-x2x4z", "web-7d9c6b8f5d-9wq2c"} {
			r := annotated(i)
			r.Pod.Name = pod
			if tt.algo != "" {
				r.Conf.Annotations[node.AnnotationIPAlgo] = tt.algo
			}
			addr := w.mustAdd(r).IPs[0].Address.Addr()
			algo, err := ipam.ParseAlgo(tt.want)
			if err != nil {
				t.Fatal(err)
			}
			values, err := algo.Decode(pool, addr)
			if err != nil || !values[0].Is("ns") || len(values) > 1 && !values[1].Is("web") {
				t.Errorf("%q: %s has %v, %v, want those of ns and web", tt.algo, addr, values, err)
			}
			part, _ := addr.Prefix(pool.Bits() + algo.Bits())
			parts = append(parts, part)
		}
		if parts[0] != parts[1] {
			t.Errorf("%q: replicas are in %s and %s", tt.algo, parts[0], parts[1])
		}
		for _, a := range w.db.All() {
			if a.IPAlgo != tt.want {
				t.Errorf("%q: composed by %q, want %q", tt.algo, a.IPAlgo, tt.want)
			}
		}
		for n := range 2 {
			if err := w.del(n); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// The last address of a full pool is given out although it rests, and what it was composed by is on record all the same.
func TestComposedAddressThatRested(t *testing.T) {
	config := testConfig()
	config.CoolDown = time.Hour
	config.Pools[0].Prefix = netip.MustParsePrefix("2001:db8:1::/112")
	config.IPAlgo = ipam.Algo{{Name: ipam.FieldNamespace, Bits: 8}}
	part, err := config.IPAlgo.Prefix(config.Pools[0].Prefix, node.Identity("node1", node.Pod{Key: node.PodKey{Namespace: "ns", Name: "p1"}}))
	if err != nil {
		t.Fatal(err)
	}
	b := part.Addr().As16() // of its 256 addresses one is left
	for bits := part.Bits() + 1; bits <= 128; bits++ {
		b[15] = 1 << (128 - bits)
		config.Pools[0].Reserved = append(config.Pools[0].Reserved, netip.PrefixFrom(netip.AddrFrom16(b), bits))
	}
	b[15] = 0
	w := newWorld(t, config)
	w.start()
	for n := range 2 {
		if got := w.mustAdd(request(n)).IPs[0].Address.Addr(); got != netip.AddrFrom16(b) {
			t.Errorf("pod %d has %s, want the only one that is left", n, got)
		}
		if got := w.db.All()[0].IPAlgo; got != "namespace/8" {
			t.Errorf("pod %d: composed by %q", n, got)
		}
		if err := w.del(n); err != nil {
			t.Fatal(err)
		}
	}
}

// Only the part of the pool that an annotation names, and nothing that is reserved, is given out, down to the last address.
func TestPartsAndReservedRanges(t *testing.T) {
	config := testConfig()
	config.Pools[1].Reserved = []netip.Prefix{netip.MustParsePrefix("10.1.0.64/30")}
	w := newWorld(t, config)
	w.start()
	part := netip.MustParsePrefix("10.1.0.64/29")
	live := make(map[int]bool)
	for n := range 4 {
		addr := w.mustAdd(annotated(n, node.AnnotationCIDR4, part.String())).IPs[1].Address.Addr()
		if !part.Contains(addr) || config.Pools[1].Reserved[0].Contains(addr) {
			t.Errorf("given %s, want one of 10.1.0.68/30", addr)
		}
		live[n] = true
	}
	_, err := w.agent.Add(t.Context(), annotated(9, node.AnnotationCIDR4, part.String()))
	hasError(t, err, wire.CodeExhausted, "10.1.0.64/29")
	asked := request(9)
	asked.Conf.IPs = []netip.Addr{netip.MustParseAddr("10.1.0.65")}
	_, err = w.agent.Add(t.Context(), asked)
	hasError(t, err, wire.CodeAddress, "10.1.0.65")
	w.check(live)
}
