package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// chain makes a network of ours and further plugins for cnitool.
func chain(t *testing.T, l *lab.Lab, n *lab.Node, name string, next ...map[string]any) cnitool {
	t.Helper()
	return chainOf(t, l, n, map[string]any{"cniVersion": "1.0.0", "name": name}, next...)
}

// chainOf makes one of which more is said than its name.
func chainOf(t *testing.T, l *lab.Lab, n *lab.Node, conflist map[string]any, next ...map[string]any) cnitool {
	t.Helper()
	plugins, conf := filepath.Join(l.Dir(), "plugins"), t.TempDir()
	must(t, os.MkdirAll(plugins, 0o755))
	if err := os.Symlink(filepath.Join(bin, "gaggle-cni"), filepath.Join(plugins, "gaggle")); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	conflist["plugins"] = append([]map[string]any{{"type": "gaggle", "socket": n.Socket()}}, next...)
	text, err := json.Marshal(conflist)
	must(t, err)
	name := fmt.Sprint(conflist["name"])
	must(t, os.WriteFile(filepath.Join(conf, "10-gaggle.conflist"), text, 0o600))
	ns, err := l.Namespace(t.Context(), "chain"+name)
	must(t, err)
	return cnitool{n: n, confDir: conf, plugins: plugins + ":" + lab.ReferencePlugins, network: name, container: ns}
}

// hello serves a greeting on a TCP port of a namespace until the test ends.
func hello(t *testing.T, ns lab.NS, port int) {
	t.Helper()
	serveTCP(t, ns, port, func(conn net.Conn) { _, _ = io.WriteString(conn, "hello") })
}

// serveTCP serves each connection to a TCP port of a namespace until the test ends.
func serveTCP(t *testing.T, ns lab.NS, port int, serve func(net.Conn)) {
	t.Helper()
	var listener net.Listener
	must(t, ns.Do(func() (err error) {
		listener, err = new(net.ListenConfig).Listen(t.Context(), "tcp", fmt.Sprintf(":%d", port))
		return err
	}))
	t.Cleanup(func() { _ = listener.Close() })
	go func() { // ends with the listener
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the connection
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
}

// greeted asks for the greeting from a namespace.
func greeted(t *testing.T, from lab.NS, to netip.AddrPort) {
	t.Helper()
	err := lab.WaitFor(within(t, 10*time.Second), "an answer of "+to.String(), func() bool {
		var got []byte
		err := from.Do(func() error {
			conn, err := net.DialTimeout("tcp", to.String(), 2*time.Second)
			if err != nil {
				return err
			}
			defer conn.Close()
			got, err = io.ReadAll(conn)
			return err
		})
		return err == nil && string(got) == "hello"
	})
	must(t, err)
}

// M01, M02, M04, M06, M09: all the reference plugins that are made for it, in one chain, in order. A port of the node leads to
// the pod in both families; in the end nothing is left, the link that the bandwidth plugin makes for the pod included.
func TestWholeChain(t *testing.T) {
	l, n := oneNode(t, lab.Peering{})
	awaitPools(t, l, n)
	links := func() string {
		out, err := n.NS.Exec(t.Context(), "ip", "-o", "link")
		must(t, err)
		return out
	}
	before := links()
	runtime := chain(t, l, n, "whole",
		map[string]any{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}, "snat": true},
		map[string]any{"type": "bandwidth", "capabilities": map[string]bool{"bandwidth": true}},
		map[string]any{"type": "tuning", "sysctl": map[string]string{"net.ipv4.tcp_syncookies": "0"}},
		map[string]any{"type": "firewall", "backend": "iptables"},
	)
	runtime.capabilities = `{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}],` +
		`"bandwidth":{"ingressRate":8000000,"ingressBurst":8000000,"egressRate":8000000,"egressBurst":8000000}}`
	var r lab.Result
	must(t, json.Unmarshal([]byte(runtime.call(t, "add")), &r))
	if !strings.Contains(links(), "bwp") {
		t.Errorf("the bandwidth plugin made no link of its own:\n%s", links())
	}
	hello(t, runtime.container, 80)
	for _, to := range []netip.AddrPort{
		netip.AddrPortFrom(r.Addr(true), 80), netip.AddrPortFrom(r.Addr(false), 80),
		netip.MustParseAddrPort(net.JoinHostPort(lab.Node4(1), "8080")), netip.MustParseAddrPort(net.JoinHostPort(lab.Node6(1), "8080")),
	} {
		greeted(t, l.Client, to)
	}
	runtime.call(t, "del")
	if after := links(); after != before {
		t.Errorf("links before:\n%s\nafter:\n%s", before, after)
	}
	if got := podList(t, n); len(got) != 0 {
		t.Errorf("records left: %+v", got)
	}
}

// M07, M08, B-129: a plugin after ours that fails an ADD has us undo ours by the runtime's DEL. One that fails every DEL keeps
// ours from being called; what is ours is found when the container is gone, and links that others made for it stay theirs.
func TestChainThatFails(t *testing.T) {
	n := newFaultyNode(t) // it looks every two seconds
	unchanged := snapshot(t, n.Node)
	failing := filepath.Join(n.lab.Dir(), "plugins", "failing")
	must(t, os.MkdirAll(filepath.Dir(failing), 0o755))
	script := func(command string) {
		t.Helper()
		text := "#!/bin/sh\n[ $CNI_COMMAND = " + command + ` ] && { echo '{"cniVersion":"1.0.0","code":100,"msg":"never"}'; exit 1; }` + "\n" +
			`[ $CNI_COMMAND = VERSION ] && { echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}'; exit 0; }` + "\n" +
			`echo '{"cniVersion":"1.0.0"}'` + "\n"
		must(t, os.WriteFile(failing, []byte(text), 0o755))
	}
	runtime := chain(t, n.lab, n.Node, "fails", map[string]any{"type": "failing"})

	script("ADD")
	if out, err := runtime.try("add"); err == nil {
		t.Errorf("add = %s, want the failure", out)
	}
	runtime.call(t, "del")
	n.nothing(t)
	unchanged()

	script("DEL")
	runtime.call(t, "add")
	must(t, n.NS.IP(t.Context(), "link add bwp0 type ifb"))
	if out, err := runtime.try("del"); err == nil {
		t.Errorf("del = %s, want the failure", out)
	}
	if got := podList(t, n.Node); len(got) != 1 {
		t.Fatalf("attached are %+v, want that nothing has changed", got)
	}
	must(t, n.lab.RemoveNamespace(runtime.container))
	must(t, lab.WaitFor(within(t, 30*time.Second), "the sweep", func() bool { return len(podList(t, n.Node)) == 0 }))
	must(t, n.NS.IP(t.Context(), "link del bwp0")) // it is still there
	must(t, lab.WaitFor(within(t, 20*time.Second), "a pass", func() bool { return healthy(t, n.Node) }))
	unchanged()
}

// F07, F08, M06: the reference runtime's GC sends a DEL for what it knows of and then a GC, here without a list, which our plugin
// refuses: nothing is harmed, however often, nor by a plugin after ours that knows neither GC nor STATUS. What a conflist says of
// GC, the runtime heeds.
func TestGCOfTheReferenceRuntime(t *testing.T) {
	l, n := oneNode(t, lab.Peering{})
	unchanged := snapshot(t, n)
	plain := filepath.Join(l.Dir(), "plugins", "plain")
	must(t, os.MkdirAll(filepath.Dir(plain), 0o755))
	must(t, os.WriteFile(plain, []byte(`#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}';;
ADD) echo '{"cniVersion":"1.1.0"}';;
esac
`), 0o755))
	records := func(want int) {
		t.Helper()
		if got := podList(t, n); len(got) != want {
			t.Errorf("attached are %+v, want %d", got, want)
		}
	}
	next := map[string]any{"type": "plain"}
	// The runtime keeps results of all networks of the machine in one place.
	runtime := chainOf(t, l, n, map[string]any{"cniVersion": "1.1.0", "name": n.NS.Name + "-gc"}, next)
	runtime.call(t, "add")
	runtime.call(t, "status")
	for range 2 {
		if out, err := runtime.try("gc"); err == nil || !strings.Contains(fmt.Sprint(out, err), "valid-attachments is missing: nothing was removed") {
			t.Errorf("gc = %s, %v; want that our plugin refuses one without a list", out, err)
		}
		records(0)
	}
	runtime = chainOf(t, l, n, map[string]any{"cniVersion": "1.1.0", "name": n.NS.Name + "-nogc", "disableGC": true}, next)
	runtime.call(t, "add")
	runtime.call(t, "gc")
	records(1)
	runtime.call(t, "del")
	records(0)
	unchanged()
}

// B-129: the pod goes while there is no node process. The chain does its part at once, ours is done at the next start.
func TestChainWithoutNodeProcess(t *testing.T) {
	l, n := oneNode(t, lab.Peering{})
	unchanged := snapshot(t, n)
	helpers := func() string {
		out, err := n.NS.Exec(t.Context(), "ip", "-br", "link", "show", "type", "ifb")
		must(t, err)
		return out
	}
	runtime := chain(t, l, n, "away", map[string]any{
		"type": "bandwidth", "ingressRate": 1 << 27, "ingressBurst": 1 << 27, "egressRate": 1 << 27, "egressBurst": 1 << 27,
	})
	runtime.call(t, "add")
	if got := helpers(); !strings.Contains(got, "bwp") {
		t.Fatalf("helpers of the chain: %q, want one", got)
	}
	n.Process().Kill()
	runtime.call(t, "del")
	if got := helpers(); got != "" {
		t.Errorf("helpers of the chain: %q, want none", got)
	}
	must(t, n.Restart(t.Context()))
	unchanged()
}

// A12, H10, M04: every plugin of the conflist that is shipped knows each version that it names; the firewall plugin takes none below
// 0.4.0.
func TestShippedConflist(t *testing.T) {
	need(t)
	var conflist struct {
		CNIVersion  string
		CNIVersions []string
		Plugins     []struct{ Type string }
	}
	must(t, json.Unmarshal([]byte(readText(t, "deploy/standalone/10-gaggle.conflist")), &conflist))
	if len(conflist.Plugins) == 0 || conflist.Plugins[0].Type != "gaggle" || conflist.CNIVersion < "0.4.0" {
		t.Fatalf("conflist %+v", conflist)
	}
	for _, p := range conflist.Plugins {
		path := filepath.Join(lab.ReferencePlugins, p.Type)
		if p.Type == "gaggle" {
			path = filepath.Join(bin, "gaggle-cni")
		}
		var v struct{ SupportedVersions []string }
		must(t, json.Unmarshal([]byte(command(t, "env", "CNI_COMMAND=VERSION", path)), &v))
		for _, version := range append(conflist.CNIVersions, conflist.CNIVersion) {
			if !slices.Contains(v.SupportedVersions, version) {
				t.Errorf("%s does not know version %s", p.Type, version)
			}
		}
	}
}

// healthy reports whether the last pass brought everything about.
func healthy(t *testing.T, n *lab.Node) bool {
	t.Helper()
	var s struct{ Pass struct{ Errors []string } }
	must(t, n.Status(t.Context(), &s))
	return len(s.Pass.Errors) == 0
}

// variables are those of a call, with others in their place or none.
func variables(p *lab.Pod, more map[string]string) map[string]string {
	env := map[string]string{
		"CNI_CONTAINERID": p.ContainerID, "CNI_NETNS": p.NS.Path(), "CNI_IFNAME": p.IfName, "CNI_PATH": bin,
		"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + p.Name,
	}
	maps.Copy(env, more)
	return env
}

// B19, B28, B-049: the pod's UID may be missing or any text, such as the hash of a static pod; variables that are not of the
// specification are harmless. J02 in part.
func TestEnvironmentsOfRuntimes(t *testing.T) {
	_, n := oneNode(t, lab.Peering{})
	p, err := n.Pod(t.Context(), "a")
	must(t, err)
	for name, more := range map[string]map[string]string{
		"no UID":     {},
		"static pod": {"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=kube-system;K8S_POD_NAME=etcd-node1;K8S_POD_UID=2f3e1bc1a7d4e5f60718293a4b5c6d7e"},
		"no pod":     {"CNI_ARGS": ""},
		"tracing":    {"TRACEPARENT": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "TRACESTATE": "a=b", "BAGGAGE": "x=y", "HOME": ""},
	} {
		for _, command := range []string{"ADD", "DEL"} {
			if _, err := p.CallEnv(within(t, 20*time.Second), command, "1.0.0", variables(p, more)); err != nil {
				t.Errorf("%s: %s = %v", name, command, err)
			}
		}
	}
}

// D01, D15, J01, B-133, B-123: a DEL that is about nothing of ours does nothing, whatever it names: ids that were never added, no
// namespace, the node's own namespace with the name of one of its links. D12.
func TestDelOfWhatIsNotOurs(t *testing.T) {
	_, n := oneNode(t, lab.Peering{})
	kept, _ := attach(t, n, "kept")
	unchanged := snapshot(t, n)
	p, err := n.Pod(t.Context(), "a")
	must(t, err)
	for name, more := range map[string]map[string]string{
		"never added":               {},
		"no namespace":              {"CNI_NETNS": ""},
		"the node's namespace":      {"CNI_NETNS": n.NS.Path(), "CNI_IFNAME": "eth0"},
		"that of process 1":         {"CNI_NETNS": "/proc/1/ns/net", "CNI_IFNAME": "lo"},
		"no arguments":              {"CNI_ARGS": ""},
		"a pod's namespace":         {"CNI_NETNS": kept.NS.Path()},
		"another interface of ours": {"CNI_CONTAINERID": kept.ContainerID, "CNI_IFNAME": "net1"},
	} {
		out, err := p.CallEnv(within(t, 20*time.Second), "DEL", "1.0.0", variables(p, more))
		if err != nil || len(out) > 0 {
			t.Errorf("%s: DEL = %q, %v, want nothing", name, out, err)
		}
	}
	unchanged()
	must(t, kept.Del(t.Context()))
}

// J03, B-028: the address of a pod that has ended is another's; what still comes for the ended one, whose object may live on,
// changes nothing for the new owner. D03: nor does a DEL whose prevResult has the other's address. D08.
func TestLateCallsForAnEndedPod(t *testing.T) {
	l, n := oneNode(t, lab.Peering{})
	awaitPools(t, l, n)
	ended, r := attach(t, n, "job")
	must(t, ended.Del(t.Context()))
	next, err := n.Pod(t.Context(), "next")
	must(t, err)
	ask := map[string]any{"runtimeConfig": map[string]any{"ips": []string{r.Addr(true).String() + "/128", r.Addr(false).String() + "/32"}}}
	out, err := next.CallWith(t.Context(), "ADD", "1.0.0", ask)
	must(t, err)
	unchanged := snapshot(t, n)
	for range 2 {
		_, err := ended.CallWith(within(t, 20*time.Second), "DEL", "1.0.0", map[string]any{"prevResult": json.RawMessage(out)})
		must(t, err)
	}
	unchanged()
	_, err = ended.CallWith(within(t, 20*time.Second), "CHECK", "1.0.0", map[string]any{"prevResult": json.RawMessage(out)})
	if e, ok := errors.AsType[*lab.CNIError](err); !ok || e.Code != 107 {
		t.Errorf("CHECK of the ended pod with the other's result = %v, want code 107", err) // E05
	}
	_, err = lab.Ping(within(t, 10*time.Second), l.Client, r.Addr(true))
	must(t, err)
	must(t, next.Del(t.Context()))
}

// B27, B-127, G04: calls leave no file, and asking for the state changes nothing, however often.
func TestCallsLeaveNoFiles(t *testing.T) {
	l, n := oneNode(t, lab.Peering{}) // its directory holds all that the programs are told of
	p, err := n.Pod(t.Context(), "a")
	must(t, err)
	files := func() (names []string) {
		must(t, filepath.WalkDir(l.Dir(), func(path string, _ os.DirEntry, err error) error {
			names = append(names, path)
			return err
		}))
		return names
	}
	before := files()
	unchanged := snapshot(t, n)
	for range 50 {
		_, err := p.Call(t.Context(), "STATUS", "1.1.0")
		must(t, err)
	}
	for range 10 {
		_, err := p.Add(t.Context())
		must(t, err)
		_, err = p.Call(t.Context(), "CHECK", "1.0.0") // without a result it fails
		if err == nil {
			t.Error("CHECK without a result succeeds")
		}
		must(t, p.Del(t.Context()))
	}
	if after := files(); !slices.Equal(before, after) {
		t.Errorf("files before %v, after %v", before, after)
	}
	unchanged()
}

// D04, D13, C50, G05: neither ADD nor DEL wait for a router that is away, and STATUS stays green without one.
func TestRouterAway(t *testing.T) {
	l, n := oneNode(t, lab.Peering{})
	awaitPools(t, l, n)
	must(t, l.Router.IP(t.Context(), "link set "+n.Name+" down"))
	p, err := n.Pod(t.Context(), "a")
	must(t, err)
	start := time.Now()
	_, err = p.Add(within(t, 20*time.Second))
	must(t, err)
	_, err = p.Call(within(t, 20*time.Second), "STATUS", "1.1.0")
	must(t, err)
	must(t, p.Del(within(t, 20*time.Second)))
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the calls took %v", took)
	}
}
