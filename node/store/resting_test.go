package store

import (
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/gaggle-cni/gaggle/node"
)

// C39, I14: a freed address rests by the machine's uptime, over a restart too, and then it is forgotten that it did.
func TestResting(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	now := 100 * time.Second
	o := Options{BootID: "boot", Uptime: func() time.Duration { return now }}
	d, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	first, second := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::2")
	give := func(c string, addrs ...string) {
		t.Helper()
		if _, _, err := d.Reserve(id(c), choose(addrs...)); err != nil {
			t.Fatal(err)
		}
	}
	release := func(c string, rest time.Duration) {
		t.Helper()
		if err := d.Release(id(c), rest); err != nil {
			t.Fatal(err)
		}
	}
	rests := func(want ...netip.Addr) {
		t.Helper()
		_, _, err := d.Reserve(id("probe"), func(taken node.Taken) (node.Attachment, error) {
			for _, a := range []netip.Addr{first, second} {
				if got := taken.Resting(a); got != slices.Contains(want, a) {
					t.Errorf("at %v: Resting(%s) = %v", now, a, got)
				}
				if taken.Addr(a) {
					t.Errorf("%s is taken", a)
				}
			}
			if rested := taken.Rested(); len(want) > 0 && !slices.Equal(rested[:len(want)], want) {
				t.Errorf("at %v: Rested() = %v, want %v", now, rested, want)
			}
			return node.Attachment{}, node.ErrAddress
		})
		if err == nil {
			t.Fatal("the probe was stored")
		}
	}
	give("a", second.String())
	give("b", first.String())
	release("a", time.Minute)
	now += 10 * time.Second
	release("b", time.Minute)
	rests(second, first)

	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if d, err = Open(path, o); err != nil {
		t.Fatal(err)
	}
	rests(second, first)
	now += 50 * time.Second
	rests(first)
	give("c", first.String()) // somebody has it again
	release("c", 0)
	now++
	rests()

	give("d", "10.0.0.9")
	release("d", time.Second) // a release clears up what is over
	count := 0
	err = d.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketResting).ForEach(func([]byte, []byte) error { count++; return nil })
	})
	if err != nil || count != 1 || len(d.resting) != 1 {
		t.Errorf("%d addresses are kept, %d remembered, %v; want the last one", count, len(d.resting), err)
	}
}
