package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/cni/wire"
)

// dialInterval is the pause between attempts to reach a node process that is not there yet.
const dialInterval = 50 * time.Millisecond

// dial connects to the node process. It tries again until the deadline: a node process that is being replaced is away for
// a moment, and its socket with it.
func dial(socket string, deadline time.Time) (*net.UnixConn, error) {
	d := net.Dialer{Deadline: deadline}
	for {
		conn, err := d.Dial("unix", socket)
		if err == nil {
			return conn.(*net.UnixConn), nil
		}
		pause := time.NewTimer(min(dialInterval, max(time.Until(deadline), 0)))
		<-pause.C
		if !time.Now().Before(deadline) {
			return nil, err
		}
	}
}

// readAll reads standard input with a bound in size and time.
func readAll(stdin io.Reader) ([]byte, error) {
	if f, ok := stdin.(*os.File); ok {
		_ = f.SetReadDeadline(time.Now().Add(stdinTimeout)) // not every file has one; a regular file ends by itself
	}
	type read struct {
		data []byte
		err  error
	}
	done := make(chan read, 1)
	go func() { // ends with the process at the latest
		data, err := io.ReadAll(io.LimitReader(stdin, wire.MaxMessage+1))
		done <- read{data, err}
	}()
	select {
	case r := <-done:
		if r.err == nil && len(r.data) > wire.MaxMessage {
			r.err = fmt.Errorf("more than %d bytes", wire.MaxMessage)
		}
		return r.data, r.err
	case <-time.After(stdinTimeout):
		return nil, fmt.Errorf("standard input was not closed within %v", stdinTimeout)
	}
}

// openNetns opens a network namespace and refuses anything else, above all the host's own: an ADD into it would rearrange
// the node's network.
func openNetns(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("%q does not exist", path)
		}
		return nil, fmt.Errorf("open %q: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	if err := checkNetns(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func checkNetns(f *os.File) error {
	fd := int(f.Fd())
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fmt.Errorf("stat %q: %w", f.Name(), err)
	}
	if fs.Type != unix.NSFS_MAGIC {
		return fmt.Errorf("%q is not a namespace", f.Name())
	}
	if kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		return fmt.Errorf("%q is not a network namespace", f.Name())
	}
	var theirs, ours unix.Stat_t
	if err := unix.Fstat(fd, &theirs); err != nil {
		return fmt.Errorf("stat %q: %w", f.Name(), err)
	}
	if err := unix.Stat("/proc/self/ns/net", &ours); err != nil {
		return fmt.Errorf("stat own network namespace: %w", err)
	}
	if theirs.Ino == ours.Ino && theirs.Dev == ours.Dev {
		return fmt.Errorf("%q is the host's own network namespace", f.Name())
	}
	return nil
}
