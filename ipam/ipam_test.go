package ipam

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
)

func seed(n int) (s [32]byte) {
	copy(s[:], fmt.Sprint("seed ", n))
	return s
}

// C40, C41
func TestPickFillsThePoolAndNeverGivesOutReservedAddresses(t *testing.T) {
	for _, text := range []string{"10.1.2.8/29", "10.1.2.0/24", "10.1.0.0/20", "2001:db8::/120", "2001:db8::/116"} {
		pool := netip.MustParsePrefix(text)
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			size := 1 << (pool.Addr().BitLen() - pool.Bits())
			want := size - 1
			if pool.Addr().Is4() {
				want = size - 2
			}
			used := make(map[netip.Addr]bool)
			taken := func(a netip.Addr) bool { return used[a] }
			for i := range want {
				a, err := Pick(pool, pool, seed(i), taken)
				if err != nil {
					t.Fatalf("Pick() number %d of %d: %v", i, want, err)
				}
				if used[a] || !Usable(pool, a) {
					t.Fatalf("Pick() = %v: taken or reserved", a)
				}
				used[a] = true
			}
			if a, err := Pick(pool, pool, seed(-1), taken); !errors.Is(err, ErrExhausted) {
				t.Errorf("Pick() of a full pool = %v, %v, want ErrExhausted", a, err)
			}
		})
	}
}

func TestUsable(t *testing.T) {
	tests := []struct {
		pool, addr string
		want       bool
	}{
		{"10.0.0.0/24", "10.0.0.0", false},
		{"10.0.0.0/24", "10.0.0.1", true},
		{"10.0.0.0/24", "10.0.0.255", false},
		{"10.0.0.0/23", "10.0.0.255", true},
		{"10.0.0.0/24", "10.0.1.1", false},
		{"2001:db8::/64", "2001:db8::", false},
		{"2001:db8::/64", "2001:db8::ffff:ffff:ffff:ffff", true},
		{"2001:db8::/64", "10.0.0.1", false},
	}
	for _, tt := range tests {
		if got := Usable(netip.MustParsePrefix(tt.pool), netip.MustParseAddr(tt.addr)); got != tt.want {
			t.Errorf("Usable(%s, %s) = %v, want %v", tt.pool, tt.addr, got, tt.want)
		}
	}
}

func TestPickIsStableForASeedAndSpreadsOverSeeds(t *testing.T) {
	pool := netip.MustParsePrefix("2001:db8:1::/48")
	free := func(netip.Addr) bool { return false }
	seen := make(map[netip.Addr]bool)
	for i := range 1000 {
		a, _ := Pick(pool, pool, seed(i), free)
		b, _ := Pick(pool, pool, seed(i), free)
		if a != b {
			t.Fatalf("Pick() = %v, then %v with the same seed", a, b)
		}
		if seen[a] {
			t.Errorf("Pick() = %v with two seeds out of 2^80", a)
		}
		seen[a] = true
	}
}

func TestCheckPrefix(t *testing.T) {
	tests := []struct {
		prefix string
		ok     bool
	}{
		{"10.0.0.0/16", true},
		{"10.0.0.0/29", true},
		{"10.0.0.0/30", false},
		{"10.0.0.1/24", false},
		{"2001:db8::/48", true},
		{"2001:db8::/120", true},
		{"2001:db8::/121", false},
		{"::/0", false},
		{"fe80::/64", false},
		{"ff02::/64", false},
		{"169.254.0.0/16", false},
		{"127.0.0.0/8", false},
		{"224.0.0.0/24", false},
		{"::ffff:10.0.0.0/120", false},
	}
	for _, tt := range tests {
		if err := CheckPrefix(netip.MustParsePrefix(tt.prefix)); (err == nil) != tt.ok {
			t.Errorf("CheckPrefix(%s) = %v, want ok %v", tt.prefix, err, tt.ok)
		}
	}
}

// Any sequence of picks and releases keeps addresses unique.
func TestPickProperty(t *testing.T) {
	n := rand.Uint64()
	t.Logf("seed %d", n)
	r := rand.New(rand.NewPCG(n, 0))
	for range 50 {
		pool := netip.PrefixFrom(netip.MustParseAddr("10.0.0.0"), 20+r.IntN(10)).Masked()
		used := make(map[netip.Addr]bool)
		var order []netip.Addr
		for i := range 200 {
			if r.IntN(3) == 0 && len(order) > 0 {
				j := r.IntN(len(order))
				delete(used, order[j])
				order = append(order[:j], order[j+1:]...)
				continue
			}
			a, err := Pick(pool, pool, seed(i), func(a netip.Addr) bool { return used[a] })
			if err != nil {
				if free := 1<<(32-pool.Bits()) - 2 - len(used); free > 0 {
					t.Fatalf("Pick() in %v with %d free: %v", pool, free, err)
				}
				continue
			}
			if used[a] {
				t.Fatalf("Pick() in %v = %v, which is taken", pool, a)
			}
			used[a] = true
			order = append(order, a)
		}
	}
}

// BenchmarkPick gives addresses out and takes as many back, in pools of very different sizes: as good as empty, with 100 000
// addresses in use, or full to nine tenths where that is less.
func BenchmarkPick(b *testing.B) {
	const most = 100_000
	for _, text := range []string{"10.0.0.0/24", "10.0.0.0/16", "2001:db8::/112", "2001:db8::/64", "2001:db8::/48"} {
		pool := netip.MustParsePrefix(text)
		for _, share := range []float64{0, 0.9} {
			fill := int(min(most, share*Size(pool, nil)))
			var used []netip.Addr
			held := make(map[netip.Addr]bool)
			taken := func(a netip.Addr) bool { return held[a] }
			pick := func(n int) {
				a, err := Pick(pool, pool, seed(n), taken)
				if err != nil {
					b.Fatal(err)
				}
				held[a] = true
				used = append(used, a)
			}
			n := 0
			for ; n < fill; n++ {
				pick(n)
			}
			b.Run(fmt.Sprintf("%s/used=%d", text, fill), func(b *testing.B) {
				for b.Loop() {
					pick(n)
					i := n * 7919 % len(used)
					delete(held, used[i])
					used[i] = used[len(used)-1]
					used = used[:len(used)-1]
					n++
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "addresses/s")
			})
		}
	}
}

func TestSize(t *testing.T) {
	for _, tt := range []struct {
		pool     string
		reserved []string
		want     float64
	}{
		{"10.0.0.0/24", nil, 254},
		{"10.0.0.0/24", []string{"10.0.0.0/28"}, 239},                                  // with the network's address
		{"10.0.0.0/24", []string{"10.0.0.16/28", "10.0.0.17/32", "10.0.0.16/28"}, 238}, // one in the other, one twice
		{"10.0.0.0/24", []string{"10.0.0.0/24"}, 0},
		{"10.0.0.0/29", []string{"10.0.0.7/32"}, 6},
		{"2001:db8::/120", nil, 255},
		{"2001:db8::/64", []string{"2001:db8::/65"}, 1 << 63},
	} {
		var reserved []netip.Prefix
		for _, text := range tt.reserved {
			reserved = append(reserved, netip.MustParsePrefix(text))
		}
		if got := Size(netip.MustParsePrefix(tt.pool), reserved); got != tt.want {
			t.Errorf("Size(%s, %v) = %v, want %v", tt.pool, tt.reserved, got, tt.want)
		}
	}
}
