package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// bin is where the programs under test are.
var bin string

func TestMain(m *testing.M) {
	os.Exit(mainCode(m))
}

func mainCode(m *testing.M) int {
	dir, err := os.MkdirTemp("", "gaggle-integration-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin = dir
	// With -race, as the tests themselves: a race in the node process is a failure of the scenario that met it. What is started
	// hundreds of times goes without.
	for _, args := range [][]string{
		{"-race", "./cmd/gaggle"},
		{"./cmd/gaggle-cni", "./integration/demo"},
		{"-o=" + filepath.Join(dir, quickDir) + "/", "./cmd/gaggle", "./cmd/gaggle-cni"},
		{"-tags=faults", "-o=" + filepath.Join(dir, faultyDir) + "/", "./cmd/gaggle", "./cmd/gaggle-cni"},
		{"-modfile=.ci/tools.mod", "github.com/containernetworking/cni/cnitool"},
		{"-modfile=.ci/tools.mod", "github.com/osrg/gobgp/v4/cmd/gobgp"},
	} {
		if err := lab.Build("..", dir, args...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	removeLabs()
	return m.Run()
}

// need skips a test that the machine has no means for; in CI that is a failure.
func need(t *testing.T, programs ...string) {
	t.Helper()
	missing := ""
	if os.Geteuid() != 0 {
		missing = "root"
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			missing = p
		}
	}
	switch {
	case missing == "":
	case os.Getenv("CI") != "":
		t.Fatalf("needs %s, and in CI everything must run", missing)
	default:
		t.Skipf("needs %s", missing)
	}
}

// quickDir is where in bin the programs are as they are shipped.
const quickDir = "quick"

// labs counts those of this process.
var labs atomic.Int32

// labPrefix is that of one lab of one run of the tests: several may run at once.
func labPrefix(pid, n int) string {
	id := strconv.FormatInt(int64(pid), 36)
	return "g" + strings.Repeat("0", 5-len(id)) + id + strconv.FormatInt(int64(n), 36)
}

// removeLabs removes what runs of the tests that were killed have left.
func removeLabs() {
	names, _ := filepath.Glob("/run/netns/g*-*") // the pattern is right
	for _, path := range names {
		prefix, _, _ := strings.Cut(filepath.Base(path), "-")
		if len(prefix) < 7 {
			continue
		}
		pid, err := strconv.ParseInt(prefix[1:6], 36, 64)
		if _, statErr := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil && os.IsNotExist(statErr) {
			lab.Remove(prefix)
		}
	}
}

// newLab makes a lab for one test.
func newLab(t *testing.T, nodes int) *lab.Lab {
	t.Helper()
	return newLabOf(t, nodes, bin)
}

// newLabOf makes a lab of other programs.
func newLabOf(t *testing.T, nodes int, programs string) *lab.Lab {
	t.Helper()
	l, err := lab.New(t.Context(), lab.Options{
		Prefix: labPrefix(os.Getpid(), int(labs.Add(1))), Dir: t.TempDir(), Bin: programs,
	}, nodes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range l.Nodes {
				if p := n.Process(); p != nil {
					t.Logf("%s:\n%s", n.Name, p.Tail(60))
				}
			}
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// within bounds a step of a test.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// must fails the test if a step failed.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// forRouters runs a scenario against each kind of router.
func forRouters(t *testing.T, scenario func(t *testing.T, kind string)) {
	t.Helper()
	for kind, program := range map[string]string{"bird": "birdc", "frr": "vtysh"} {
		t.Run(kind, func(t *testing.T) {
			need(t, program)
			t.Parallel()
			scenario(t, kind)
		})
	}
}

// command runs a program that must succeed and returns what it prints.
func command(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(within(t, 20*time.Second), args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out)
}

// snapshot looks at the node's network. What it returns checks that it is the same again.
func snapshot(t *testing.T, n *lab.Node) (unchanged func()) {
	t.Helper()
	return snapshotUpTo(t, n, "")
}

// snapshotUpTo is snapshot without what comes from a heading on.
func snapshotUpTo(t *testing.T, n *lab.Node, heading string) (unchanged func()) {
	t.Helper()
	look := func() string {
		t.Helper()
		text, err := n.NS.Snapshot(t.Context())
		must(t, err)
		if heading != "" {
			text, _, _ = strings.Cut(text, heading)
		}
		return text
	}
	before := look()
	return func() {
		t.Helper()
		after := look()
		if before != after {
			t.Errorf("the node's network has changed; before:\n%s\nafter:\n%s", before, after)
		}
	}
}

// cnitool runs the reference runtime on the node.
type cnitool struct {
	n                *lab.Node
	confDir, plugins string // NETCONFPATH and CNI_PATH
	network          string
	container        lab.NS
	capabilities     string // CAP_ARGS
}

func (c cnitool) call(t *testing.T, command string) (stdout string) {
	t.Helper()
	out, err := c.try(command)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// try is call for what may fail.
func (c cnitool) try(command string) (stdout string, err error) {
	cmd := exec.Command("nsenter", "--net="+c.n.NS.Path(), filepath.Join(bin, "cnitool"), command, c.network, c.container.Path())
	cmd.Env = append(os.Environ(), "NETCONFPATH="+c.confDir, "CNI_PATH="+c.plugins, "CAP_ARGS="+c.capabilities)
	var stderr strings.Builder
	cmd.Stderr = &stderr // plugins log to it
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("cnitool %s: %w: %s%s", command, err, out, stderr.String())
	}
	return string(out), nil
}
