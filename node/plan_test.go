package node

import (
	"net/netip"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/cni"
)

var cmpNetip = []cmp.Option{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr  { return netip.MustParseAddr(s) }

func TestPlan(t *testing.T) {
	tor := bgp.PeerID{Addr: addr("192.0.2.1")}
	config := Config{
		Pools: []Pool{
			{Name: "six", Prefix: pfx("2001:db8:1::/64")},
			{Name: "dmz", Prefix: pfx("10.9.0.0/24"), Announce: AnnounceHosts},
			{Name: "inner", Prefix: pfx("10.8.0.0/24"), Announce: AnnounceNone, Masquerade: true, Direct: "10.0.0.0/8"},
		},
		BGP: &BGP{
			ASN:        64512,
			Peers:      map[bgp.PeerID]bgp.Peer{tor: {Name: "tor", ASN: 64500}},
			Attributes: map[bgp.Kind]bgp.Attributes{bgp.KindPod: {Communities: "64512:7"}},
		},
	}
	w := World{
		Config: config,
		Attachments: []Attachment{
			{ID: cni.ID{ContainerID: "a"}, HostIf: "ggla", Addrs: []netip.Addr{addr("2001:db8:1::5"), addr("10.9.0.5")}, Committed: true},
			{ID: cni.ID{ContainerID: "b"}, HostIf: "gglb", Addrs: []netip.Addr{addr("2001:db8:1::6")}}, // pending
			{ID: cni.ID{ContainerID: "b", IfName: "net1"}, HostIf: "gglb1", Addrs: []netip.Addr{addr("2001:db8:1::7")}},
			// A pool that has gone from the configuration: its pod is announced by itself.
			{ID: cni.ID{ContainerID: "c"}, HostIf: "gglc", Addrs: []netip.Addr{addr("10.200.0.1")}, Committed: true},
			{ID: cni.ID{ContainerID: "d"}, HostIf: "ggld", Addrs: []netip.Addr{addr("10.8.0.5")}, Committed: true},
		},
		Uplinks: map[netip.Addr]Uplink{
			addr("0.0.0.0"):   {Link: "eth0", MTU: 9000, IPv4: addr("203.0.113.1")},
			addr("192.0.2.1"): {Link: "eth1", MTU: 1500, IPv4: addr("192.0.2.10"), IPv6: addr("2001:db8:2::10")},
		},
		Connected: []netip.Prefix{pfx("192.0.2.0/24")},
		Learned: []bgp.LearnedRoute{
			{Prefix: pfx("0.0.0.0/0"), NextHops: "192.0.2.1"},
			{Prefix: pfx("192.0.2.0/24"), NextHops: "192.0.2.1"},   // connected
			{Prefix: pfx("192.0.2.128/25"), NextHops: "192.0.2.1"}, // part of it
			{Prefix: pfx("192.0.0.0/16"), NextHops: "192.0.2.1"},   // covers it: does no harm
			{Prefix: pfx("10.9.0.5/32"), NextHops: "192.0.2.1"},    // one of our pods
		},
	}
	got := Plan(w)
	want := Desired{
		Ends: map[LinkName]End{
			"ggla": {IPv4: true, IPv6: true, Up: true, Settings: true}, "gglc": {IPv4: true, Up: true, Settings: true},
			"ggld": {IPv4: true, Up: true, Settings: true},
		},
		Routes: map[netip.Prefix]Route{
			pfx("2001:db8:1::/64"):   {Kind: RouteAggregate},
			pfx("10.9.0.0/24"):       {Kind: RouteAggregate},
			pfx("2001:db8:1::5/128"): {Kind: RouteHost, Link: "ggla", Source: addr("2001:db8:2::10")},
			pfx("10.9.0.5/32"):       {Kind: RouteHost, Link: "ggla", Source: addr("203.0.113.1")},
			pfx("10.200.0.1/32"):     {Kind: RouteHost, Link: "gglc", Source: addr("203.0.113.1")},
			pfx("10.8.0.0/24"):       {Kind: RouteAggregate},
			pfx("10.8.0.5/32"):       {Kind: RouteHost, Link: "ggld", Source: addr("203.0.113.1")},
		},
		Announce: map[netip.Prefix]bgp.Announcement{
			pfx("2001:db8:1::/64"): {Kind: bgp.KindPool},
			pfx("10.9.0.5/32"):     {Kind: bgp.KindPod, Attributes: bgp.Attributes{Communities: "64512:7"}},
			pfx("10.200.0.1/32"):   {Kind: bgp.KindPod, Attributes: bgp.Attributes{Communities: "64512:7"}},
		},
		Peers: map[bgp.PeerID]bgp.Peer{
			tor: {Name: "tor", ASN: 64500, NextHops: bgp.NextHops{IPv4: addr("192.0.2.10"), IPv6: addr("2001:db8:2::10")}},
		},
		// Also of what is pending: its container may be running.
		Sources: map[LinkName]SourceCheck{
			"ggla": {On: true, Addrs: "10.9.0.5 2001:db8:1::5"}, "gglb": {On: true, Addrs: "2001:db8:1::6 2001:db8:1::7"},
			"gglb1": {On: true, Addrs: "2001:db8:1::6 2001:db8:1::7"}, // it answers by either
			"gglc":  {On: true, Addrs: "10.200.0.1"}, "ggld": {On: true, Addrs: "10.8.0.5"},
		},
		Masquerade: map[netip.Prefix]bgp.Prefixes{pfx("10.8.0.0/24"): "10.0.0.0/8"},
		Learned: map[netip.Prefix]Route{
			pfx("0.0.0.0/0"):    {Kind: RouteLearned, Source: addr("203.0.113.1"), Hops: "192.0.2.1"},
			pfx("192.0.0.0/16"): {Kind: RouteLearned, Source: addr("203.0.113.1"), Hops: "192.0.2.1"},
		},
	}
	if diff := cmp.Diff(want, got, cmpNetip...); diff != "" {
		t.Errorf("Plan() (-want +got):\n%s", diff)
	}
	// The plan does not write into what it was given: the configuration is shared.
	if p := config.BGP.Peers[tor]; p.NextHops.IPv4.IsValid() {
		t.Error("Plan() changed the configuration")
	}
}

func TestPlanWithoutBGP(t *testing.T) {
	got := Plan(World{Config: Config{Pools: []Pool{{Name: "p", Prefix: pfx("10.0.0.0/24")}}}})
	if len(got.Announce) != 0 || len(got.Peers) != 0 || len(got.Routes) != 1 {
		t.Errorf("Plan() = %+v, want the aggregate's route alone", got)
	}
}

func TestPoolsFor(t *testing.T) {
	c := Config{Pools: []Pool{
		{Name: "a", Prefix: pfx("10.0.0.0/24")},
		{Name: "six", Prefix: pfx("2001:db8::/64")},
		{Name: "dmz", Prefix: pfx("10.0.1.0/24"), Namespaces: []string{"dmz"}},
	}}
	names := func(ps []Pool) (out []string) {
		for _, p := range ps {
			out = append(out, p.Name)
		}
		return out
	}
	for _, tt := range []struct {
		namespace string
		want      []string
	}{{"dmz", []string{"dmz", "a"}}, {"web", []string{"a"}}, {"", []string{"a"}}} {
		if diff := cmp.Diff(tt.want, names(c.poolsFor(bgp.IPv4, tt.namespace))); diff != "" {
			t.Errorf("poolsFor(%q) (-want +got):\n%s", tt.namespace, diff)
		}
	}
}

func TestHostIf(t *testing.T) {
	// C47, B-097: ids that share their first characters get different names, all short enough for the kernel.
	seen := make(map[string]cni.ID)
	for i := range 2000 {
		for _, ifname := range []string{"eth0", "net1"} {
			id := cni.ID{ContainerID: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" + string(rune('a'+i%26)) + string(rune('a'+i/26)), IfName: ifname}
			name := HostIf(id, 0)
			if len(name) != 15 || name[:3] != "ggl" {
				t.Fatalf("HostIf(%v) = %q, want ggl and 12 digits", id, name)
			}
			if other, ok := seen[name]; ok && other != id {
				t.Errorf("HostIf(%v) = HostIf(%v)", id, other)
			}
			seen[name] = id
		}
	}
	id := cni.ID{ContainerID: "c", IfName: "eth0"}
	if got := hostIf(id, func(name string) bool { return name == HostIf(id, 0) }); got != HostIf(id, 1) {
		t.Errorf("hostIf() with the first name taken = %q, want the next", got)
	}
}

func TestParseIntent(t *testing.T) {
	tests := []struct {
		name string
		in   map[string]string
		want Intent
		ok   bool
	}{
		{"none", nil, Intent{}, true},
		{"foreign", map[string]string{"example.com/ipv4": "x"}, Intent{}, true},
		{"one off", map[string]string{AnnotationIPv4: "false"}, Intent{Without: bgp.IPv4}, true},
		{"both", map[string]string{AnnotationIPv4: "true", AnnotationIPv6: "false"}, Intent{With: bgp.IPv4, Without: bgp.IPv6}, true},
		{"bad", map[string]string{AnnotationIPv4: "True"}, Intent{}, false},
		{"empty", map[string]string{AnnotationIPv4: ""}, Intent{}, false},
		{"unknown", map[string]string{"gaggle.dev/ip4": "true"}, Intent{}, false},
	}
	for _, tt := range tests {
		got, err := ParseIntent(tt.in)
		if got != tt.want || (err == nil) != tt.ok {
			t.Errorf("%s: ParseIntent() = %+v, %v, want %+v, ok %v", tt.name, got, err, tt.want, tt.ok)
		}
	}
}

// B-116: no text of an annotation does more than fail.
func FuzzParseIntent(f *testing.F) {
	for _, v := range []string{"", "true", "[", "{}", "[1]", "\x00", "::ffff:1.2.3.4"} {
		f.Add("gaggle.dev/ipv4", v)
		f.Add("gaggle.dev/"+v, v)
	}
	for _, key := range []string{AnnotationAddresses, AnnotationAnycast, AnnotationCIDR6, AnnotationCIDR4, AnnotationIPAlgo} {
		f.Add(key, `["203.0.113.5", "2001:db8::5"]`)
		f.Add(key, "203.0.113.5 2001:db8::5,10.0.0.0/24")
		f.Add(key, "2001:db8:1::/80")
	}
	f.Fuzz(func(t *testing.T, key, value string) {
		in, err := ParseIntent(map[string]string{key: value})
		if err != nil && in != (Intent{}) {
			t.Errorf("ParseIntent(%q: %q) = %+v with %v", key, value, in, err)
		}
		if err != nil && len(err.Error()) > 1000 {
			t.Errorf("message of %d bytes", len(err.Error()))
		}
	})
}

func TestMACText(t *testing.T) {
	m := MAC{2, 0, 0xab, 0, 1, 0xff}
	text, _ := m.MarshalText()
	var back MAC
	if err := back.UnmarshalText(text); err != nil || back != m || string(text) != "02:00:ab:00:01:ff" {
		t.Errorf("%q, %v, %v", text, back, err)
	}
	for _, bad := range []string{"", "02:00", "02:00:ab:00:01:zz", "02:00:ab:00:01:ff:00"} {
		if err := back.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("UnmarshalText(%q) = nil, want an error", bad)
		}
	}
}

func BenchmarkPlan(b *testing.B) {
	for _, pods := range []int{10, 250} {
		b.Run(strconv.Itoa(pods), func(b *testing.B) {
			w := World{Config: Config{
				Pools: []Pool{{Name: "six", Prefix: pfx("2001:db8:1::/64")}, {Name: "four", Prefix: pfx("10.9.0.0/16")}},
				BGP:   &BGP{ASN: 64512, Peers: map[bgp.PeerID]bgp.Peer{{Addr: addr("192.0.2.1")}: {Name: "tor", ASN: 64500}}},
			}}
			six, four := addr("2001:db8:1::1"), addr("10.9.0.1")
			for i := range pods {
				six, four = six.Next(), four.Next()
				w.Attachments = append(w.Attachments, Attachment{
					ID: cni.ID{ContainerID: strconv.Itoa(i)}, HostIf: "ggl" + strconv.Itoa(i), Addrs: []netip.Addr{six, four}, Committed: true,
				})
			}
			for b.Loop() {
				Plan(w)
			}
		})
	}
}
