package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gaggle-cni/gaggle/node"
)

// filled makes a file with records and resting addresses and returns its bytes.
func filled(t *testing.T, path string) []byte {
	t.Helper()
	d, err := Open(path, Options{BootID: "boot", Uptime: stopped})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		c, addr := fmt.Sprintf("c%d", i), fmt.Sprintf("10.0.0.%d", i+1)
		if _, _, err := d.Reserve(id(c), choose(addr)); err != nil {
			t.Fatal(err)
		}
		err := d.Commit(id(c), 1)
		if i%4 == 0 {
			err = errors.Join(err, d.Release(id(c), time.Hour))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// I10, B-124: a damaged file is one error, never a crash and never half the truth: what opens has every record.
func TestDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	good := filled(t, path)
	used := 0 // the rest is room taken ahead
	for i, b := range good {
		if b != 0 {
			used = i + 1
		}
	}
	used = (used/os.Getpagesize() + 1) * os.Getpagesize()
	good = good[:used]
	seed := time.Now().UnixNano()
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	damages := map[string]func([]byte) []byte{
		"garbage": func(b []byte) []byte { return []byte(strings.Repeat("garbage ", len(b)/8)) },
		"short":   func([]byte) []byte { return []byte("x") },
		"pages swapped": func(b []byte) []byte {
			page := os.Getpagesize()
			for at := 2 * page; at+2*page <= used; at += 2 * page {
				first := append([]byte(nil), b[at:at+page]...)
				copy(b[at:], b[at+page:at+2*page])
				copy(b[at+page:], first)
			}
			return b
		},
	}
	for i := range 25 { // of each kind; every run takes others
		cut, at, bit := 1+random.IntN(used-1), random.IntN(used), random.IntN(8)
		damages[fmt.Sprintf("cut %d to %d", i, cut)] = func(b []byte) []byte { return b[:cut] }
		damages[fmt.Sprintf("page %d at %d", i, at)] = func(b []byte) []byte {
			for j := at; j < min(at+4096, used); j++ {
				b[j] = byte(random.Uint32())
			}
			return b
		}
		damages[fmt.Sprintf("bit %d of %d in round %d", bit, at, i)] = func(b []byte) []byte { b[at] ^= 1 << bit; return b }
	}
	for name, damage := range damages {
		// Another file: bbolt leaves the lock of one that it gave up in a panic, until the process ends.
		path := filepath.Join(t.TempDir(), "state.db")
		if err := os.WriteFile(path, damage(append([]byte(nil), good...)), 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := Open(path, Options{BootID: "boot", Uptime: stopped})
		switch {
		case errors.Is(err, ErrDamaged), errors.Is(err, ErrNewer): // by a flipped bit in the number of the schema
		case err != nil:
			t.Errorf("seed %d: %s: Open() = %v, want ErrDamaged", seed, name, err)
		default:
			// It was in what is not used, or in the older of the two heads; or it made another boot of it.
			if n := len(d.All()); n != 45 && n != 0 {
				t.Errorf("seed %d: %s: %d records of 45", seed, name, n)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// A start that was cut off while it wrote the file anew harms nothing.
func TestHalfWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	filled(t, path)
	if err := os.WriteFile(path+".new", []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if d := open(t, path, "boot"); len(d.All()) != 45 {
		t.Errorf("%d records, want 45", len(d.All()))
	}
}

// A damaged file makes way for a new one, and is kept for those who want to know.
func TestSetAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	for _, content := range []string{"first", "second"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path, Options{BootID: "boot", Uptime: stopped}); !errors.Is(err, ErrDamaged) {
			t.Fatalf("Open() = %v, want ErrDamaged", err)
		}
		aside, err := SetAside(path)
		if err != nil {
			t.Fatal(err)
		}
		if kept, err := os.ReadFile(aside); string(kept) != content {
			t.Errorf("kept %q, %v", kept, err)
		}
		d := open(t, path, "boot")
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// No single flipped bit of a record goes unnoticed.
func TestFlippedRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	d := open(t, path, "boot")
	if _, _, err := d.Reserve(id("a"), choose("10.0.0.1")); err != nil {
		t.Fatal(err)
	}
	value, err := encode(d.All()[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decode(value); err != nil {
		t.Fatalf("decode() = %v", err)
	}
	for i := range value {
		bad := append([]byte(nil), value...)
		bad[i] ^= 4
		if _, err := decode(bad); err == nil {
			t.Fatalf("a flipped bit of byte %d goes unnoticed", i)
		}
	}
}

// A record that says nothing of the container's namespace has none, rather than the first.
func TestRecordWithoutNamespace(t *testing.T) {
	text := []byte(`{"id":{"network":"net","containerID":"a","ifName":"eth0"}}`)
	value := append(binary.BigEndian.AppendUint32(nil, crc32.Checksum(text, castagnoli)), text...)
	a, err := decode(value)
	if err != nil || a.Namespace != node.NoNetns {
		t.Errorf("decode() = namespace %d, %v, want %d", a.Namespace, err, node.NoNetns)
	}
}
