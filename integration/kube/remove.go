package kube

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// removeTimeout bounds the end of what was killed.
const removeTimeout = 30 * time.Second

// newPrefix makes the name of a cluster, for namespaces and cgroups.
func newPrefix() string { return "k" + strings.ToLower(rand.Text()[:6]) }

// A guard is a process that outlives this one and then removes the cluster.
type guard struct {
	cmd   *exec.Cmd
	stdin io.Closer
	said  strings.Builder
}

func startGuard(program, prefix, dir string) (*guard, error) {
	g := &guard{cmd: exec.Command(program, prefix, dir)}
	g.cmd.Stderr = &g.said
	// A session of its own: an interrupt at the terminal is not for it.
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var err error
	if g.stdin, err = g.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := g.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	return g, nil
}

// remove has the guard do its work, and waits.
func (g *guard) remove() error {
	_ = g.stdin.Close()
	if err := g.cmd.Wait(); err != nil {
		return fmt.Errorf("remove the cluster: %w: %s", err, g.said.String())
	}
	return nil
}

// Remove removes a cluster: its processes and namespaces, with which its mounts end, its cgroups, and its files but the logs.
// What is gone already is no error.
func Remove(prefix, dir string) error {
	lab.Remove(prefix)
	for deadline := time.Now().Add(removeTimeout); ; {
		err := removeFiles(prefix, dir)
		if err == nil || time.Now().After(deadline) {
			return err
		}
		// Processes that were killed just now still write files and keep cgroups busy, and nothing tells when they have ended.
		_, _ = unix.Poll(nil, 20)
	}
}

func removeFiles(prefix, dir string) error {
	var errs []error
	for _, top := range cgroups(prefix + "-*") {
		errs = append(errs, removeCgroup(top))
	}
	for _, name := range []string{"bin", "etc", "images", "machines"} {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, name)))
	}
	return errors.Join(errs...)
}

// removeCgroup removes a cgroup and those in it, the innermost first.
func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() {
			errs = append(errs, removeCgroup(filepath.Join(dir, e.Name())))
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		errs = append(errs, fmt.Errorf("remove cgroup %s: %w", dir, err))
	}
	return errors.Join(errs...)
}
