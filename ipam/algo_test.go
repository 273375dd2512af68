package ipam

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
)

const digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

func TestParseAlgo(t *testing.T) {
	for text, want := range map[string]string{
		"namespace":                            "namespace/16",
		"namespace,app":                        "namespace/16,app/16",
		" namespace/8 , app/24 ":               "namespace/8,app/24",
		"namespace,app,image/8,pod/4,node/1":   "namespace/16,app/16,image/8,pod/4,node/1",
		"":                                     "",
		",":                                    "",
		"namespace,":                           "",
		"namespace,namespace":                  "",
		"Namespace":                            "",
		"namespace/0":                          "",
		"namespace/65":                         "",
		"namespace/-1":                         "",
		"namespace/x":                          "",
		"app/8/8":                              "",
		strings.Repeat("namespace,", 1<<16):    "",
		"namespace/18446744073709551617,app/8": "",
	} {
		a, err := ParseAlgo(text)
		if a.String() != want || errors.Is(err, ErrAlgo) != (want == "") {
			t.Errorf("ParseAlgo(%.40q) = %q, %v, want %q", text, a, err, want)
		}
	}
}

// What is decoded is what was encoded, on every node, for all replicas.
func TestAlgoProperty(t *testing.T) {
	n := rand.Uint64()
	t.Logf("seed %d", n)
	r := rand.New(rand.NewPCG(n, 0))
	for range 2000 {
		names := append([]FieldName(nil), fieldNames...)
		r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		var a Algo
		for _, name := range names[:1+r.IntN(len(names))] {
			a = append(a, Field{name, 1 + r.IntN(30)})
		}
		pool := netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, byte(r.Uint32()), byte(r.Uint32())}), 32+r.IntN(89)).Masked()
		id := Identity{fmt.Sprint("ns", r.IntN(9)), fmt.Sprint("app", r.IntN(9)), "img@sha256:" + digest, fmt.Sprint("pod", r.Uint32()), "node1"}
		part, err := a.Prefix(pool, id)
		if fits := a.Bits()+InstanceBits <= 128-pool.Bits(); fits != (err == nil) {
			t.Fatalf("%s in %s: %v", a, pool, err)
		}
		if err != nil {
			continue
		}
		addr, err := Pick(pool, part, seed(r.IntN(1000)), func(netip.Addr) bool { return false })
		if err != nil || !pool.Contains(addr) {
			t.Fatalf("Pick() in %s of %s = %v, %v", part, pool, addr, err)
		}
		values, err := a.Decode(pool, addr)
		if err != nil || len(values) != len(a) {
			t.Fatalf("Decode() = %v, %v", values, err)
		}
		for _, v := range values {
			if !v.Is(id.Text(v.Name)) {
				t.Errorf("%s of %s is %s, which is not that of %q", v.Field, addr, v, id.Text(v.Name))
			}
			if v.Bits > 12 && v.Name != FieldImage && v.Is("something else") {
				t.Errorf("%s of %s is that of something else", v.Field, addr)
			}
		}
	}
}

func TestAlgoImageDigest(t *testing.T) {
	a := Algo{{FieldImage, 24}}
	pool := netip.MustParsePrefix("2001:db8::/64")
	part, err := a.Prefix(pool, Identity{Image: "registry.example/app:v1@sha256:" + digest})
	if err != nil {
		t.Fatal(err)
	}
	b := part.Addr().As16()
	if got := hex.EncodeToString(b[8:11]); got != digest[:6] {
		t.Errorf("field is %s, want the digest's %s", got, digest[:6])
	}
	tag, err := a.Prefix(pool, Identity{Image: "registry.example/app:v1"})
	if err != nil || tag == part {
		t.Errorf("by its tag %v, %v, want another than by its digest", tag, err)
	}
	if _, err := a.Prefix(pool, Identity{}); !errors.Is(err, ErrAlgo) {
		t.Errorf("Prefix() without an image: %v, want ErrAlgo", err)
	}
}

// A part is used up before anything is taken from elsewhere, which never happens.
func TestPickStaysInItsPart(t *testing.T) {
	pool, part := netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("10.0.0.0/30")
	used := make(map[netip.Addr]bool)
	for i := range 3 { // not the network's address
		a, err := Pick(pool, part, seed(i), func(a netip.Addr) bool { return used[a] })
		if err != nil || !part.Contains(a) || used[a] {
			t.Fatalf("Pick() = %v, %v", a, err)
		}
		used[a] = true
	}
	if a, err := Pick(pool, part, seed(9), func(a netip.Addr) bool { return used[a] }); !errors.Is(err, ErrExhausted) {
		t.Errorf("Pick() = %v, %v, want ErrExhausted", a, err)
	}
	if _, err := Pick(part, pool, seed(9), func(netip.Addr) bool { return false }); err == nil {
		t.Error("Pick() of more than the pool = nil, want an error")
	}
}

func TestAppName(t *testing.T) {
	for _, tt := range []struct {
		pod   string
		owner Owner
		want  string
	}{
		{"web-7d9c6b8f5d-x2x4z", Owner{"ReplicaSet", "web-7d9c6b8f5d", "7d9c6b8f5d"}, "web"},
		{"web-abc-x2x4z", Owner{"ReplicaSet", "web-abc", ""}, "web-abc"},
		{"web-abc-x2x4z", Owner{"ReplicaSet", "web-abc", "other"}, "web-abc"},
		{"db-0", Owner{"StatefulSet", "db", ""}, "db"},
		{"log-x2x4z", Owner{"DaemonSet", "log", ""}, "log"},
		{"backup-28391040-x2x4z", Owner{"Job", "backup-28391040", ""}, "backup-28391040"},
		{"bare", Owner{}, "bare"},
	} {
		if got := AppName(tt.pod, tt.owner); got != tt.want {
			t.Errorf("AppName(%q, %v) = %q, want %q", tt.pod, tt.owner, got, tt.want)
		}
	}
	for pod, want := range map[string]string{
		"web-7d9c6b8f5d-x2x4z": "web", "web-6f7g8-x2x4z": "web-6f7g8", "log-x2x4z": "log", "db-0": "db", "db-12": "db",
		"bare": "bare", "my-app": "my-app", "a-frontend": "a-frontend", "-x2x4z": "-x2x4z", "": "", "db-22445": "db",
		"backup-28391040-x2x4z": "backup-28391040", "web-blue-7d9c6b8f5d-x2x4z": "web-blue",
	} {
		if got := AppNameOf(pod); got != want {
			t.Errorf("AppNameOf(%q) = %q, want %q", pod, got, want)
		}
	}
}

// L01: whatever is written in an annotation, reading it ends with an algorithm that can be written down and read again.
func FuzzParseAlgo(f *testing.F) {
	for _, text := range []string{"namespace,app", "namespace/16,app/16,image/8", "x", "app/999", ",,"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseAlgo(text)
		if err != nil {
			return
		}
		b, err := ParseAlgo(a.String())
		if err != nil || b.String() != a.String() {
			t.Errorf("%q is %q, and then %q, %v", text, a, b, err)
		}
	})
}
