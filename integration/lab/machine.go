package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Machine has more of its own than a network: mounts, processes, host name and IPC. All of it lives as long as its first
// process.
type Machine struct {
	Name string
	NS   NS

	lab   *Lab
	first *Process
}

// ownNamespaces are a machine's besides its network.
const ownNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC

// Machine starts a machine in a network namespace. first is the command line of its first process, which sets up what is to be
// set up and creates the file ready when that is done.
func (l *Lab) Machine(ctx context.Context, name string, ns NS, ready string, first ...string) (*Machine, error) {
	m := &Machine{Name: name, NS: ns, lab: l}
	cmd := exec.Command(first[0], first[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: ownNamespaces}
	var err error
	if m.first, err = l.launch(name+"-init", cmd, ns.Do); err != nil {
		return nil, err
	}
	return m, m.first.await(ctx, name, func() bool {
		_, err := os.Stat(ready)
		return err == nil
	})
}

// Start starts a long-running command on the machine. Its output goes to a file of the machine's and the given name in the
// lab's directory.
func (m *Machine) Start(name string, args ...string) (*Process, error) {
	return m.lab.launch(m.Name+"-"+name, exec.Command(args[0], args[1:]...), m.Do)
}

// Exec runs a command on the machine and returns what it prints.
func (m *Machine) Exec(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, longTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.WaitDelay = time.Second // for children that hold on to its output
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := m.Do(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		said := strings.TrimSpace(stdout.String() + stderr.String())
		return stdout.String(), fmt.Errorf("on %s: %s: %w: %s", m.Name, strings.Join(args, " "), err, said)
	}
	return stdout.String(), nil
}

// Path is a file of the machine's as others see it.
func (m *Machine) Path(path string) string {
	return filepath.Join("/proc", fmt.Sprint(m.first.PID()), "root", path)
}

// WriteFile writes a file of the machine's, and makes the directory for it.
func (m *Machine) WriteFile(path, text string) error {
	path = m.Path(path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	// A reader sees the old file or the new one: runtimes look at directories all the time.
	aside := path + ".new"
	if err := os.WriteFile(aside, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(aside, path)
}

// Do calls do on a thread that is on the machine; a process that do starts is wholly there.
func (m *Machine) Do(do func() error) error {
	return away(func() error {
		if err := m.enter(); err != nil {
			return err
		}
		return do()
	})
}

func (m *Machine) enter() error {
	fd, err := unix.PidfdOpen(m.first.PID(), 0)
	if err != nil {
		return fmt.Errorf("find %s: %w", m.Name, err)
	}
	defer unix.Close(fd)
	// A thread that shares its root and working directory with others cannot go to other mounts.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("leave the process's directories: %w", err)
	}
	if err := unix.Setns(fd, ownNamespaces|unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter %s: %w", m.Name, err)
	}
	return nil
}
