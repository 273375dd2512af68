package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
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
	// With -race, as the tests themselves: a race in the node process is a failure of the scenario that met it.
	for _, args := range [][]string{
		{"-race", "./cmd/gaggle"},
		{"./cmd/gaggle-cni", "./integration/demo"},
		{"-modfile=.ci/tools.mod", "github.com/containernetworking/cni/cnitool"},
		{"-modfile=.ci/tools.mod", "github.com/osrg/gobgp/v4/cmd/gobgp"},
	} {
		if err := lab.Build("..", dir, args...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
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

var labs atomic.Int32

// newLab makes a lab for one test.
func newLab(t *testing.T, nodes int) *lab.Lab {
	t.Helper()
	l, err := lab.New(t.Context(), lab.Options{
		Prefix: fmt.Sprintf("gt%d", labs.Add(1)), Dir: t.TempDir(), Bin: bin,
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
