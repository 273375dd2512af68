package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const netnsDir = "/run/netns"

// An NS is a named network namespace.
type NS struct{ Name string }

// Path is the file that a runtime passes as CNI_NETNS.
func (n NS) Path() string { return filepath.Join(netnsDir, n.Name) }

// command puts a command into the namespace.
func (n NS) command(args ...string) []string {
	return append([]string{"nsenter", "--net=" + n.Path()}, args...)
}

// Exec runs a command in the namespace and returns what it prints.
func (n NS) Exec(ctx context.Context, args ...string) (string, error) {
	return output(ctx, n.command(args...)...)
}

// IP runs ip with the given arguments, separated by blanks, in the namespace.
func (n NS) IP(ctx context.Context, args string) error {
	return run(ctx, append([]string{"ip", "-n", n.Name}, strings.Fields(args)...)...)
}

// Sysctl sets one of the namespace's kernel parameters, given as its path below /proc/sys.
func (n NS) Sysctl(name, value string) error {
	return n.Do(func() error { return os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0o644) })
}

// Do calls do on a thread in the namespace. Sockets that it opens stay there.
func (n NS) Do(do func() error) error {
	return away(func() error {
		fd, err := unix.Open(n.Path(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open namespace %s: %w", n.Name, err)
		}
		defer unix.Close(fd)
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter namespace %s: %w", n.Name, err)
		}
		return do()
	})
}

// away calls do on a thread that ends afterwards, so that do may change it for good.
func away(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			// The main thread would stay, and keep the namespaces that it is in. While it is held here, another is taken.
			defer runtime.UnlockOSThread()
			done <- away(do)
			return
		}
		done <- do()
	}()
	return <-done
}

// remove kills what still runs in the namespace, then removes it.
func (n NS) remove() error {
	for _, pid := range n.pids() {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended meanwhile
	}
	if err := run(context.Background(), "ip", "netns", "delete", n.Name); err != nil && !errors.Is(n.stat(), os.ErrNotExist) {
		return err
	}
	return nil
}

func (n NS) stat() error {
	_, err := os.Stat(n.Path())
	return err
}

// pids lists the processes in the namespace.
func (n NS) pids() (pids []int) {
	var own unix.Stat_t
	if unix.Stat(n.Path(), &own) != nil {
		return nil
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		var st unix.Stat_t
		if unix.Stat(filepath.Join(dir, "ns/net"), &st) == nil && st.Ino == own.Ino && st.Dev == own.Dev {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			pids = append(pids, pid)
		}
	}
	return slices.DeleteFunc(pids, func(pid int) bool { return pid == os.Getpid() })
}
