package node

import (
	"errors"
	"strings"
	"testing"

	"github.com/gaggle-cni/gaggle/bgp"
)

func TestParseIntentReads(t *testing.T) {
	for _, tt := range []struct {
		key, value string
		want       Intent
	}{
		{AnnotationIPv6, "false", Intent{Without: bgp.IPv6}},
		{AnnotationCIDR6, " 2001:db8:1:0:1::/80 ", Intent{CIDR6: pfx("2001:db8:1:0:1::/80")}},
		{AnnotationCIDR4, "10.1.0.64/26", Intent{CIDR4: pfx("10.1.0.64/26")}},
		{AnnotationIPAlgo, " namespace,app ", Intent{IPAlgo: "namespace,app"}},
		{AnnotationIPAlgo, "nonsense", Intent{IPAlgo: "nonsense"}}, // falls through when an address is chosen
		{AnnotationAddresses, "203.0.113.5", Intent{Addresses: "203.0.113.5"}},
		{AnnotationAddresses, "203.0.113.5, 2001:DB8:f::5\n10.9.0.1", Intent{Addresses: "203.0.113.5 2001:db8:f::5 10.9.0.1"}},
		{AnnotationAnycast, ` ["203.0.113.5", "2001:db8:f::5"] `, Intent{Anycast: "203.0.113.5 2001:db8:f::5"}},
	} {
		in, err := ParseIntent(map[string]string{tt.key: tt.value, "example.org/other": "x"})
		if err != nil || in != tt.want {
			t.Errorf("%s: %q = %+v, %v, want %+v", tt.key, tt.value, in, err, tt.want)
		}
	}
}

// B-116: text that is no list of addresses is an error of its pod, and names annotation and text.
func TestParseIntentRefuses(t *testing.T) {
	for _, tt := range []struct{ key, value, text string }{
		{AnnotationAddresses, "", "names no address"},
		{AnnotationAddresses, " , ", "names no address"},
		{AnnotationAddresses, "[]", "names no address"},
		{AnnotationAddresses, "[", "not a JSON list"},
		{AnnotationAddresses, "{}", `"{}": not an address`},
		{AnnotationAddresses, "[1]", "not a JSON list"},
		{AnnotationAddresses, `[""]`, `"": not an address`},
		{AnnotationAddresses, `["::ffff:1.2.3.4"]`, "want a plain"},
		{AnnotationAddresses, `["fe80::1%eth0"]`, "want a plain"},
		{AnnotationAddresses, `["1.2.3.4/0"]`, "not an address"},
		{AnnotationAddresses, strings.Repeat("x", 200<<10), "not an address"},
		{AnnotationAddresses, strings.Repeat("203.0.113.5 ", 17), "names 17 addresses; 16 are the most"},
		{AnnotationAddresses, "203.0.113.5 203.0.113.5", "is there twice"},
		{AnnotationAnycast, "127.0.0.1", "nobody can claim"},
		{AnnotationAnycast, "::1", "nobody can claim"},
		{AnnotationAnycast, "fe80::5", "nobody can claim"},
		{AnnotationAnycast, "169.254.1.1", "nobody can claim"},
		{AnnotationAnycast, "ff0e::1", "nobody can claim"},
		{AnnotationAnycast, "224.0.0.1", "nobody can claim"},
		{AnnotationAnycast, "0.0.0.0", "nobody can claim"},
		{AnnotationAnycast, "::", "nobody can claim"},
		{AnnotationAnycast, "255.255.255.255", "nobody can claim"},
		{AnnotationCIDR6, "10.0.0.0/24", "want an IPv6 prefix"},
		{AnnotationCIDR4, "::ffff:10.0.0.0/120", "want an IPv4 prefix"},
		{AnnotationCIDR4, "10.0.0.1/24", "did you mean 10.0.0.0/24"},
		{AnnotationCIDR4, "10.0.0.1", "want a part of a pool"},
		{Domain + "adresses", "203.0.113.5", "unknown; this version knows"},
	} {
		_, err := ParseIntent(map[string]string{tt.key: tt.value})
		if !errors.Is(err, ErrAnnotation) || !strings.Contains(err.Error(), tt.text) || !strings.Contains(err.Error(), tt.key) || len(err.Error()) > 500 {
			t.Errorf("%s: %.40q: %v, want an error with %q", tt.key, tt.value, err, tt.text)
		}
	}
	_, err := ParseIntent(map[string]string{AnnotationAddresses: "203.0.113.5", AnnotationAnycast: "203.0.113.5"})
	if !errors.Is(err, ErrAnnotation) || !strings.Contains(err.Error(), "claims it too") {
		t.Errorf("an address that is static and anycast: %v", err)
	}
}
