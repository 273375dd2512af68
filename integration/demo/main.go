// Demo shows a whole network at work on one machine: two nodes that run the real node process, pods attached by the real
// plugin, a router that speaks BGP with the nodes, and a client behind it. All of it lives in network namespaces, and is
// removed at the end, after a failure and after Ctrl-C.
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
	"time"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// demoTimeout bounds the whole show. It takes a few seconds.
const demoTimeout = 2 * time.Minute

func main() {
	signal.Ignore(syscall.SIGPIPE) // a reader who has seen enough must not keep us from tidying up
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	bin := flags.String("bin", "bin", "`DIR` with gaggle, gaggle-cni and this program")
	dir := flags.String("dir", "/run/gaggle-demo", "`DIR` for logs, sockets and configuration")
	prefix := flags.String("prefix", "gaggle", "`PREFIX` of the namespaces' names; what is left of an earlier demo of the same is removed")
	keep := flags.Bool("keep", false, "keep everything at the end and tell how to look around")
	remove := flags.Bool("remove", false, "only remove what an earlier demo kept")
	router := flags.Bool("router", false, "be the router; the demo calls itself with this")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case *router:
		return runRouter(ctx, *dir)
	case *remove:
		lab.Remove(*prefix)
		if err := os.RemoveAll(*dir); err != nil {
			return err
		}
		fmt.Println("Nothing of a demo is left.")
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, demoTimeout)
	defer cancel()
	programs, err := filepath.Abs(*bin)
	if err != nil {
		return err
	}
	return show(ctx, &story{bin: programs, dir: *dir, prefix: *prefix, out: os.Stdout}, *keep)
}

// show tells the story and tidies up, however it ends.
func show(ctx context.Context, s *story, keep bool) (err error) {
	if err := os.RemoveAll(s.dir); err != nil {
		return err
	}
	s.lab, err = lab.New(ctx, lab.Options{Prefix: s.prefix, Dir: s.dir, Bin: s.bin}, 2)
	if err != nil {
		return err
	}
	err = s.tell(ctx)
	if keep {
		s.lookAround()
		return err
	}
	if err != nil {
		s.lastWords() // the logs are about to go
	}
	err = errors.Join(err, s.lab.Close(), os.RemoveAll(s.dir))
	if err == nil {
		s.say("\nEverything has been removed. make demo KEEP=1 keeps it to look around.")
	}
	return err
}
