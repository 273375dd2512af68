// Gaggle is a CNI for Kubernetes nodes that speak BGP. One process per node serves CNI calls, allocates addresses, wires pods
// with veth pairs and host routes, and announces them with an embedded BGP speaker. This program is that process, and the
// operator's view of it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
)

// version is set by the linker.
var version = "dev"

// Exit codes.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2 // bad flags or a bad configuration: trying again does not help
)

// A command is one word after the program's name.
type command struct {
	name, summary string
	run           func(ctx context.Context, c *cmdline) error
}

func commands() []command {
	return []command{
		{"node", "run the node process", runNode},
		{"status", "show whether this node's network is as it must be", runStatus},
		{"pods", "list the attached pods and their addresses", runPods},
		{"announcements", "list what this node announces to its routers", runAnnouncements},
		{"peers", "list the BGP sessions", runPeers},
		{"routes", "list the routes this node has made", runRoutes},
		{"config", "show the configuration in force, and where each value is from", runConfig},
		{"explain", "tell what an address is made of and whose it is, or where a workload's addresses are", runExplain},
		{"install", "put plugin and conflist where the container runtime looks for them", runInstall},
		{"uninstall", "remove plugin and conflist", runUninstall},
		{"version", "print the version", runVersion},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := run(ctx, os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run does what the arguments say and returns the exit code.
func run(ctx context.Context, args []string, lookup func(string) (string, bool), stdout, stderr io.Writer) int {
	if len(args) == 0 {
		usage(stderr)
		return exitUsage
	}
	if name := args[0]; name == "help" || name == "-h" || name == "--help" {
		usage(stdout)
		return exitOK
	}
	name := args[0]
	if name == "--version" || name == "-version" {
		name = "version"
	}
	for _, cmd := range commands() {
		if cmd.name != name {
			continue
		}
		c := &cmdline{args: args[1:], lookup: lookup, stdout: stdout, stderr: stderr}
		c.flags = flag.NewFlagSet(cmd.name, flag.ContinueOnError)
		c.flags.SetOutput(io.Discard) // parse reports
		c.summary = cmd.summary
		return c.exit(cmd.run(ctx, c))
	}
	fmt.Fprintf(stderr, "gaggle: unknown command %q; gaggle help lists them\n", args[0])
	return exitUsage
}

func usage(w io.Writer) {
	fmt.Fprint(w, "Gaggle is a CNI for Kubernetes nodes that speak BGP.\n\nUsage: gaggle COMMAND [FLAGS]\n\nCommands:\n")
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, cmd := range commands() {
		fmt.Fprintf(tw, "  %s\t%s\n", cmd.name, cmd.summary)
	}
	_ = tw.Flush()
	fmt.Fprint(w, "\ngaggle COMMAND --help shows the flags of a command.\n")
}

// A cmdline is one call of a command.
type cmdline struct {
	summary        string
	args           []string
	flags          *flag.FlagSet
	lookup         func(string) (string, bool)
	stdout, stderr io.Writer

	maxOperands int      // how many arguments beside flags the command takes
	operandName string   // for the help
	operands    []string // what was given
}

// A usageError is the caller's mistake.
type usageError struct{ error }

// These are no errors to report.
var (
	errHelp     = errors.New("help")     // was asked for and given
	errProblems = errors.New("problems") // of the node have been shown
)

// parse reads the flags. What is not given comes from GAGGLE_* in the environment: --run-dir from GAGGLE_RUN_DIR.
func (c *cmdline) parse() error {
	var fromEnv error
	c.flags.VisitAll(func(f *flag.Flag) {
		if value, ok := c.lookup(envName(f.Name)); ok {
			if err := f.Value.Set(value); err != nil {
				fromEnv = errors.Join(fromEnv, fmt.Errorf("%s=%q: %w", envName(f.Name), value, err))
			}
		}
	})
	err := c.flags.Parse(c.args)
	for err == nil && c.flags.NArg() > 0 { // flags may stand behind
		c.operands = append(c.operands, c.flags.Arg(0))
		err = c.flags.Parse(c.flags.Args()[1:])
	}
	if errors.Is(err, flag.ErrHelp) {
		c.help()
		return errHelp
	}
	if err == nil && len(c.operands) > c.maxOperands {
		err = fmt.Errorf("unexpected argument %q", c.operands[c.maxOperands])
	}
	if err = errors.Join(fromEnv, err); err != nil {
		return usageError{fmt.Errorf("%w; gaggle %s --help lists the flags", err, c.flags.Name())}
	}
	return nil
}

func (c *cmdline) help() {
	fmt.Fprintf(c.stdout, "gaggle %s: %s\n", c.flags.Name(), c.summary)
	if c.operandName != "" {
		fmt.Fprintf(c.stdout, "\nUsage: gaggle %s %s [FLAGS]\n", c.flags.Name(), c.operandName)
	}
	flags := 0
	c.flags.VisitAll(func(*flag.Flag) { flags++ })
	if flags == 0 {
		return
	}
	fmt.Fprint(c.stdout, "\nFlags (each can be set as GAGGLE_* in the environment, --run-dir as GAGGLE_RUN_DIR):\n")
	c.flags.VisitAll(func(f *flag.Flag) {
		value, text := flag.UnquoteUsage(f)
		name := "--" + f.Name
		if len(f.Name) == 1 {
			name = "-" + f.Name
		}
		fmt.Fprintf(c.stdout, "  %s %s\n      %s", name, value, text)
		if f.DefValue != "" && f.DefValue != "false" {
			fmt.Fprintf(c.stdout, " (default %s)", f.DefValue)
		}
		fmt.Fprintln(c.stdout)
	})
}

// exit reports a command's error and returns the exit code.
func (c *cmdline) exit(err error) int {
	if err == nil || errors.Is(err, errHelp) {
		return exitOK
	}
	if errors.Is(err, errProblems) {
		return exitError
	}
	fmt.Fprintf(c.stderr, "gaggle %s: %v\n", c.flags.Name(), err)
	if _, ok := errors.AsType[usageError](err); ok {
		return exitUsage
	}
	return exitError
}

func envName(name string) string {
	return "GAGGLE_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

func runVersion(_ context.Context, c *cmdline) error {
	if err := c.parse(); err != nil {
		return err
	}
	fmt.Fprintln(c.stdout, "gaggle", version)
	return nil
}
