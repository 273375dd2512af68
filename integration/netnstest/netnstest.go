// Package netnstest gives a test network namespaces of its own, which end with the test. They have no names: nothing is left
// behind even by a test that is killed. Nothing of the machine's own network is touched.
package netnstest

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Own is the path of the calling thread's network namespace.
const Own = "/proc/thread-self/ns/net"

// Need skips a test that lacks the rights to make namespaces; in CI that is a failure.
func Need(tb testing.TB) {
	tb.Helper()
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("CI") != "":
		tb.Fatal("needs root, and in CI everything must run")
	default:
		tb.Skip("needs root")
	}
}

// New makes a namespace and brings its loopback up. The file is closed at the end of the test, and with it, unless something
// else holds it, the namespace ends.
func New(tb testing.TB) *os.File {
	tb.Helper()
	ns := NewBare(tb)
	h := Handle(tb, ns)
	lo, err := h.LinkByName("lo")
	if err != nil {
		tb.Fatalf("find lo: %v", err)
	}
	if err := h.LinkSetUp(lo); err != nil {
		tb.Fatalf("bring up lo: %v", err)
	}
	return ns
}

// NewBare makes a namespace as the kernel does: its loopback is down.
func NewBare(tb testing.TB) *os.File {
	tb.Helper()
	Need(tb)
	var ns *os.File
	away(tb, func() {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			tb.Fatalf("make network namespace: %v", err)
		}
		var err error
		if ns, err = os.Open(Own); err != nil {
			tb.Fatalf("open new network namespace: %v", err)
		}
	})
	tb.Cleanup(func() { _ = ns.Close() }) // the test may have closed it
	return ns
}

// Do calls do on a thread in the namespace, in the calling goroutine, so that do may end the test. Sockets that do opens and
// programs that it starts are in the namespace; goroutines that it starts are not.
func Do(tb testing.TB, ns *os.File, do func()) {
	tb.Helper()
	away(tb, func() {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			tb.Fatalf("enter network namespace: %v", err)
		}
		do()
	})
}

// away lets do change the thread's namespace, and then brings the thread back. A thread that cannot be brought back stays
// locked, so that it ends with the goroutine.
func away(tb testing.TB, do func()) {
	tb.Helper()
	runtime.LockOSThread()
	home, err := os.Open(Own)
	if err != nil {
		tb.Fatalf("open own network namespace: %v", err)
	}
	defer func() { _ = home.Close() }()
	defer func() {
		if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
			tb.Errorf("return to own network namespace: %v", err)
			return
		}
		runtime.UnlockOSThread()
	}()
	do()
}

// Handle opens a netlink socket in the namespace for as long as the test runs.
func Handle(tb testing.TB, ns *os.File) *netlink.Handle {
	tb.Helper()
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		tb.Fatalf("open netlink socket: %v", err)
	}
	tb.Cleanup(h.Close)
	return h
}

// Sysctl reads a setting, such as net/ipv4/ip_forward, of the namespace, or sets it first if a value is given.
func Sysctl(tb testing.TB, ns *os.File, key string, value ...string) (now string) {
	tb.Helper()
	Do(tb, ns, func() {
		path := filepath.Join("/proc/sys", key)
		for _, v := range value {
			if err := os.WriteFile(path, []byte(v), 0o644); err != nil {
				tb.Fatalf("set sysctl: %v", err)
			}
		}
		data, err := os.ReadFile(path)
		if err != nil {
			tb.Fatalf("read sysctl: %v", err)
		}
		now = string(data[:len(data)-1])
	})
	return now
}

// ownProcess tells a test process that it is in a namespace of its own.
const ownProcess = "NETNSTEST_OWN"

// Main runs a package's tests in a process with a namespace of its own, for code whose goroutines open sockets. lo is up and
// has the given addresses. Without the rights for that the tests run where they are; those that need it call [Need].
func Main(m *testing.M, addrs ...netip.Addr) (code int) {
	if os.Geteuid() != 0 {
		return m.Run()
	}
	if os.Getenv(ownProcess) == "" {
		return again()
	}
	if err := prepareLoopback(addrs); err != nil {
		fmt.Fprintln(os.Stderr, "prepare lo:", err)
		return 1
	}
	return m.Run()
}

// again starts this program once more.
func again() (code int) {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), ownProcess+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	err := cmd.Run()
	if cmd.ProcessState == nil {
		fmt.Fprintln(os.Stderr, "start tests in a network namespace:", err)
		return 1
	}
	return cmd.ProcessState.ExitCode()
}

func prepareLoopback(addrs []netip.Addr) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	for _, a := range addrs {
		addr := &netlink.Addr{IPNet: netlink.NewIPNet(a.AsSlice()), Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrAdd(lo, addr); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(lo)
}
