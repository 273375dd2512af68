package integration

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// start runs a node process that is expected to end by itself, and returns its exit code and what it said.
func start(t *testing.T, n *lab.Node, config string, more ...string) (code int, stderr string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node.yaml")
	must(t, os.WriteFile(path, []byte(config), 0o600))
	cmd := exec.CommandContext(within(t, 20*time.Second), "nsenter", append([]string{
		"--net=" + n.NS.Path(), filepath.Join(bin, "gaggle"), "node",
		"--standalone", "--config", path, "--node-name", n.Name, "--run-dir", n.RunDir,
	}, more...)...)
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), string(out)
	}
	t.Fatalf("gaggle node: %v\n%s", err, out)
	return 0, ""
}

// A configuration that would cut the node off is refused before anything is changed, and says what to do. On a node that
// works, what comes to not fit is told and stops nothing, over a restart too.
func TestConfigurationThatDoesNotFitTheNode(t *testing.T) {
	need(t)
	t.Parallel()
	n := newLab(t, 1).Nodes[0]
	config := func(pool4 string) string { return n.Config(lab.Peering{Over4: true, Pool4: pool4}) }
	unchanged := snapshot(t, n)
	for _, pool := range []string{"198.51.100.0/24", "198.51.0.0/16", "198.51.100.128/25"} {
		code, said := start(t, n, config(pool))
		if pool != "198.51.100.128/25" { // the router is in it, which the text alone tells
			if code != 2 || !strings.Contains(said, "spec.bgp.peers[0].address") {
				t.Errorf("%s: exit code %d:\n%s", pool, code, said)
			}
			continue
		}
		want := `spec.pools: pool "pods4" (198.51.100.128/25) lies over the subnet of this node's address 198.51.100.11/24 on eth0`
		if code != 2 || !strings.Contains(said, want) {
			t.Errorf("exit code %d, want 2 and %q:\n%s", code, want, said)
		}
	}
	code, said := start(t, n, config(""), "--node-ip", "198.51.100.99")
	want := "--node-ip: the node has no address 198.51.100.99, which --node-ip says it has; it has 198.51.100.11 on eth0, 2001:db8:31::11 on eth0"
	if code != 1 || !strings.Contains(said, want) {
		t.Errorf("exit code %d, want 1 and %q:\n%s", code, want, said)
	}
	unchanged()

	must(t, n.Start(t.Context(), config("")))
	must(t, n.NS.IP(t.Context(), "link add late type bridge"))
	must(t, n.NS.IP(t.Context(), "addr add 10.244.1.1/24 dev late"))
	told := func() {
		t.Helper()
		must(t, lab.WaitFor(within(t, 20*time.Second), "the status to tell", func() bool {
			out, _ := n.Gaggle(context.WithoutCancel(t.Context()), "status") // it fails, as it must
			return strings.Contains(out, "lies over the subnet of this node's address 10.244.1.1/24")
		}))
	}
	told()
	must(t, n.Process().Terminate(within(t, 20*time.Second)))
	must(t, n.Restart(t.Context()))
	told()
}
