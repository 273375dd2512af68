package integration

import (
	"encoding/json"
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// oneNode is a node with a router, for what does not depend on the router's kind.
func oneNode(t *testing.T, p lab.Peering) (*lab.Lab, *lab.Node) {
	t.Helper()
	return oneNodeOf(t, p, bin)
}

// oneNodeOf is oneNode with other programs.
func oneNodeOf(t *testing.T, p lab.Peering, programs string) (*lab.Lab, *lab.Node) {
	t.Helper()
	need(t, "birdc")
	t.Parallel()
	l := newLabOf(t, 1, programs)
	_, err := l.StartRouter(t.Context(), "bird", nil)
	must(t, err)
	p.Over4 = true
	must(t, l.Nodes[0].Start(t.Context(), l.Nodes[0].Config(p)))
	return l, l.Nodes[0]
}

// An ADD that fails says why, as a CNI error on stdout, and leaves nothing behind. B01, B02, C02, C05, C24, C41.
func TestFailingAdds(t *testing.T) {
	_, n := oneNode(t, lab.Peering{Pool4: "10.244.1.0/29"})
	for i := range 6 { // all of a /29 that pods can have
		attach(t, n, "full"+string(rune('a'+i)))
	}
	tests := []struct {
		name string
		set  func(p *lab.Pod)
		code uint
		text string
	}{
		{"pool exhausted", nil, 101, "no free address"},
		{"namespace missing", func(p *lab.Pod) { p.NS.Name = "none" }, 4, "does not exist"},
		{"the node's namespace", func(p *lab.Pod) { p.NS = n.NS }, 4, "own network namespace"}, // B-123
		{"no namespace", func(p *lab.Pod) { p.NS.Name = "../../etc/hosts" }, 4, "not a namespace"},
		{"bad container id", func(p *lab.Pod) { p.ContainerID = "../../x" }, 4, "CNI_CONTAINERID"},   // B07
		{"long interface name", func(p *lab.Pod) { p.IfName = "abcdefghijklmnop" }, 4, "CNI_IFNAME"}, // B08
	}
	unchanged := snapshot(t, n)
	records := len(podList(t, n))
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := n.Pod(t.Context(), "victim"+strings.ReplaceAll(tt.name, " ", "")[:4])
			must(t, err)
			if tt.set != nil {
				tt.set(p)
			}
			refused(t, p, tt.code, tt.text)
		})
	}
	unchanged()
	if got := len(podList(t, n)); got != records {
		t.Errorf("%d records, want %d", got, records)
	}
}

func refused(t *testing.T, p *lab.Pod, code uint, text string) {
	t.Helper()
	_, err := p.Add(within(t, 20*time.Second))
	e, ok := errors.AsType[*lab.CNIError](err)
	if !ok {
		t.Fatalf("ADD = %v, want a CNI error", err)
	}
	if e.Code != code || !strings.Contains(e.Msg, text) || e.CNIVersion != "1.0.0" {
		t.Errorf("ADD = %s, want code %d with %q", e.Stdout, code, text)
	}
}

// C02, C03: an interface that is there stays as it is, and a repeated ADD gives the same result.
func TestInterfaceIsThere(t *testing.T) {
	_, n := oneNode(t, lab.Peering{})
	p, err := n.Pod(t.Context(), "taken")
	must(t, err)
	must(t, p.NS.IP(t.Context(), "link add eth0 type bridge"))
	unchanged := snapshot(t, n)
	refused(t, p, 103, "interface exists")
	out, err := p.NS.Exec(t.Context(), "ip", "-d", "link", "show", "eth0")
	must(t, err)
	if !strings.Contains(out, "bridge") {
		t.Errorf("the interface was changed: %s", out)
	}
	unchanged()

	q, _ := attach(t, n, "twice")
	first, err := q.Call(t.Context(), "ADD", "1.0.0")
	must(t, err)
	second, err := q.Call(t.Context(), "ADD", "1.0.0")
	must(t, err)
	if string(first) != string(second) {
		t.Errorf("first ADD %s, second %s", first, second)
	}
	for range 3 { // D01
		must(t, q.Del(t.Context()))
	}
}

// D02, B-005: DEL without a namespace, and after the namespace is gone.
func TestDelWithoutNamespace(t *testing.T) {
	l, n := oneNode(t, lab.Peering{})
	unchanged := snapshot(t, n)
	for _, path := range []string{"", "gone"} {
		p, _ := attach(t, n, "a"+path)
		must(t, l.RemoveNamespace(p.NS))
		if path == "" {
			p.NS.Name = "" // becomes a path that is no namespace
		}
		must(t, p.Del(within(t, 10*time.Second)))
	}
	unchanged()
}

// The plugin without a node process: VERSION works, everything else says so within seconds. A01, A02, A10, B25, B-003.
func TestWithoutNodeProcess(t *testing.T) {
	_, n := oneNode(t, lab.Peering{})
	p, _ := attach(t, n, "a")
	n.Process().Kill()
	out, err := p.Call(t.Context(), "VERSION", "1.0.0")
	must(t, err)
	var v struct{ SupportedVersions []string }
	must(t, json.Unmarshal(out, &v))
	if len(v.SupportedVersions) != 4 { // A03
		t.Errorf("VERSION = %s", out)
	}
	for command, code := range map[string]uint{"ADD": 11, "CHECK": 11, "GC": 11, "STATUS": 50} {
		start := time.Now()
		_, err := p.Call(within(t, 20*time.Second), command, "1.1.0")
		e, ok := errors.AsType[*lab.CNIError](err)
		if !ok || e.Code != code || !strings.Contains(e.Msg, "default/a") {
			t.Errorf("%s = %v, want code %d with the pod's name", command, err, code)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%s took %v", command, took)
		}
	}
	must(t, n.Restart(t.Context()))
	must(t, p.Del(t.Context()))
}

// D05: a pod can go while there is no node process. The next one finishes that before it serves anything.
func TestDelWithoutNodeProcess(t *testing.T) {
	l, n := oneNode(t, lab.Peering{})
	unchanged := snapshot(t, n)
	p, _ := attach(t, n, "a")
	q, _ := attach(t, n, "b")
	n.Process().Kill()
	for range 2 {
		must(t, p.Del(within(t, 20*time.Second)))
	}
	must(t, l.RemoveNamespace(q.NS)) // the pair goes with it, the record stays
	must(t, q.Del(within(t, 20*time.Second)))
	must(t, n.Restart(t.Context()))
	r, err := n.Pod(t.Context(), "c")
	must(t, err)
	_, err = r.Add(t.Context())
	must(t, err)
	if got := podList(t, n); len(got) != 1 || got[0].Name != "c" {
		t.Errorf("attached are %+v, want the new one only", got)
	}
	must(t, r.Del(t.Context()))
	unchanged()
}

// E02: a route and an address that somebody removes are named. F01, F02: a GC keeps what is listed. G01: STATUS is green.
func TestCheckGCAndStatus(t *testing.T) {
	_, n := oneNode(t, lab.Peering{})
	p, _ := attach(t, n, "a")
	q, _ := attach(t, n, "b")
	out, err := p.Call(t.Context(), "ADD", "1.1.0") // once more, for its result
	must(t, err)
	check := func() error {
		_, err := p.CallWith(within(t, 20*time.Second), "CHECK", "1.1.0", map[string]any{"prevResult": json.RawMessage(out)})
		return err
	}
	must(t, check())
	must(t, p.NS.IP(t.Context(), "addr flush dev eth0 scope global"))
	e, ok := errors.AsType[*lab.CNIError](check())
	if !ok || e.Code != 107 || strings.Count(e.Msg, "is missing") < 2 || !strings.Contains(e.Msg, "pod default/a") {
		t.Errorf("CHECK = %v, want what is missing", e)
	}

	status, err := p.Call(t.Context(), "STATUS", "1.1.0")
	must(t, err)
	if len(status) > 0 {
		t.Errorf("STATUS prints %q", status)
	}

	gc := func(more map[string]any) error {
		_, err := p.CallWith(within(t, 20*time.Second), "GC", "1.1.0", more)
		return err
	}
	e, ok = errors.AsType[*lab.CNIError](gc(nil))
	if !ok || e.Code != 7 || len(podList(t, n)) != 2 {
		t.Errorf("GC without a list = %v, want code 7 and nothing removed", e)
	}
	must(t, gc(map[string]any{"cni.dev/valid-attachments": []any{map[string]string{"containerID": q.ContainerID, "ifname": "eth0"}}}))
	if got := podList(t, n); len(got) != 1 || got[0].Name != "b" {
		t.Errorf("attached are %+v, want the one that is in use", got)
	}
	must(t, gc(map[string]any{"cni.dev/valid-attachments": []any{}}))
	if got := podList(t, n); len(got) != 0 {
		t.Errorf("attached are %+v, want none", got)
	}
}

// A call that comes while the node process restarts waits for it and succeeds. B-048.
func TestCallWaitsForRestart(t *testing.T) {
	_, n := oneNode(t, lab.Peering{})
	p, err := n.Pod(t.Context(), "a")
	must(t, err)
	n.Process().Kill()
	done := make(chan error, 1)
	go func() {
		_, err := p.Add(t.Context())
		done <- err
	}()
	must(t, n.Restart(t.Context()))
	must(t, <-done)
}

// cnitool, the reference implementation of a runtime, in all versions of the specification. A04, A05, A06, J10.
func TestCnitool(t *testing.T) {
	l, n := oneNode(t, lab.Peering{})
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			runtime := chainOf(t, l, n, map[string]any{"cniVersion": version, "name": "v" + version})
			tool := func(command string) string { return runtime.call(t, command) }
			var r struct {
				CNIVersion string
				IPs        []struct {
					Version *string
					Address string
				}
			}
			must(t, json.Unmarshal([]byte(tool("add")), &r))
			old := strings.HasPrefix(version, "0.")
			if r.CNIVersion != version || len(r.IPs) != 2 || (r.IPs[0].Version != nil) != old {
				t.Errorf("result %+v", r)
			}
			if version >= "0.4.0" {
				tool("check") // E08: with what libcni kept of the ADD
			}
			if version >= "1.1.0" {
				tool("status")
			}
			tool("del")
			tool("del")
		})
	}
	if got := podList(t, n); len(got) != 0 {
		t.Errorf("records left: %+v", got)
	}
}

// A13: a DEL comes with the configuration of its ADD, however old, or with another.
func TestDelWithAnotherVersion(t *testing.T) {
	_, n := oneNode(t, lab.Peering{})
	p, err := n.Pod(t.Context(), "a")
	must(t, err)
	versions := []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}
	for _, added := range versions {
		for _, deleted := range versions {
			_, err := p.Call(within(t, 20*time.Second), "ADD", added)
			must(t, err)
			_, err = p.Call(within(t, 20*time.Second), "DEL", deleted)
			must(t, err)
			if got := podList(t, n); len(got) != 0 {
				t.Fatalf("added with %s, deleted with %s: records left: %+v", added, deleted, got)
			}
		}
	}
}

// M10, C49: a second interface has addresses that can be reached, the first keeps the default routes, and each goes by itself.
// C21: address and MAC are as they were asked for.
func TestSecondInterface(t *testing.T) {
	l, n := oneNode(t, lab.Peering{})
	awaitPools(t, l, n)
	p, first := attach(t, n, "a")
	second := *p
	second.IfName = "net1"
	out, err := second.CallWith(t.Context(), "ADD", "1.0.0", map[string]any{
		"runtimeConfig": map[string]any{"ips": []string{"10.244.1.77/24"}, "mac": "02:00:00:00:00:77"},
	})
	must(t, err)
	var r lab.Result
	must(t, json.Unmarshal(out, &r))
	if r.Addr(false).String() != "10.244.1.77" || r.Interfaces[1].MAC != "02:00:00:00:00:77" || r.Interfaces[1].Name != "net1" {
		t.Errorf("result %s", out)
	}
	for _, a := range []netip.Addr{first.Addr(true), first.Addr(false), r.Addr(true), r.Addr(false)} {
		_, err := lab.Ping(within(t, 10*time.Second), l.Client, a)
		must(t, err)
	}
	check := func(p *lab.Pod, result []byte) {
		t.Helper()
		_, err := p.CallWith(t.Context(), "CHECK", "1.0.0", map[string]any{"prevResult": json.RawMessage(result)})
		must(t, err)
	}
	check(&second, out)
	must(t, second.Del(t.Context()))
	whole, err := p.Call(t.Context(), "ADD", "1.0.0")
	must(t, err)
	check(p, whole)
	_, err = lab.Ping(within(t, 10*time.Second), l.Client, first.Addr(true))
	must(t, err)
}

// I19, D09: a pod whose pool has gone from the configuration keeps its address, which is announced by itself.
func TestPodOfARemovedPool(t *testing.T) {
	l, n := oneNode(t, lab.Peering{})
	awaitPools(t, l, n)
	p, r := attach(t, n, "a")
	must(t, n.Process().Terminate(within(t, 20*time.Second)))
	must(t, n.Start(t.Context(), n.Config(lab.Peering{Over4: true, Pool4: "10.245.1.0/24"})))
	// The router keeps the old routes for a while: what counts is what it is told by the new process.
	for wait := within(t, 30*time.Second); ; {
		out, err := n.NS.Exec(wait, filepath.Join(bin, "gobgp"), "--target=unix://"+filepath.Join(n.RunDir, "gobgp.sock"), "neighbor", lab.Router4, "adj-out")
		if err == nil && strings.Contains(out, r.Addr(false).String()+"/32") && strings.Contains(out, "10.245.1.0/24") {
			break
		}
		if wait.Err() != nil {
			t.Fatalf("announced are: %v\n%s", err, out)
		}
	}
	_, err := lab.Ping(within(t, 10*time.Second), l.Client, r.Addr(false))
	must(t, err)
	must(t, p.Del(t.Context()))
}

// C03: a container that comes again under its id, in another namespace, is attached there.
func TestContainerComesAgain(t *testing.T) {
	l, n := oneNode(t, lab.Peering{})
	awaitPools(t, l, n)
	p, _ := attach(t, n, "a")
	other, err := l.Namespace(t.Context(), "again")
	must(t, err)
	p.NS = other
	r, err := p.Add(t.Context())
	must(t, err)
	for _, six := range []bool{true, false} {
		_, err := lab.Ping(within(t, 10*time.Second), l.Client, r.Addr(six))
		must(t, err)
	}
	must(t, p.Del(t.Context()))
	if got := podList(t, n); len(got) != 0 {
		t.Errorf("records left: %+v", got)
	}
}

// E09, I02, I05, B-030: what somebody removes on the node is back within a second, and pods are reached again.
func TestRepair(t *testing.T) {
	l, n := oneNode(t, lab.Peering{})
	awaitPools(t, l, n)
	p, r := attach(t, n, "a")
	link := r.Interfaces[0].Name
	out, err := p.Call(t.Context(), "ADD", "1.0.0")
	must(t, err)
	unchanged := snapshot(t, n)
	for _, harm := range []string{
		"addr del 169.254.1.1/32 dev " + link, "-6 addr del fe80::1/64 dev " + link, "link set " + link + " down",
		"route flush proto 103", "-6 route flush proto 103",
	} {
		t.Run(harm, func(t *testing.T) {
			must(t, n.NS.IP(t.Context(), harm))
			start := time.Now()
			var failed error
			for wait := within(t, 10*time.Second); ; {
				if _, failed = p.CallWith(wait, "CHECK", "1.0.0", map[string]any{"prevResult": json.RawMessage(out)}); failed == nil {
					break
				}
				if wait.Err() != nil {
					t.Fatalf("not repaired: %v", failed)
				}
			}
			if took := time.Since(start); took > time.Second {
				t.Errorf("repaired after %v", took)
			}
			for _, six := range []bool{true, false} {
				_, err := lab.Ping(within(t, 5*time.Second), l.Client, r.Addr(six))
				must(t, err)
			}
		})
	}
	unchanged()
}

// M01-M06: the reference plugins after ours, in one chain each and by the reference runtime. The pod is reached, CHECK passes,
// and nothing is left afterwards. C17.
func TestChainedPlugins(t *testing.T) {
	l, n := oneNode(t, lab.Peering{})
	awaitPools(t, l, n)
	unchanged := snapshotUpTo(t, n, "# nft") // portmap and firewall leave their chains to the next pod
	for name, next := range map[string]map[string]any{
		"tuning":   {"type": "tuning", "mac": "02:00:00:00:00:99", "mtu": 1300, "sysctl": map[string]string{"net.ipv4.tcp_syncookies": "0"}},
		"portmap":  {"type": "portmap", "capabilities": map[string]bool{"portMappings": true}, "snat": true},
		"firewall": {"type": "firewall", "backend": "iptables"},
		"sbr":      {"type": "sbr"},
	} {
		t.Run(name, func(t *testing.T) {
			runtime := chain(t, l, n, name, next)
			runtime.capabilities = `{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}`
			tool := func(command string) string { return runtime.call(t, command) }
			var r lab.Result
			must(t, json.Unmarshal([]byte(tool("add")), &r))
			for _, six := range []bool{true, false} {
				_, err := lab.Ping(within(t, 10*time.Second), l.Client, r.Addr(six))
				must(t, err)
			}
			if name != "portmap" { // whose own CHECK looks for the rules of IPv4 among those of IPv6 where a pod has both
				tool("check")
			}
			tool("del")
		})
	}
	unchanged()
}

// kill -9 at random moments of ADDs and DELs: whatever is cut off, nothing leaks and no address is given twice. C04, C06.
func TestKillAtRandomMoments(t *testing.T) {
	_, n := oneNode(t, lab.Peering{})
	unchanged := snapshot(t, n)
	for i := range 15 {
		p, err := n.Pod(t.Context(), "a")
		must(t, err)
		process := n.Process()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = p.Add(t.Context()) // its fate is what this is about
			_ = p.Del(t.Context())
		}()
		select {
		case <-time.After(time.Duration(i) * 3 * time.Millisecond):
		case <-done:
		}
		process.Kill()
		must(t, n.Restart(t.Context()))
		<-done
		must(t, p.Remove(within(t, 20*time.Second))) // as a runtime does after a failure
		if got := podList(t, n); len(got) != 0 {
			t.Fatalf("round %d: records left: %+v", i, got)
		}
	}
	unchanged()
}
