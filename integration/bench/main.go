// Bench measures what a container runtime waits for: ADD and DEL through the real plugin, beside the reference plugins and
// beside the least that the kernel has to be asked for, on the same machine in the same run, in turn, so that whatever
// disturbs one disturbs all. It then looks at the node process with many pods attached.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// buildEmpty builds a program that does nothing, as small as Go makes them.
func buildEmpty(dir string) (path string, err error) {
	source := filepath.Join(dir, "empty.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		return "", err
	}
	return filepath.Join(dir, "empty"), lab.Build(dir, dir, "-ldflags=-s -w", source)
}

// A plan says how much is measured.
type plan struct {
	rounds, bursts, parallel int
	pods                     int
	idle                     int // seconds
}

func run(ctx context.Context, args []string) (err error) {
	var p plan
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	root := flags.String("root", ".", "`DIR` of the source, to build the programs from")
	flags.IntVar(&p.rounds, "rounds", 100, "`NUMBER` of calls one after the other; a tenth of it of the slowest")
	flags.IntVar(&p.bursts, "bursts", 5, "`NUMBER` of times that many calls are made at once")
	flags.IntVar(&p.parallel, "parallel", 50, "`NUMBER` of calls at once")
	flags.IntVar(&p.pods, "pods", 250, "`NUMBER` of pods for the look at the node process")
	flags.IntVar(&p.idle, "idle", 60, "`SECONDS` of the look")
	if err := flags.Parse(args); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "gaggle-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// What the plugins write goes where it goes on a node: /run is a tmpfs.
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700"); err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH)) }()
	if err := lab.Build(*root, dir, "-trimpath", "-ldflags=-s -w", "./cmd/gaggle", "./cmd/gaggle-cni"); err != nil {
		return err
	}
	empty, err := buildEmpty(dir)
	if err != nil {
		return err
	}
	l, err := lab.New(ctx, lab.Options{Prefix: "gb", Dir: dir, Bin: dir}, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if _, err := l.StartRouter(ctx, "bird", nil); err != nil {
		return err
	}
	n := l.Nodes[0]
	if err := n.Start(ctx, n.Config(lab.Peering{Over4: true, Pool4: "10.244.0.0/22"})); err != nil {
		return err
	}
	ours := gaggle(n, filepath.Join(dir, "gaggle-cni"))
	b := &bench{lab: l, node: n, plan: p, candidates: []*candidate{
		{name: "gaggle, dual stack", way: ours, share: 1},
		{name: "ptp, IPv4 only", way: ptp(n.NS, dir, "10.99.0.0/16"), share: 1},
		{name: "ptp, dual stack", way: ptp(n.NS, dir, "10.98.0.0/16", "2001:db8:98::/64"), share: 10},
		{name: "netlink alone, dual stack", way: newFloor(n.NS), share: 1},
		{name: "start of gaggle's plugin", way: start{ours}, share: 1},
		{name: "start of an empty program", way: start{plugin{node: n.NS, path: empty}}, share: 1},
	}}
	if err := b.measure(ctx); err != nil {
		return err
	}
	if err := b.report(os.Stdout); err != nil {
		return err
	}
	return b.look(ctx, os.Stdout)
}
