package store

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"

	"github.com/gaggle-cni/gaggle/cni"
	"github.com/gaggle-cni/gaggle/node"
)

// stopped is a clock for tests in which nothing rests.
var cmpNetip = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func stopped() time.Duration { return 0 }

func open(t *testing.T, path, boot string) *DB {
	t.Helper()
	d, err := Open(path, Options{BootID: boot, Uptime: stopped})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func id(c string) cni.ID { return cni.ID{Network: "n", ContainerID: c, IfName: "eth0"} }

func choose(addrs ...string) func(node.Taken) (node.Attachment, error) {
	return func(node.Taken) (node.Attachment, error) {
		a := node.Attachment{HostIf: "ggl" + addrs[0], MAC: node.MAC{2}, Created: time.Unix(1, 0).UTC()}
		for _, s := range addrs {
			a.Addrs = append(a.Addrs, netip.MustParseAddr(s))
		}
		return a, nil
	}
}

func TestLifeOfARecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	d := open(t, path, "boot")
	a, created, err := d.Reserve(id("a"), choose("10.0.0.1", "2001:db8::1"))
	if err != nil || !created || a.Committed {
		t.Fatalf("Reserve() = %+v, %v, %v, want a pending record", a, created, err)
	}
	again, created, err := d.Reserve(id("a"), func(node.Taken) (node.Attachment, error) {
		t.Error("chosen again")
		return node.Attachment{}, nil
	})
	if err != nil || created {
		t.Errorf("second Reserve() = %v, %v, want the first record", created, err)
	}
	if diff := cmp.Diff(a, again, cmpNetip); diff != "" {
		t.Error(diff)
	}
	_, _, err = d.Reserve(id("b"), func(taken node.Taken) (node.Attachment, error) {
		for _, s := range []string{"10.0.0.1", "2001:db8::1"} {
			if !taken.Addr(netip.MustParseAddr(s)) {
				t.Errorf("%s is not taken", s)
			}
		}
		if taken.Addr(netip.MustParseAddr("10.0.0.2")) || !taken.HostIf("ggl10.0.0.1") || taken.HostIf("other") {
			t.Error("taken tells lies")
		}
		return node.Attachment{}, errors.New("changed my mind")
	})
	if err == nil || len(d.All()) != 1 {
		t.Errorf("a failed choice: %v, %d records, want an error and one record", err, len(d.All()))
	}
	commit := func(id cni.ID) error { return d.Commit(id, 7) }
	for _, step := range []struct {
		name string
		do   func(cni.ID) error
		want bool
	}{{"Commit", commit, true}, {"Commit", commit, true}, {"Retire", d.Retire, false}, {"Retire", d.Retire, false}} {
		if err := step.do(id("a")); err != nil || d.All()[0].Committed != step.want {
			t.Errorf("%s: %v, committed %v, want %v", step.name, err, d.All()[0].Committed, step.want)
		}
	}
	for range 2 {
		if err := d.Release(id("a"), 0); err != nil || len(d.All()) != 0 {
			t.Errorf("Release: %v, %d records", err, len(d.All()))
		}
	}
	if err := d.Commit(id("a"), 7); err == nil {
		t.Error("Commit of nothing = nil, want an error")
	}
}

func TestReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	d := open(t, path, "boot")
	for _, c := range []string{"b", "a"} {
		if _, _, err := d.Reserve(id(c), choose("10.0.0."+map[string]string{"a": "1", "b": "2"}[c])); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(d.Commit(id("a"), 7), d.Touch(Run{Peers: true, Uptime: time.Hour})); err != nil {
		t.Fatal(err)
	}
	before, secret := d.All(), d.Secret()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}

	d = open(t, path, "boot")
	if diff := cmp.Diff(before, d.All(), cmpNetip); diff != "" {
		t.Errorf("records (-before +after):\n%s", diff)
	}
	if d.Secret() != secret || secret == [32]byte{} {
		t.Error("the secret changed or is empty")
	}
	if r := d.LastRun(); r != (Run{Peers: true, Uptime: time.Hour}) {
		t.Errorf("LastRun() = %+v", r)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}

	// I06, B-006: after a reboot the records are gone, and so is what was known of the last run.
	d = open(t, path, "next boot")
	if r := d.LastRun(); len(d.All()) != 0 || r != (Run{}) {
		t.Errorf("after a reboot: %d records, last run %+v", len(d.All()), r)
	}
}

// I07, I08, B-124: a file that another process holds is a clear error within seconds.
func TestLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	open(t, path, "boot")
	if _, err := Open(path, Options{BootID: "boot", Uptime: stopped}); err == nil || !strings.Contains(err.Error(), "second node process") {
		t.Errorf("Open() = %v, want a hint at the other process", err)
	}
}

// I13, B-128: an older program refuses a newer file and leaves it as it is.
func TestNewerSchema(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	d := open(t, path, "boot")
	if _, _, err := d.Reserve(id("a"), choose("10.0.0.1")); err != nil {
		t.Fatal(err)
	}
	err := d.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keySchema, []byte("999")) })
	if err := errors.Join(err, d.Close()); err != nil {
		t.Fatal(err)
	}
	before, _ := os.ReadFile(path)
	if _, err := Open(path, Options{BootID: "other boot", Uptime: stopped}); !errors.Is(err, ErrNewer) {
		t.Errorf("Open() = %v, want ErrNewer", err)
	}
	if after, _ := os.ReadFile(path); string(after) != string(before) {
		t.Error("the file was changed")
	}
}

func TestMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	open(t, path, "boot")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v, want 0600", info.Mode(), err)
	}
}

func TestParallelReservationsAreUnique(t *testing.T) {
	d := open(t, filepath.Join(t.TempDir(), "state.db"), "boot")
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			_, _, err := d.Reserve(id(string(rune('A'+i))), func(taken node.Taken) (node.Attachment, error) {
				a := netip.MustParseAddr("10.0.0.1")
				for taken.Addr(a) {
					a = a.Next()
				}
				return node.Attachment{HostIf: a.String(), Addrs: []netip.Addr{a}}, nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	seen := make(map[netip.Addr]bool)
	for _, a := range d.All() {
		if seen[a.Addrs[0]] {
			t.Errorf("%s is given twice", a.Addrs[0])
		}
		seen[a.Addrs[0]] = true
	}
	if len(seen) != 40 {
		t.Errorf("%d addresses, want 40", len(seen))
	}
}

// BenchmarkHold is what an address costs that is in use: memory of the process, and of the tmpfs that the file is on.
func BenchmarkHold(b *testing.B) {
	const pods = 1000
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for b.Loop() {
		path := filepath.Join(b.TempDir(), "state.db")
		d, err := Open(path, Options{BootID: "boot", Uptime: stopped})
		if err != nil {
			b.Fatal(err)
		}
		before := heap()
		for n := range pods {
			name := strings.Repeat("0", 58) + fmt.Sprintf("%06d", n) // as long as containerd's
			six := netip.MustParseAddr("2001:db8::").As16()
			six[14], six[15] = byte(n>>8), byte(n)
			four := netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)})
			if _, _, err := d.Reserve(id(name), choose(four.String(), netip.AddrFrom16(six).String())); err != nil {
				b.Fatal(err)
			}
			if err := d.Commit(id(name), 7); err != nil {
				b.Fatal(err)
			}
		}
		file, err := os.Stat(path)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(heap()-before)/(2*pods), "heap-B/address")
		b.ReportMetric(float64(file.Size())/(2*pods), "file-B/address")
		if err := d.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReserveCommitRelease(b *testing.B) {
	d, err := Open(filepath.Join(b.TempDir(), "state.db"), Options{BootID: "boot", Uptime: stopped})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	for b.Loop() {
		if _, _, err := d.Reserve(id("a"), choose("10.0.0.1")); err != nil {
			b.Fatal(err)
		}
		if err := errors.Join(d.Commit(id("a"), 7), d.Retire(id("a")), d.Release(id("a"), time.Minute)); err != nil {
			b.Fatal(err)
		}
	}
}

// An address that several have (anycast, or the sandboxes of one pod) is free when the last of them has gone, after a restart
// too. K03, D07.
func TestSharedAddress(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	d := open(t, path, "boot")
	shared, own := netip.MustParseAddr("203.0.113.5"), netip.MustParseAddr("203.0.113.6")
	for _, c := range []string{"a", "b", "c"} {
		if _, _, err := d.Reserve(id(c), func(node.Taken) (node.Attachment, error) {
			return node.Attachment{HostIf: "ggl" + c, Anycast: []netip.Addr{shared}, Extra: []netip.Addr{own}}, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	taken := func() (both bool) {
		_, _, err := d.Reserve(id("probe"), func(taken node.Taken) (node.Attachment, error) {
			both = taken.Addr(shared) && taken.Addr(own)
			return node.Attachment{}, errors.New("only looking")
		})
		if err == nil {
			t.Fatal("Reserve() = nil, want the error of choose")
		}
		return both
	}
	for _, c := range []string{"c", "a"} {
		if err := d.Release(id(c), time.Minute); err != nil || !taken() {
			t.Errorf("after the end of %s: %v, taken %v", c, err, taken())
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		d = open(t, path, "boot")
	}
	if err := d.Release(id("b"), time.Minute); err != nil || taken() {
		t.Errorf("after the last: %v, taken %v", err, taken())
	}
}

// The sandboxes of one pod share its static address, also over a restart; what one of them gives up does not rest while the other
// has it. C11
func TestSandboxesShareAnAddress(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	d := open(t, path, "boot")
	pod := node.Pod{Key: node.PodKey{Namespace: "ns", Name: "db-0"}}
	reserve := func(name string) {
		t.Helper()
		if _, _, err := d.Reserve(id(name), func(node.Taken) (node.Attachment, error) {
			return node.Attachment{HostIf: "ggl" + name, Pod: pod, Addrs: []netip.Addr{netip.MustParseAddr("203.0.113.1")}}, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	reopen := func(records, resting int) {
		t.Helper()
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		d = open(t, path, "boot")
		if got := len(d.All()); got != records {
			t.Errorf("%d records after a restart, want %d", got, records)
		}
		if got := len(d.resting); got != resting {
			t.Errorf("%d addresses rest after a restart, want %d", got, resting)
		}
	}
	reserve("old")
	reserve("new")
	reopen(2, 0)
	for n, name := range []string{"old", "new"} {
		if err := d.Release(id(name), time.Hour); err != nil {
			t.Fatal(err)
		}
		reopen(1-n, n)
	}
}

// What is known of a pod counts although it cannot be written, and is written with the next change.
func TestObserveWithoutAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	d := open(t, path, "boot")
	if _, _, err := d.Reserve(id("a"), choose("10.0.0.1")); err != nil {
		t.Fatal(err)
	}
	if err := d.db.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.Observe(id("a"), node.Pod{Ready: true}); !errors.Is(err, node.ErrStore) {
		t.Errorf("Observe() = %v, want that it was not written", err)
	}
	if !d.All()[0].Pod.Ready {
		t.Error("what was observed is forgotten")
	}
}
