package bgp_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/gaggle-cni/gaggle/bgp"
)

func TestParseCommunities(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   []string
		want bgp.Communities
		bad  string // in the error
	}{
		{"none", nil, "", ""},
		{"one", []string{"64512:100"}, "64512:100", ""},
		{"sorted by number, once each", []string{"64512:100", "64512:20", "64512:100"}, "64512:20 64512:100", ""},
		{"the largest", []string{"65535:65535"}, "65535:65535", ""},
		{"well-known", []string{"no-export", "Graceful-Shutdown", "blackhole"}, "65535:0 65535:666 65535:65281", ""},
		{"well-known by number is the same", []string{"65535:65281", "no-export"}, "65535:65281", ""},
		{"leading zeros", []string{"064512:0100"}, "64512:100", ""},
		{"a bad one among good ones", []string{"64512:1", "x"}, "", `"x"`},
		{"empty", []string{""}, "", "not a community"},
		{"a 4-byte ASN", []string{"4200000001:1"}, "", "large community"},
		{"three parts", []string{"1:2:3"}, "", "not a community"},
		{"negative", []string{"-1:1"}, "", "not a community"},
		{"a blank", []string{"64512: 1"}, "", "not a community"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := bgp.ParseCommunities(tt.in)
			if got != tt.want || (err != nil) != (tt.bad != "") || err != nil && !strings.Contains(err.Error(), tt.bad) {
				t.Errorf("ParseCommunities(%q) = %q, %v; want %q and %q", tt.in, got, err, tt.want, tt.bad)
			}
		})
	}
}

func TestParseLargeCommunities(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   []string
		want bgp.LargeCommunities
		bad  string
	}{
		{"none", nil, "", ""},
		{"sorted by number, once each", []string{"64512:10:1", "64512:9:1", "64512:10:1"}, "64512:9:1 64512:10:1", ""},
		{"the largest", []string{"4294967295:4294967295:4294967295"}, "4294967295:4294967295:4294967295", ""},
		{"too large", []string{"4294967296:1:1"}, "", "below 4294967296"},
		{"AS 0", []string{"0:0:3"}, "", "AS 0"},
		{"two parts", []string{"64512:1"}, "", "not a large community"},
		{"empty part", []string{"64512::1"}, "", "not a large community"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := bgp.ParseLargeCommunities(tt.in)
			if got != tt.want || (err != nil) != (tt.bad != "") || err != nil && !strings.Contains(err.Error(), tt.bad) {
				t.Errorf("ParseLargeCommunities(%q) = %q, %v; want %q and %q", tt.in, got, err, tt.want, tt.bad)
			}
		})
	}
}

// What is read is canonical: reading it again changes nothing, and its numbers are all there.
func FuzzCommunities(f *testing.F) {
	for _, seed := range []string{"64512:100", "no-export 64512:1", "1:2:3 4294967295:0:0", "65536:1", ": :: :::", "graceful-shutdown"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		words := strings.Fields(text)
		if c, err := bgp.ParseCommunities(words); err == nil {
			again, err := bgp.ParseCommunities(strings.Fields(string(c)))
			if err != nil || again != c {
				t.Errorf("ParseCommunities(%q) = %q, which is read as %q, %v", text, c, again, err)
			}
			if n := len(c.Values()); n != len(strings.Fields(string(c))) || !slices.IsSorted(c.Values()) {
				t.Errorf("%q has %d values", c, n)
			}
		}
		if c, err := bgp.ParseLargeCommunities(words); err == nil {
			again, err := bgp.ParseLargeCommunities(strings.Fields(string(c)))
			if err != nil || again != c {
				t.Errorf("ParseLargeCommunities(%q) = %q, which is read as %q, %v", text, c, again, err)
			}
			if n := len(c.Values()); n != len(strings.Fields(string(c))) {
				t.Errorf("%q has %d values", c, n)
			}
		}
	})
}

func TestSetsAreCanonical(t *testing.T) {
	prefixes := []netip.Prefix{
		netip.MustParsePrefix("2001:db8::1/64"), netip.MustParsePrefix("10.9.0.0/16"), netip.MustParsePrefix("2001:db8::/64"),
		netip.MustParsePrefix("10.9.0.0/24"),
	}
	p := bgp.MakePrefixes(prefixes)
	if want := bgp.Prefixes("10.9.0.0/16 10.9.0.0/24 2001:db8::/64"); p != want {
		t.Errorf("MakePrefixes() = %q, want %q", p, want)
	}
	if prefixes[0] != netip.MustParsePrefix("2001:db8::1/64") {
		t.Error("MakePrefixes changed what it was given")
	}
	if again := bgp.MakePrefixes(p.Values()); again != p {
		t.Errorf("the values of %q make %q", p, again)
	}
	hops := []netip.Addr{netip.MustParseAddr("fe80::2%eth1"), netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("fe80::2%eth0"), netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("192.0.2.9")}
	h := bgp.MakeHops(hops)
	if want := bgp.Hops("192.0.2.9 192.0.2.10 fe80::2%eth0 fe80::2%eth1"); h != want {
		t.Errorf("MakeHops() = %q, want %q", h, want)
	}
	if hops[0] != netip.MustParseAddr("fe80::2%eth1") {
		t.Error("MakeHops changed what it was given")
	}
	if again := bgp.MakeHops(h.Values()); again != h {
		t.Errorf("the values of %q make %q", h, again)
	}
}

// L10: a password does not get out by any way of printing, by itself or within a peer.
func TestSecretDoesNotPrint(t *testing.T) {
	const password = "hunter2"
	p := bgp.Peer{Name: "tor", Password: password}
	encoded, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var logged strings.Builder
	slog.New(slog.NewTextHandler(&logged, nil)).Info("peer", "peer", p, "password", p.Password)
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("peer", "peer", p, "password", p.Password)
	out := []string{string(encoded), logged.String()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		out = append(out, fmt.Sprintf(verb, p), fmt.Sprintf(verb, p.Password))
	}
	for _, text := range out {
		if strings.Contains(text, password) {
			t.Errorf("the password is in %s", text)
		}
	}
	if got := string(p.Password); got != password {
		t.Errorf("the password is %q when it is needed, want %q", got, password)
	}
	if got := bgp.Secret("").String(); got != "" {
		t.Errorf("no password prints as %q", got)
	}
}

func TestFamilies(t *testing.T) {
	for f, want := range map[bgp.Families]string{0: "", bgp.IPv4: "IPv4", bgp.IPv6: "IPv6", bgp.IPv4 | bgp.IPv6: "IPv4,IPv6"} {
		if got := f.String(); got != want {
			t.Errorf("String() = %q, want %q", got, want)
		}
	}
	if f := bgp.IPv4; f.Has(bgp.IPv4|bgp.IPv6) || !f.Has(bgp.IPv4) {
		t.Error("Has is wrong about IPv4")
	}
	if bgp.FamilyOf(netip.MustParseAddr("::ffff:192.0.2.1")) != bgp.IPv6 || bgp.FamilyOf(netip.MustParseAddr("192.0.2.1")) != bgp.IPv4 {
		t.Error("FamilyOf is wrong")
	}
}
