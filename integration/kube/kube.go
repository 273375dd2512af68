// Package kube brings up a real Kubernetes cluster on one machine, for tests: API server, controller manager, scheduler and
// etcd, nodes with containerd and kubelet, each in namespaces of its own, and around them a network with BGP routers and a
// client. There is no registry, no virtual machine and no systemd, and no CNI: that is what a test brings. Everything is
// removed at the end of the test, also of one that is interrupted or killed.
package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// Options describe a cluster.
type Options struct {
	Nodes      int    // default 1
	ToRs       int    // routers of the rack, 1 or 2; default 1
	Router     string // the ToRs' software, bird or frr; default bird
	Containerd int    // major version: 1 is the distribution's, 2 is built; default 1
	KubeProxy  bool   // run kube-proxy (nftables) on the nodes, which takes links that begin with ggl for pods'
}

// withDefaults fills in what is not given.
func (o Options) withDefaults() (Options, error) {
	o.Nodes, o.ToRs = max(o.Nodes, 1), max(o.ToRs, 1)
	if o.Router == "" {
		o.Router = "bird"
	}
	if o.Containerd == 0 {
		o.Containerd = 1
	}
	var errs []error
	if o.Nodes > maxNodes {
		errs = append(errs, fmt.Errorf("nodes: %d: want %d at most", o.Nodes, maxNodes))
	}
	if o.ToRs > maxToRs {
		errs = append(errs, fmt.Errorf("ToRs: %d: want %d at most", o.ToRs, maxToRs))
	}
	if o.Router != "bird" && o.Router != "frr" {
		errs = append(errs, fmt.Errorf("router %q: want bird or frr", o.Router))
	}
	if o.Containerd != 1 && o.Containerd != 2 {
		errs = append(errs, fmt.Errorf("containerd %d: want 1 or 2", o.Containerd))
	}
	return o, errors.Join(errs...)
}

// upTimeout bounds the start of a cluster whose programs are there.
const upTimeout = 4 * time.Minute

// A Cluster is one network with one Kubernetes in it.
type Cluster struct {
	// Client is a host behind the routers, ControlPlane the one with the API server, Core the router before both.
	Client, ControlPlane, Core lab.NS
	Nodes                      []*Node
	ToRs                       []*ToR

	o        Options
	lab      *lab.Lab
	dir      string
	prefix   string // of the names of namespaces and cgroups
	programs programs
	guard    *guard
}

// Start brings up a cluster, with its nodes registered and not ready, for as long as the test runs. Without root, programs or
// permission to build them the test is skipped: see [Need].
func Start(tb testing.TB, o Options) *Cluster {
	tb.Helper()
	Need(tb)
	p, err := findPrograms(tb.Context(), o.Containerd, tb.Logf)
	if err != nil {
		tb.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "gaggle-kube-") //nolint:usetesting // the logs of a failure outlive the test
	if err != nil {
		tb.Fatal(err)
	}
	c := &Cluster{dir: dir, programs: p}
	// Registered first, so that what failed to start is removed too.
	tb.Cleanup(func() {
		tb.Helper()
		if tb.Failed() {
			c.writeState()
		}
		if err := c.close(tb.Failed()); err != nil {
			tb.Error(err)
		}
		if tb.Failed() {
			tb.Logf("the logs are in %s", c.logs())
		}
	})
	begin := time.Now()
	ctx, cancel := context.WithTimeout(tb.Context(), upTimeout)
	defer cancel()
	if err := c.start(ctx, o); err != nil {
		tb.Fatalf("start the cluster: %v", err)
	}
	tb.Logf("%d nodes registered after %v", len(c.Nodes), time.Since(begin).Round(time.Millisecond))
	return c
}

func (c *Cluster) start(ctx context.Context, o Options) (err error) {
	if c.o, err = o.withDefaults(); err != nil {
		return err
	}
	c.prefix = newPrefix()
	if c.lab, err = lab.Empty(lab.Options{Prefix: c.prefix, Dir: c.logs()}); err != nil {
		return err
	}
	if err := c.programs.buildGuest(filepath.Join(c.dir, "bin")); err != nil {
		return err
	}
	if c.guard, err = startGuard(c.programs.guard, c.prefix, c.dir); err != nil {
		return err
	}
	if err := c.buildNetwork(ctx); err != nil {
		return err
	}
	if err := c.writeKeys(); err != nil {
		return err
	}
	// The nodes' runtimes start while the API server does.
	var both errgroup.Group
	both.Go(func() error { return c.startControlPlane(ctx) })
	both.Go(func() error { return c.startRuntimes(ctx) })
	if err := both.Wait(); err != nil {
		return err
	}
	return c.startKubelets(ctx)
}

// close removes everything but, if they are wanted, the logs.
func (c *Cluster) close(keepLogs bool) error {
	var errs []error
	if c.lab != nil {
		errs = append(errs, c.lab.Close())
	}
	switch {
	case c.guard != nil:
		errs = append(errs, c.guard.remove())
	case c.prefix != "": // it did not come so far
		errs = append(errs, Remove(c.prefix, c.dir))
	}
	if !keepLogs {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	return errors.Join(errs...)
}

func (c *Cluster) logs() string { return filepath.Join(c.dir, "logs") }

// etc is a file of the cluster's configuration.
func (c *Cluster) etc(name string) string { return filepath.Join(c.dir, "etc", name) }

// Node returns node i, counted from 1, as its name is.
func (c *Cluster) Node(i int) *Node { return c.Nodes[i-1] }

// ToR returns router i, counted from 1.
func (c *Cluster) ToR(i int) *ToR { return c.ToRs[i-1] }

// ClientExec runs a command on the client and returns what it prints.
func (c *Cluster) ClientExec(ctx context.Context, args ...string) (string, error) {
	return c.Client.Exec(ctx, args...)
}

// Guest is the program that the guest image holds; on the client and the nodes it is the client for its own server.
func (c *Cluster) Guest() string { return filepath.Join(c.dir, "bin", "guest") }
