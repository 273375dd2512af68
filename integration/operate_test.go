package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// What the operator's commands say, in text and in JSON, is what is there.
func TestOperatorCommands(t *testing.T) {
	l, n := oneNode(t, lab.Peering{})
	awaitPools(t, l, n)
	p, r := attach(t, n, "web")

	var status struct {
		Node string
		Pass struct{ Errors []string }
		BGP  struct {
			ASN      uint32
			RouterID string
		}
		Pods   []podEntry
		Routes []struct {
			Prefix     netip.Prefix
			Kind, Link string
		}
		Announcements []struct {
			Prefix         netip.Prefix
			Kind, Withheld string
		}
		Peers []struct {
			Name, Address, State, NextHop4, NextHop6 string
			Advertised                               int
			GracefulRestart                          bool
		}
	}
	ask := func(command string) {
		t.Helper()
		out, err := n.Gaggle(t.Context(), command, "-o", "json")
		must(t, err)
		must(t, json.Unmarshal([]byte(out), &status))
	}
	ask("status")
	if status.Node != "node1" || len(status.Pass.Errors) > 0 || status.BGP.ASN != lab.NodeASN || status.BGP.RouterID != lab.Node4(1) {
		t.Errorf("status: %+v", status)
	}
	ask("pods")
	if len(status.Pods) != 1 || status.Pods[0].Name != "web" || status.Pods[0].State != "committed" || len(status.Pods[0].Addresses) != 2 {
		t.Errorf("pods: %+v", status.Pods)
	}
	ask("routes")
	routes := make(map[string]string)
	for _, route := range status.Routes {
		routes[route.Prefix.String()] = route.Kind + route.Link
	}
	for _, six := range []bool{true, false} {
		host := netip.PrefixFrom(r.Addr(six), r.Addr(six).BitLen()).String()
		if routes[host] != "host"+status.Pods[0].HostIf {
			t.Errorf("routes: %v, want one to %s", routes, host)
		}
	}
	if routes[lab.Pool4(1)] != "aggregate" || routes[lab.Pool6(1)] != "aggregate" || len(routes) != 4 {
		t.Errorf("routes: %v", routes)
	}
	ask("announcements")
	if len(status.Announcements) != 2 || status.Announcements[0].Kind != "pool" || status.Announcements[0].Withheld != "" {
		t.Errorf("announcements: %+v", status.Announcements)
	}
	ask("peers")
	if len(status.Peers) != 1 {
		t.Fatalf("peers: %+v", status.Peers)
	}
	peer := status.Peers[0]
	if peer.State != "Established" || peer.Advertised != 2 || !peer.GracefulRestart || peer.NextHop4 != lab.Node4(1) || peer.NextHop6 != lab.Node6(1) {
		t.Errorf("peer: %+v", peer)
	}
	for command, want := range map[string]string{
		"status": "as it must be", "pods": r.Addr(true).String(), "announcements": lab.Pool6(1), "peers": "Established", "routes": lab.Pool4(1),
	} {
		if out, err := n.Gaggle(t.Context(), command); err != nil || !strings.Contains(out, want) {
			t.Errorf("gaggle %s: %v, want %q in\n%s", command, err, want, out)
		}
	}
	must(t, p.Remove(t.Context()))
}

// Metrics and probes tell the truth while all is well and when the router is gone. I16.
func TestMetricsAndProbes(t *testing.T) {
	l, n := oneNode(t, lab.Peering{})
	awaitPools(t, l, n)
	attach(t, n, "a")
	waitReady := func(want int) {
		t.Helper()
		must(t, lab.WaitFor(within(t, 30*time.Second), fmt.Sprintf("/readyz to say %d", want), func() bool {
			code, _ := get(t, n, "/readyz")
			return code == want
		}))
	}
	waitReady(http.StatusOK)
	code, metrics := get(t, n, "/metrics")
	for _, want := range []string{
		`gaggle_cni_requests_total{code="0",command="ADD"} 1`, `gaggle_attachments{state="committed"} 1`,
		`gaggle_bgp_peer_established{peer="router-4"} 1`, `gaggle_last_pass_errors 0`, `gaggle_announcements{kind="pool"} 2`,
	} {
		if code != http.StatusOK || !strings.Contains(metrics, want+"\n") {
			t.Errorf("%d, want %s", code, want)
		}
	}
	must(t, l.Router.IP(t.Context(), "link set node1 down"))
	waitReady(http.StatusServiceUnavailable)
	if code, text := get(t, n, "/livez"); code != http.StatusOK { // no new process would bring a router back
		t.Errorf("/livez: %d %s", code, text)
	}
	must(t, l.Router.IP(t.Context(), "link set node1 up"))
	waitReady(http.StatusOK)
	for _, want := range []string{`msg="BGP session established" peer=router-4 addr=198.51.100.1`, `msg="BGP session lost" peer=router-4`} {
		must(t, lab.WaitFor(within(t, 10*time.Second), want, func() bool { return strings.Contains(n.Process().Tail(500), want) }))
	}
}

// get asks the node process's public port, inside its namespace.
func get(t *testing.T, n *lab.Node, path string) (code int, body string) {
	t.Helper()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(_ context.Context, network, addr string) (conn net.Conn, err error) {
			err = n.NS.Do(func() error {
				conn, err = net.DialTimeout(network, addr, time.Second)
				return err
			})
			return conn, err
		},
	}}
	resp, err := client.Get("http://127.0.0.1:9471" + path)
	must(t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, string(data)
}

// The capabilities that deploy/standalone/gaggle.service leaves are enough for everything.
func TestLeastPrivilege(t *testing.T) {
	need(t, "birdc", "setpriv")
	unit, err := os.ReadFile("../deploy/standalone/gaggle.service")
	must(t, err)
	found := regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.*)$`).FindSubmatch(unit)
	if found == nil {
		t.Fatal("the unit bounds no capabilities")
	}
	bounds := "-all"
	for c := range strings.FieldsSeq(string(found[1])) {
		bounds += ",+" + strings.ToLower(strings.TrimPrefix(c, "CAP_"))
	}
	l := newLab(t, 1)
	_, err = l.StartRouter(t.Context(), "bird", lab.Edit{"neighbor 198.51.100.11 as 64501;", `neighbor 198.51.100.11 as 64501; password "s3cret";`})
	must(t, err)
	n := l.Nodes[0]
	n.Wrap = []string{"setpriv", "--bounding-set", bounds, "--no-new-privs"}
	password := filepath.Join(l.Dir(), "password")
	must(t, os.WriteFile(password, []byte("s3cret\n"), 0o600))
	config := strings.Replace(n.Config(lab.Peering{Over4: true}), "holdTime: 9s", fmt.Sprintf("holdTime: 9s, password: {file: %q}", password), 1)
	must(t, n.Start(t.Context(), config))
	awaitPools(t, l, n)
	p, r := attach(t, n, "a")
	for _, six := range []bool{true, false} {
		_, err := lab.Ping(within(t, time.Second), l.Client, r.Addr(six))
		must(t, err)
	}
	must(t, p.Remove(t.Context()))
	must(t, n.Process().Terminate(within(t, 20*time.Second)))
	must(t, n.Restart(t.Context()))
	awaitPools(t, l, n)
}
