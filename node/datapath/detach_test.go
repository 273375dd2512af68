package datapath_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/integration/netnstest"
	"github.com/gaggle-cni/gaggle/node"
)

// After Detach the node is as it was before Attach, and the container too.
func TestDetachLeavesNothing(t *testing.T) {
	for _, tt := range families {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.uplink()
			w.must(w.host.RouteAdd(&netlink.Route{Dst: network("10.9.0.0/16"), Gw: rtr4.AsSlice(), Table: 100}))
			rule := netlink.NewRule()
			rule.Src, rule.Table, rule.Priority, rule.Family = network("10.9.0.0/16"), 100, 1000, unix.AF_INET
			w.must(w.host.RuleAdd(rule))
			pod := netnstest.NewBare(t)
			podBefore, nodeBefore, settings := w.describe(pod), w.describe(w.ns), w.settings(w.ns)

			a := attachment(1, tt.addrs...)
			w.wired(w.d.Attach(t.Context(), pod, a))
			w.routeTo(a)
			for range 3 { // D01: a repeat is no error
				if err := w.d.Detach(t.Context(), a); err != nil {
					t.Errorf("Detach() = %v", err)
				}
				w.compare("pod", podBefore, w.describe(pod))
				w.compare("node", nodeBefore, w.describe(w.ns))
				w.same("node's settings", settings, w.settings(w.ns))
			}
		})
	}
}

// D02: the pair is gone with the namespace, or goes, whoever is first. D14.
func TestDetachWhenTheNamespaceIsGone(t *testing.T) {
	w := newWorld(t)
	before := w.describe(w.ns)
	a := attachment(1, pod6, pod4)
	pod := netnstest.NewBare(t)
	w.wired(w.d.Attach(t.Context(), pod, a))
	w.routeTo(a)
	w.must(pod.Close())
	if err := w.d.Detach(t.Context(), a); err != nil {
		t.Errorf("Detach() = %v", err)
	}
	w.compare("node", before, w.describe(w.ns))
}

// Others' pods are left alone.
func TestDetachRemovesOneOfMany(t *testing.T) {
	w := newWorld(t)
	a, b := attachment(1, pod6, pod4), attachment(2, pod6.Next(), pod4.Next())
	podA := w.attach(a)
	w.routeTo(a)
	before, podBefore := w.visible(w.ns), w.visible(podA)
	w.attach(b)
	w.routeTo(b)
	w.must(w.d.Detach(t.Context(), b))
	w.compare("node", before, w.visible(w.ns))
	w.compare("pod", podBefore, w.visible(podA))
}

// C25, C26: the process holds nothing of a pod that is gone, and no thread stays in a pod's namespace. A failing Attach leaks
// no more than one that works.
func TestAttachAndDetachLeakNothing(t *testing.T) {
	w := newWorld(t)
	pod, taken := netnstest.New(t), netnstest.New(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth0"
	w.must(netnstest.Handle(t, taken).LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	cycle := func(n byte) {
		a := attachment(n, pod6, pod4)
		w.wired(w.d.Attach(t.Context(), pod, a))
		w.must(w.d.Detach(t.Context(), a))
		if _, err := w.d.Attach(t.Context(), taken, a); err == nil {
			t.Fatal("Attach() = nil, want that the name is taken")
		}
	}
	for n := range byte(5) { // sockets to keep, threads that serve everything
		cycle(n)
	}
	fds, threads := count(w, "/proc/self/fd"), count(w, "/proc/self/task")
	for n := range byte(200) {
		cycle(n)
	}
	if got := count(w, "/proc/self/fd"); got > fds {
		t.Errorf("%d descriptors are open, want %d", got, fds)
	}
	// The Go runtime starts a thread when others are in system calls, now and then.
	if got := count(w, "/proc/self/task"); got > threads+10 {
		t.Errorf("there are %d threads, want about %d", got, threads)
	}
	w.atHome()
}

// atHome checks that every thread is in the namespace in which the process began.
func (w *world) atHome() {
	w.Helper()
	home, err := os.Readlink(netnstest.Own)
	w.must(err)
	tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
	w.must(err)
	for _, task := range tasks {
		if ns, err := os.Readlink(task); err == nil && ns != home { // a thread may end meanwhile
			w.Errorf("%s is in %s, want %s", task, ns, home)
		}
	}
}

func count(w *world, dir string) int {
	w.Helper()
	entries, err := os.ReadDir(dir)
	w.must(err)
	return len(entries)
}

// Methods may be called concurrently.
func TestAttachesInParallel(t *testing.T) {
	w := newWorld(t)
	before := w.describe(w.ns)
	const pods = 20
	namespaces, failed := make([]*os.File, pods), make(chan error, pods)
	for n := range namespaces {
		namespaces[n] = netnstest.New(t)
	}
	addr6, addr4 := pod6, pod4
	all := make([]node.Attachment, pods)
	for n := range all {
		addr6, addr4 = addr6.Next(), addr4.Next()
		all[n] = attachment(byte(n), addr6, addr4)
	}
	for n, a := range all {
		go func() {
			_, err := w.d.Attach(t.Context(), namespaces[n], a)
			failed <- err
		}()
	}
	for range all {
		w.must(<-failed)
	}
	for _, a := range all {
		w.routeTo(a)
	}
	for _, a := range all {
		w.reaches(w.ns, a.Addrs[0])
		w.reaches(w.ns, a.Addrs[1])
	}
	for _, a := range all {
		go func() { failed <- w.d.Detach(t.Context(), a) }()
	}
	for range all {
		w.must(<-failed)
	}
	w.compare("node", before, w.describe(w.ns))
	w.atHome()
}
