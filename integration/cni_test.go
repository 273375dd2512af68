package integration

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// oneNode is a node with a router, for what does not depend on the router's kind.
func oneNode(t *testing.T, p lab.Peering) (*lab.Lab, *lab.Node) {
	t.Helper()
	need(t, "birdc")
	t.Parallel()
	l := newLab(t, 1)
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
	before, err := n.NS.Snapshot(t.Context())
	must(t, err)
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
	after, err := n.NS.Snapshot(t.Context())
	must(t, err)
	if before != after {
		t.Errorf("left behind; before:\n%s\nafter:\n%s", before, after)
	}
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
	before, err := n.NS.Snapshot(t.Context())
	must(t, err)
	refused(t, p, 103, "interface exists")
	out, err := p.NS.Exec(t.Context(), "ip", "-d", "link", "show", "eth0")
	must(t, err)
	if !strings.Contains(out, "bridge") {
		t.Errorf("the interface was changed: %s", out)
	}
	after, err := n.NS.Snapshot(t.Context())
	must(t, err)
	if before != after {
		t.Errorf("left behind; before:\n%s\nafter:\n%s", before, after)
	}

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
	before, err := n.NS.Snapshot(t.Context())
	must(t, err)
	for _, path := range []string{"", "gone"} {
		p, _ := attach(t, n, "a"+path)
		must(t, l.RemoveNamespace(p.NS))
		if path == "" {
			p.NS.Name = "" // becomes a path that is no namespace
		}
		must(t, p.Del(within(t, 10*time.Second)))
	}
	after, err := n.NS.Snapshot(t.Context())
	must(t, err)
	if before != after {
		t.Errorf("left behind; before:\n%s\nafter:\n%s", before, after)
	}
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
	for _, command := range []string{"ADD", "DEL"} {
		start := time.Now()
		_, err := p.Call(within(t, 20*time.Second), command, "1.0.0")
		e, ok := errors.AsType[*lab.CNIError](err)
		if !ok || e.Code != 11 || !strings.Contains(e.Msg, "default/a") {
			t.Errorf("%s = %v, want code 11 with the pod's name", command, err)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%s took %v", command, took)
		}
	}
	must(t, n.Restart(t.Context()))
	must(t, p.Del(t.Context()))
}

// A call that comes while the node process restarts waits for it and succeeds.
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
	plugins := filepath.Join(l.Dir(), "plugins")
	must(t, os.Mkdir(plugins, 0o755))
	must(t, os.Symlink(filepath.Join(bin, "gaggle-cni"), filepath.Join(plugins, "gaggle")))
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			conf := t.TempDir()
			text, err := json.Marshal(map[string]any{
				"cniVersion": version, "name": "net", "plugins": []any{map[string]any{"type": "gaggle", "socket": n.Socket()}},
			})
			must(t, err)
			must(t, os.WriteFile(filepath.Join(conf, "10-gaggle.conflist"), text, 0o600))
			ns, err := l.Namespace(t.Context(), "tool"+version)
			must(t, err)
			tool := func(command string) string {
				cmd := exec.Command("nsenter", "--net="+n.NS.Path(), filepath.Join(bin, "cnitool"), command, "net", ns.Path())
				cmd.Env = append(os.Environ(), "NETCONFPATH="+conf, "CNI_PATH="+plugins)
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("cnitool %s: %v: %s", command, err, out)
				}
				return string(out)
			}
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
			tool("del")
			tool("del")
		})
	}
	if got := podList(t, n); len(got) != 0 {
		t.Errorf("records left: %+v", got)
	}
}

// kill -9 at random moments of ADDs and DELs: whatever is cut off, nothing leaks and no address is given twice. C04, C06.
func TestKillAtRandomMoments(t *testing.T) {
	_, n := oneNode(t, lab.Peering{})
	before, err := n.NS.Snapshot(t.Context())
	must(t, err)
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
	after, err := n.NS.Snapshot(t.Context())
	must(t, err)
	if before != after {
		t.Errorf("left behind; before:\n%s\nafter:\n%s", before, after)
	}
}
