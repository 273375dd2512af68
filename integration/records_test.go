package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/cni"
	"github.com/gaggle-cni/gaggle/integration/lab"
	"github.com/gaggle-cni/gaggle/node/store"
)

// Whatever becomes of the records while containers run: the next process takes over what is attached, gives its addresses to
// nobody, and serves CHECK and DEL for it. I10, F13, B-004, B-124.
func TestLostRecords(t *testing.T) {
	l, n := oneNodeOf(t, lab.Peering{Pool4: "10.244.1.0/28"}, filepath.Join(bin, quickDir)) // 14 addresses
	empty := snapshot(t, n)
	type attached struct {
		p      *lab.Pod
		result json.RawMessage
	}
	var pods []attached
	for i := range 4 {
		p, err := n.Pod(t.Context(), fmt.Sprintf("p%d", i))
		must(t, err)
		out, err := p.Call(within(t, 20*time.Second), "ADD", "1.0.0")
		must(t, err)
		pods = append(pods, attached{p, out})
	}
	full := snapshot(t, n)
	addresses := func() (out []netip.Addr) {
		for _, rec := range podList(t, n) {
			out = append(out, rec.Addresses...)
		}
		slices.SortFunc(out, netip.Addr.Compare)
		return out
	}
	before := addresses()
	path := filepath.Join(n.RunDir, "state.db")
	for name, lose := range map[string]func() error{
		"removed":   func() error { return os.Remove(path) },
		"emptied":   func() error { return os.Truncate(path, 0) },
		"truncated": func() error { return os.Truncate(path, 20000) },
		"garbage": func() error {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			must(t, err)
			defer f.Close()
			_, err = f.WriteAt([]byte(strings.Repeat("garbage!", 8192)), 4096)
			return err
		},
		"one record deleted": func() error { // as by hand
			boot, err := store.BootID()
			must(t, err)
			db, err := store.Open(path, store.Options{BootID: boot, Uptime: func() time.Duration { return 0 }})
			must(t, err)
			id := cni.ID{Network: "gaggle", ContainerID: pods[0].p.ContainerID, IfName: "eth0"}
			return errors.Join(db.Release(id, 0), db.Close())
		},
		"of another boot": func() error {
			db, err := store.Open(path, store.Options{BootID: "another", Uptime: func() time.Duration { return 0 }})
			must(t, err)
			return db.Close()
		},
	} {
		n.Process().Kill()
		must(t, lose())
		must(t, n.Restart(t.Context()))
		if got := addresses(); !slices.Equal(got, before) {
			t.Errorf("%s: attached are %v, want %v", name, got, before)
		}
		full()
		for _, a := range pods {
			_, err := a.p.CallWith(within(t, 20*time.Second), "CHECK", "1.0.0", map[string]any{"prevResult": a.result})
			if err != nil {
				t.Errorf("%s: CHECK of %s: %v", name, a.p.Name, err)
			}
		}
	}
	// The rest of the pool, to its last address: none of those in use comes again.
	for i := range 14 - len(pods) {
		_, r := attach(t, n, fmt.Sprintf("more%d", i))
		if slices.Contains(before, r.Addr(false)) || slices.Contains(before, r.Addr(true)) {
			t.Errorf("%v are given again", r.IPs)
		}
	}
	p, err := n.Pod(t.Context(), "toomany")
	must(t, err)
	refused(t, p, 101, "no free address")

	var r lab.Result
	must(t, json.Unmarshal(pods[1].result, &r))
	_, err = lab.Ping(within(t, 20*time.Second), l.Client, r.Addr(true))
	must(t, err)
	for _, rec := range podList(t, n) {
		del := &lab.Pod{}
		*del = *pods[0].p
		del.Name, del.ContainerID = rec.Name, rec.ContainerID
		must(t, del.Del(within(t, 20*time.Second)))
	}
	empty()
}

// On a full file system pods can be removed all the same, and what cannot be done says so and leaves nothing. When there is
// room again everything works, without a restart. I12, B-127.
func TestFullFileSystem(t *testing.T) {
	need(t, "birdc", "mount")
	t.Parallel()
	l := newLab(t, 1)
	n := l.Nodes[0]
	must(t, os.MkdirAll(n.RunDir, 0o700))
	must(t, unix.Mount("tmpfs", n.RunDir, "tmpfs", 0, "size=6m,mode=0700"))
	t.Cleanup(func() {
		n.Process().Kill()
		must(t, unix.Unmount(n.RunDir, 0))
	})
	_, err := l.StartRouter(t.Context(), "bird", nil)
	must(t, err)
	must(t, n.Start(t.Context(), n.Config(lab.Peering{Over4: true})))
	unchanged := snapshot(t, n)
	p, _ := attach(t, n, "a")
	q, _ := attach(t, n, "b")

	filler := filepath.Join(n.RunDir, "filler")
	f, err := os.Create(filler)
	must(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the file system: %v", err)
	}
	must(t, f.Close())
	must(t, p.Del(within(t, 20*time.Second)))
	c, err := n.Pod(t.Context(), "c")
	must(t, err)
	for range 50 { // the room that the file took ahead is used again and again
		_, err = c.Add(within(t, 20*time.Second))
		must(t, err)
		must(t, c.Del(within(t, 20*time.Second)))
	}
	n.Process().Kill()
	must(t, n.Restart(t.Context()))
	if got := podList(t, n); len(got) != 1 || got[0].Name != "b" {
		t.Errorf("attached are %+v, want b", got)
	}
	// A DEL that cannot be kept for the next process is an error, so that the runtime comes again.
	n.Process().Kill()
	e, ok := errors.AsType[*lab.CNIError](q.Del(within(t, 20*time.Second)))
	if !ok || e.Code < 100 || strings.Contains(e.Msg, "not found") {
		t.Errorf("DEL = %v, want an error of our own", e)
	}
	must(t, os.Remove(filler))
	must(t, q.Del(within(t, 20*time.Second)))
	must(t, n.Restart(t.Context()))
	if got := podList(t, n); len(got) != 0 {
		t.Errorf("records left: %+v", got)
	}
	unchanged()
}

// A container that ended without a DEL, while the node process was away or there, is found by itself. One whose link was
// removed keeps its addresses while it lives. F09, F10, D06, B-041, B-042.
func TestSweep(t *testing.T) {
	n := newFaultyNode(t) // it looks every two seconds
	unchanged := snapshot(t, n.Node)
	gone, _ := attach(t, n.Node, "gone")
	away, _ := attach(t, n.Node, "away")
	cut, r := attach(t, n.Node, "cut")
	must(t, n.NS.IP(t.Context(), "link del "+r.Interfaces[0].Name))
	must(t, n.lab.RemoveNamespace(gone.NS))
	n.Process().Kill()
	must(t, n.lab.RemoveNamespace(away.NS))
	must(t, n.Restart(t.Context()))
	must(t, lab.WaitFor(within(t, 30*time.Second), "the sweep", func() bool { return len(podList(t, n.Node)) == 1 }))
	// It must not go on to the one that lives: two more looks.
	since := time.Now()
	must(t, lab.WaitFor(within(t, 30*time.Second), "two more looks", func() bool { return time.Since(since) > 5*time.Second }))
	if got := podList(t, n.Node); len(got) != 1 || got[0].Name != "cut" {
		t.Errorf("attached are %+v, want the one that lives", got)
	}
	must(t, cut.Del(within(t, 20*time.Second)))
	must(t, lab.WaitFor(within(t, 20*time.Second), "a pass", func() bool { return healthy(t, n.Node) }))
	unchanged()
}

// A DEL that the plugin kept because the node process hung is done once it goes on, although no ADD comes. B-003, B-043, G03.
func TestDelWhileNodeProcessHangs(t *testing.T) {
	_, n := oneNode(t, lab.Peering{})
	unchanged := snapshot(t, n)
	p, _ := attach(t, n, "a")
	pid := n.Process().PID()
	must(t, unix.Kill(pid, unix.SIGSTOP))
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGCONT) })
	must(t, p.Del(within(t, 60*time.Second)))
	start := time.Now()
	_, err := p.Call(within(t, 20*time.Second), "STATUS", "1.1.0")
	if e, ok := errors.AsType[*lab.CNIError](err); !ok || e.Code != 50 || time.Since(start) > 3*time.Second {
		t.Errorf("STATUS = %v after %v, want code 50 within two seconds", err, time.Since(start))
	}
	must(t, unix.Kill(pid, unix.SIGCONT))
	must(t, lab.WaitFor(within(t, 30*time.Second), "the DEL", func() bool { return len(podList(t, n)) == 0 }))
	unchanged()
	if left, _ := os.ReadDir(filepath.Join(n.RunDir, "deletes")); len(left) != 0 {
		t.Errorf("deletions left: %v", left)
	}
}
