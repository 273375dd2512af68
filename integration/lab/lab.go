// Package lab builds networks of namespaces on one machine: a router with a rack of nodes on one side and a client on the
// other, each node running the real program. Tests and the demo use it. Everything it makes carries the lab's prefix and is
// removed by Close; what an earlier lab of the same prefix left behind is removed at the start.
package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Bounds of commands.
const (
	commandTimeout = 20 * time.Second // of those that only configure something
	longTimeout    = 2 * time.Minute  // of any on a machine, where some load images
)

// Options describe a lab.
type Options struct {
	Prefix string // of the namespaces' names; at most 8 characters
	Dir    string // for files, logs and run directories; made if it is not there
	Bin    string // where gaggle and gaggle-cni are
}

// ReferencePlugins is where the distribution installs the reference CNI plugins.
const ReferencePlugins = "/usr/lib/cni"

// A Lab is one network.
type Lab struct {
	o Options

	Router, Client NS
	Nodes          []*Node

	mu         sync.Mutex
	namespaces []NS
	processes  []*Process
}

// New makes the router, the client and the nodes, wired and addressed as in addresses.go, with nothing running on them.
func New(ctx context.Context, o Options, nodes int) (l *Lab, err error) {
	if l, err = Empty(o); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	if err := l.build(ctx, nodes); err != nil {
		return nil, err
	}
	return l, nil
}

// Empty makes a lab with nothing in it, for those who build another network.
func Empty(o Options) (l *Lab, err error) {
	if len(o.Prefix) == 0 || len(o.Prefix) > 8 {
		return nil, fmt.Errorf("prefix %q: want 1 to 8 characters", o.Prefix)
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("namespaces need root: run with sudo")
	}
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}
	Remove(o.Prefix)
	return &Lab{o: o}, nil
}

// Close ends every process and removes every namespace. It can be called again.
func (l *Lab) Close() error {
	l.mu.Lock()
	processes, namespaces := l.processes, l.namespaces
	l.processes, l.namespaces = nil, nil
	l.mu.Unlock()
	var errs []error
	for _, p := range processes {
		p.Kill()
	}
	for _, ns := range namespaces {
		errs = append(errs, ns.remove())
	}
	return errors.Join(errs...)
}

// Dir is where the lab's files are.
func (l *Lab) Dir() string { return l.o.Dir }

// Namespace makes a network namespace with its loopback up.
func (l *Lab) Namespace(ctx context.Context, name string) (NS, error) {
	ns := NS{Name: l.o.Prefix + "-" + name}
	if err := run(ctx, "ip", "netns", "add", ns.Name); err != nil {
		return NS{}, err
	}
	l.mu.Lock()
	l.namespaces = append(l.namespaces, ns)
	l.mu.Unlock()
	return ns, ns.IP(ctx, "link set lo up")
}

// Namespaces are those that the lab has made.
func (l *Lab) Namespaces() []NS {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.namespaces)
}

// RemoveNamespace removes a namespace before the lab ends, as a runtime does with a pod's.
func (l *Lab) RemoveNamespace(ns NS) error {
	l.mu.Lock()
	for i, other := range l.namespaces {
		if other == ns {
			l.namespaces = append(l.namespaces[:i], l.namespaces[i+1:]...)
			break
		}
	}
	l.mu.Unlock()
	return ns.remove()
}

// Remove removes the namespaces of a lab that nobody closed, and what runs in them.
func Remove(prefix string) {
	entries, err := os.ReadDir(netnsDir)
	if err != nil {
		return // there never was one
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix+"-") {
			_ = NS{Name: e.Name()}.remove() // what cannot be removed fails to be made, and says so
		}
	}
}

// run runs a command and turns its output into the error.
func run(ctx context.Context, args ...string) error {
	_, err := output(ctx, args...)
	return err
}

func output(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var stderr strings.Builder // apart: ip complains there of namespaces of others that end just then
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		said := strings.TrimSpace(string(out) + stderr.String())
		return string(out) + stderr.String(), fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, said)
	}
	return string(out), nil
}

// WaitFor asks until the answer is yes, for as long as the context allows.
func WaitFor(ctx context.Context, what string, ok func() bool) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for !ok() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, context.Cause(ctx))
		}
	}
	return nil
}
