package nodeconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/ipam"
	"github.com/gaggle-cni/gaggle/node"
)

var cmpNetip = []cmp.Option{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func testOptions() Options {
	return Options{Node: "node1", ReadFile: func(name string) ([]byte, error) {
		if name == "/secret" {
			return []byte("s3cret\n"), nil
		}
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}}
}

const full = `
apiVersion: gaggle.dev/v1alpha1
kind: NodeConfig
metadata: {name: rack-1, labels: {a: b}}
spec:
  nodeSelector: {matchLabels: {rack: "1"}}
  priority: 10
  pools:
  - {name: six, cidr: "2001:db8:1::/64", reserved: ["2001:db8:1::/112", "2001:db8:1::1:5"]}
  - {name: dmz, cidr: 10.1.0.0/24, announce: Hosts, namespaces: [dmz]}
  - {name: inner, cidr: 10.2.0.0/24, announce: None, masquerade: {except: [192.0.2.0/24, 10.0.0.0/8]}}
  defaults: {families: [IPv6], mtu: 1400, coolDown: 90s, ipAlgo: "namespace,app/8", sourceCheck: false}
  serviceCIDRs: [10.96.0.0/16]
  grants:
  - {namespaces: [edge, web], prefixes: [203.0.113.0/28, "2001:db8:f::5"], uses: [Anycast, Addresses]}
  bgp:
    asn: 4200000001
    routerID: 192.0.2.9
    listenPort: 0
    peers:
    - name: tor-a
      address: fd31::ff
      asn: 64500
      password: {file: /secret}
      holdTime: 9s
      gracefulRestart: {restartTime: 60s}
      ttlSecurity: true
      families: [IPv6]
      import: {defaultRoute: true, prefixes: [203.0.113.0/24], maxPrefixes: 10}
    - {name: tor-b, address: 192.0.2.1, asn: 64500, multihop: 3, gracefulRestart: {enabled: false}}
    announcements:
      pool: {communities: ["64512:100", "no-export"], largeCommunities: ["64512:1:1"], med: 0, prepend: 2}
      pod: {localPref: 200}
      addresses: {largeCommunities: ["64512:2:2"]}
      anycast: {communities: ["64512:200"], drainTime: 30s}
`

func TestParse(t *testing.T) {
	got, err := Parse([]byte(full), testOptions())
	if err != nil {
		t.Fatal(err)
	}
	both := bgp.IPv4 | bgp.IPv6
	want := node.Config{
		Node: "node1",
		Pools: []node.Pool{
			{Name: "six", Prefix: netip.MustParsePrefix("2001:db8:1::/64"), Reserved: []netip.Prefix{
				netip.MustParsePrefix("2001:db8:1::/112"), netip.MustParsePrefix("2001:db8:1::1:5/128"),
			}},
			{Name: "dmz", Prefix: netip.MustParsePrefix("10.1.0.0/24"), Announce: node.AnnounceHosts, Namespaces: []string{"dmz"}},
			{Name: "inner", Prefix: netip.MustParsePrefix("10.2.0.0/24"), Announce: node.AnnounceNone, Masquerade: true, Direct: "10.0.0.0/8 192.0.2.0/24"},
		},
		Services: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, NoSourceCheck: true, DrainTime: 30 * time.Second,
		Families: bgp.IPv6, MTU: 1400, CoolDown: 90 * time.Second,
		IPAlgo: ipam.Algo{{Name: ipam.FieldNamespace, Bits: 16}, {Name: ipam.FieldApp, Bits: 8}},
		Grants: []node.Grant{{
			Namespaces: []string{"edge", "web"},
			Prefixes:   []netip.Prefix{netip.MustParsePrefix("203.0.113.0/28"), netip.MustParsePrefix("2001:db8:f::5/128")},
			Uses:       []node.Use{node.UseAnycast, node.UseAddresses},
		}},
		BGP: &node.BGP{
			ASN: 4200000001, RouterID: netip.MustParseAddr("192.0.2.9"), ListenPort: 0,
			Peers: map[bgp.PeerID]bgp.Peer{
				{Addr: netip.MustParseAddr("fd31::ff")}: {
					Name: "tor-a", ASN: 64500, Password: "s3cret", HoldTime: 9 * time.Second, Keepalive: 3 * time.Second,
					ConnectRetry: 2 * time.Second, TTLSecurity: true, Families: bgp.IPv6,
					GracefulRestart: bgp.GracefulRestart{Enabled: true, RestartTime: time.Minute},
					Import:          bgp.Import{DefaultRoute: true, Prefixes: "203.0.113.0/24", MaxPrefixes: 10},
				},
				{Addr: netip.MustParseAddr("192.0.2.1")}: {
					Name: "tor-b", ASN: 64500, HoldTime: 90 * time.Second, Keepalive: 30 * time.Second,
					ConnectRetry: 2 * time.Second, Multihop: 3, Families: both,
					GracefulRestart: bgp.GracefulRestart{RestartTime: 2 * time.Minute},
				},
			},
			Attributes: map[bgp.Kind]bgp.Attributes{
				bgp.KindPool: {Communities: "64512:100 65535:65281", LargeCommunities: "64512:1:1", MED: bgp.MED{Set: true}, Prepend: 2},
				bgp.KindPod:  {LocalPref: 200},

				bgp.KindAddresses: {LargeCommunities: "64512:2:2"},
				bgp.KindAnycast:   {Communities: "64512:200"},
			},
		},
	}
	if diff := cmp.Diff(want, got, cmpNetip...); diff != "" {
		t.Errorf("Parse() (-want +got):\n%s", diff)
	}
}

// Every row is one mistake in an otherwise good document; all rows together are reported at once.
var mistakes = []struct{ name, spec, path, text string }{
	{"unknown key", `bgpp: {}`, "spec.bgpp", "unknown; known here: bgp, defaults"},
	{"key of a later version", `bgp: {asn: 1, peers: [{bfd: {}}]}`, "spec.bgp.peers[0].bfd", "does not support"},
	{"drain time", `bgp: {asn: 1, announcements: {anycast: {drainTime: 2h}}}`, "spec.bgp.announcements.anycast.drainTime", "2h0m0s: want 0s to 1h0m0s"},
	{"reserved outside the pool", `pools: [{name: a, cidr: 10.0.0.0/24, reserved: [10.0.1.0/28]}]`, "spec.pools[0].reserved[0]", "is no part of 10.0.0.0/24"},
	{"reserved is more than the pool", `pools: [{name: a, cidr: 10.0.0.0/24, reserved: [10.0.0.0/16]}]`, "spec.pools[0].reserved[0]", "is no part of"},
	{"reserved is none", `pools: [{name: a, cidr: 10.0.0.0/24, reserved: [x]}]`, "spec.pools[0].reserved[0]", "not a prefix"},
	{"masquerade in another family", `pools: [{name: a, cidr: 10.0.0.0/24, masquerade: {except: ["2001:db8::/32"]}}]`, "spec.pools[0].masquerade.except[0]", "the pool is IPv4"},
	{"service range over a pool", "pools: [{name: a, cidr: 10.0.0.0/24}]\n  serviceCIDRs: [10.0.0.0/16]", "spec.serviceCIDRs[0]", `overlaps pool "a"`},
	{"service range is none", `serviceCIDRs: [x]`, "spec.serviceCIDRs[0]", "not a prefix"},
	{"ip-algo", `defaults: {ipAlgo: "namespace,apps"}`, "spec.defaults.ipAlgo", `"apps": want fields`},
	{"ip-algo too long", "pools: [{name: a, cidr: \"2001:db8::/112\"}]\n  defaults: {ipAlgo: \"namespace\"}", "spec.defaults.ipAlgo", `pool "a"`},
	{"grant to nobody", `grants: [{prefixes: [203.0.113.0/28], uses: [Anycast]}]`, "spec.grants[0].namespaces", "name the namespaces"},
	{"grant by labels", `grants: [{namespaceSelector: {matchLabels: {a: b}}, prefixes: [203.0.113.0/28], uses: [Anycast]}]`, "spec.grants[0].namespaceSelector", "needs Kubernetes"},
	{"grant of nothing", `grants: [{namespaces: [a], uses: [Anycast]}]`, "spec.grants[0].prefixes", "is empty"},
	{"grant of everything", `grants: [{namespaces: [a], prefixes: ["::/0"], uses: [Anycast]}]`, "spec.grants[0].prefixes[0]", "want unicast"},
	{"grant of link-local", `grants: [{namespaces: [a], prefixes: ["fe80::/64"], uses: [Anycast]}]`, "spec.grants[0].prefixes[0]", "want unicast"},
	{"grant with host bits", `grants: [{namespaces: [a], prefixes: [203.0.113.1/28], uses: [Anycast]}]`, "spec.grants[0].prefixes[0]", "did you mean 203.0.113.0/28"},
	{"grant for nothing", `grants: [{namespaces: [a], prefixes: [203.0.113.0/28]}]`, "spec.grants[0].uses", "want Addresses, Anycast or both"},
	{"grant for what", `grants: [{namespaces: [a], prefixes: [203.0.113.0/28], uses: [anycast]}]`, "spec.grants[0].uses[0]", "want Addresses or Anycast"},
	{"key twice", "priority: 1\n  priority: 2", "spec.priority", "twice"},
	{"list wanted", `pools: {name: a}`, "spec.pools", "is a mapping: want a list"},
	{"no pools", `pools: []`, "spec.pools", "at least one"},
	{"mapping wanted", `defaults: []`, "spec.defaults", "is a list: want a mapping"},
	{"number wanted", `bgp: {asn: x}`, "spec.bgp.asn", `"x": want a number`},
	{"asn too large", `bgp: {asn: 4294967296}`, "spec.bgp.asn", "want a number from 0 to 4294967295"},
	{"asn 0", `bgp: {peers: []}`, "spec.bgp.asn", "want an AS number"},
	{"AS_TRANS", `bgp: {asn: 23456}`, "spec.bgp.asn", "want an AS number"},
	{"bool wanted", `bgp: {asn: 1, peers: [{name: a, address: 192.0.2.1, asn: 2, passive: "true"}]}`, "spec.bgp.peers[0].passive", "true or false"},
	{"text wanted", `bgp: {asn: 1, peers: [{name: 12, address: 192.0.2.1, asn: 2}]}`, "spec.bgp.peers[0].name", "quotes"},
	{"pool without name", `pools: [{cidr: 10.0.0.0/24}]`, "spec.pools[0].name", "is empty"},
	{"pool name twice", `pools: [{name: a, cidr: 10.0.0.0/24}, {name: a, cidr: 10.0.1.0/24}]`, "spec.pools[1].name", "another entry"},
	{"pool without prefix", `pools: [{name: a}]`, "spec.pools[0].cidr", "is missing"},
	{"pool is no prefix", `pools: [{name: a, cidr: 10.0.0.0}]`, "spec.pools[0].cidr", "not a prefix"},
	{"pool with host bits", `pools: [{name: a, cidr: 10.0.0.1/24}]`, "spec.pools[0].cidr", "did you mean 10.0.0.0/24"},
	{"pool too small", `pools: [{name: a, cidr: 10.0.0.0/30}]`, "spec.pools[0].cidr", "want /8 to /29"},
	{"pools overlap", `pools: [{name: a, cidr: 10.0.0.0/16}, {name: b, cidr: 10.0.1.0/24}]`, "spec.pools[1].cidr", "overlaps"},
	{"pool source", `pools: [{name: a, source: PodCIDRs}]`, "spec.pools[0].source", "needs Kubernetes"},
	{"pool announce", `pools: [{name: a, cidr: 10.0.0.0/24, announce: Host}]`, "spec.pools[0].announce", "want Aggregate, Hosts or None"},
	{"second community", `bgp: {asn: 1, announcements: {pool: {communities: ["x", "1:1", "y"]}}}`, "spec.bgp.announcements.pool.communities[2]", "not a community"},
	{"family", `defaults: {families: [ipv6]}`, "spec.defaults.families[0]", "want IPv6 or IPv4"},
	{"mtu", `defaults: {mtu: 100}`, "spec.defaults.mtu", "want 1280 to 65535"},
	{"router id", `bgp: {asn: 1, routerID: "::1"}`, "spec.bgp.routerID", "32 bits"},
	{"port", `bgp: {asn: 1, listenPort: 70000}`, "spec.bgp.listenPort", "want a port"},
	{"peer without address", peer(`name: a, asn: 2`), "spec.bgp.peers[0].address", "is missing"},
	{"peer address", peer(`name: a, asn: 2, address: tor`), "spec.bgp.peers[0].address", "not an IP address"},
	{"peer link-local", peer(`name: a, asn: 2, address: "fe80::1"`), "spec.bgp.peers[0].address", "does not support link-local"},
	{"peer link-local with interface", peer(`name: a, asn: 2, address: "fe80::1%eth0"`), "spec.bgp.peers[0].address", "does not support link-local"},
	{"peer mapped", peer(`name: a, asn: 2, address: "::ffff:192.0.2.1"`), "spec.bgp.peers[0].address", "write it as 192.0.2.1"},
	{"peer by interface", peer(`name: a, asn: 2, interface: eth0`), "spec.bgp.peers[0].interface", "does not support"},
	{"peer twice", `bgp: {asn: 1, peers: [{name: a, address: 192.0.2.1, asn: 2}, {name: b, address: 192.0.2.1, asn: 2}]}`, "spec.bgp.peers[1].address", "has this address"},
	{"peer within a pool", peer(`name: a, asn: 2, address: 10.200.0.1`), "spec.bgp.peers[0].address", `within pool "p" (10.200.0.0/24)`},
	// K12
	{"hold time", peer(`name: a, asn: 2, address: 192.0.2.1, holdTime: 2s`), "spec.bgp.peers[0].holdTime", "want 3s"},
	{"long rest", "defaults: {coolDown: 48h}", "spec.defaults.coolDown", "want 0s to 24h"},
	{"no duration", peer(`name: a, asn: 2, address: 192.0.2.1, holdTime: nine`), "spec.bgp.peers[0].holdTime", "not a duration"},
	{"no unit", peer(`name: a, asn: 2, address: 192.0.2.1, holdTime: 9`), "spec.bgp.peers[0].holdTime", `"9": has no unit; did you mean 9s?`},
	{"no unit in quotes", peer(`name: a, asn: 2, address: 192.0.2.1, holdTime: "9"`), "spec.bgp.peers[0].holdTime", "did you mean 9s?"},
	{"no pool of the families", `defaults: {families: [IPv6]}`, "spec.defaults.families", "no pool of it"},
	{"keepalive", peer(`name: a, asn: 2, address: 192.0.2.1, holdTime: 9s, keepaliveTime: 9s`), "spec.bgp.peers[0].keepaliveTime", "less than the hold time"},
	{"restart time", peer(`name: a, asn: 2, address: 192.0.2.1, gracefulRestart: {restartTime: 5000s}`), "spec.bgp.peers[0].gracefulRestart.restartTime", "want 1s to"},
	{"multihop", peer(`name: a, asn: 2, address: 192.0.2.1, multihop: 1`), "spec.bgp.peers[0].multihop", "want 2 to 255"},
	{"multihop and TTL security", peer(`name: a, asn: 2, address: 192.0.2.1, multihop: 2, ttlSecurity: true`), "spec.bgp.peers[0].multihop", "choose one"},
	{"passive without listener", `bgp: {asn: 1, listenPort: 0, peers: [{name: a, asn: 2, address: 192.0.2.1, passive: true}]}`, "spec.bgp.peers[0].passive", "nobody can connect"},
	{"password file", peer(`name: a, asn: 2, address: 192.0.2.1, password: {file: /none}`), "spec.bgp.peers[0].password.file", "does not exist"},
	{"password missing", peer(`name: a, asn: 2, address: 192.0.2.1, password: {}`), "spec.bgp.peers[0].password.file", "is missing"},
	{"import", peer(`name: a, asn: 2, address: 192.0.2.1, import: {prefixes: ["::/0"]}`), "spec.bgp.peers[0].import.prefixes[0]", "defaultRoute"},
	{"community", `bgp: {asn: 1, announcements: {pool: {communities: ["70000:1"]}}}`, "spec.bgp.announcements.pool.communities[0]", "large community"},
	{"large community", `bgp: {asn: 1, announcements: {pool: {largeCommunities: ["1:1"]}}}`, "spec.bgp.announcements.pool.largeCommunities[0]", "not a large community"},
	{"prepend", `bgp: {asn: 1, announcements: {pool: {prepend: 99}}}`, "spec.bgp.announcements.pool.prepend", "at most"},
}

func peer(fields string) string { return fmt.Sprintf("bgp: {asn: 1, peers: [{%s}]}", fields) }

func TestProblems(t *testing.T) {
	for _, tt := range mistakes {
		t.Run(tt.name, func(t *testing.T) {
			doc := "apiVersion: gaggle.dev/v1alpha1\nkind: NodeConfig\nspec:\n  " + tt.spec + "\n"
			if !strings.HasPrefix(tt.spec, "pools") {
				doc += "  pools: [{name: p, cidr: 10.200.0.0/24}]\n"
			}
			_, err := Parse([]byte(doc), testOptions())
			problems, ok := errors.AsType[Problems](err)
			if !ok {
				t.Fatalf("Parse() = %v, want Problems", err)
			}
			i := slices.IndexFunc(problems, func(p Problem) bool { return p.Path == tt.path && strings.Contains(p.Text, tt.text) })
			if i < 0 {
				t.Fatalf("problems:\n%v\nwant %s: …%s…", problems, tt.path, tt.text)
			}
			if line := problems[i].Line; line < 4 {
				t.Errorf("line %d, want that of the mistake", line)
			}
		})
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	_, err := Parse([]byte(`
apiVersion: gaggle.dev/v2
kind: Nodeconfig
spec:
  pools: [{name: a, cidr: 10.0.0.0/33}]
  bgp:
    asn: 1
    peers:
    - {name: t, address: 192.0.2.1, asn: 0, holdTime: 1s}
    - {name: u, address: 192.0.2.2, asn: foo}
  colour: red
  defaults: []
`), testOptions())
	var problems Problems
	if !errors.As(err, &problems) {
		t.Fatalf("Parse() = %v", err)
	}
	var paths []string
	for _, p := range problems {
		paths = append(paths, fmt.Sprintf("%d %s", p.Line, p.Path))
	}
	want := []string{
		"2 apiVersion", "3 kind", "5 spec.pools[0].cidr", "9 spec.bgp.peers[0].asn", "9 spec.bgp.peers[0].holdTime",
		"10 spec.bgp.peers[1].asn", "11 spec.colour", "12 spec.defaults",
	}
	if diff := cmp.Diff(want, paths); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestNotADocument(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "{", "a: b\n---\nc: d\n", "[]", "text", "a: &a [*a]", "\x00"} {
		if _, err := Parse([]byte(text), testOptions()); err == nil {
			t.Errorf("Parse(%q) = nil, want an error", text)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(full))
	for _, tt := range mistakes {
		f.Add([]byte("apiVersion: gaggle.dev/v1alpha1\nkind: NodeConfig\nspec:\n  " + tt.spec + "\n"))
	}
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data, testOptions())
		if err == nil && len(c.Pools) == 0 {
			t.Errorf("Parse(%q) accepted a node without pools", data)
		}
	})
}

// A hold time of no keepalives needs no unit.
func TestHoldTimeOfZero(t *testing.T) {
	for _, zero := range []string{"0", `"0"`, "0s"} {
		text := strings.Replace(full, "holdTime: 9s", "holdTime: "+zero, 1)
		c, err := Parse([]byte(text), testOptions())
		if got := c.BGP; err != nil || got.Peers[bgp.PeerID{Addr: netip.MustParseAddr("fd31::ff")}].HoldTime != 0 {
			t.Errorf("holdTime: %s: %+v, %v", zero, got, err)
		}
	}
}
