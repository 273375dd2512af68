package integration

import (
	"bufio"
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// The stock gobgp commands of versions 3 and 4 see the truth on one socket and change nothing. K18, K19, K20.
func TestStockGobgp(t *testing.T) {
	need(t, "gobgp")
	l, n := oneNode(t, lab.Peering{})
	awaitPools(t, l, n)
	target := "--target=unix://" + filepath.Join(n.RunDir, "gobgp.sock")
	for name, program := range map[string]string{"v3": "gobgp", "v4": filepath.Join(bin, "gobgp")} {
		t.Run(name, func(t *testing.T) {
			gobgp := func(args ...string) (string, error) {
				out, err := exec.CommandContext(within(t, 10*time.Second), program, append([]string{target}, args...)...).CombinedOutput()
				return string(out), err
			}
			for _, tt := range []struct{ args, want string }{
				{"global", "64501"},
				{"neighbor", "Establ"},
				{"neighbor " + lab.Router4, "64500"},
				{"neighbor " + lab.Router4, "graceful-restart:\tadvertised and received"},
				{"global rib", lab.Pool4(1)},
				{"global rib -a ipv6", lab.Pool6(1)},
				{"global rib summary", "Destination: 1"},
				{"neighbor " + lab.Router4 + " adj-out", lab.Node4(1)},
				{"neighbor " + lab.Router4 + " adj-out -a ipv6", lab.Node6(1)},
				{"neighbor " + lab.Router4 + " adj-in", "Network not in table"},
				{"policy", "export"},
				{"global policy", "REJECT"},
				{"policy prefix", lab.Pool4(1)},
				{"vrf", ""},
				{"bmp", ""},
				{"rpki server", ""},
			} {
				out, err := gobgp(strings.Fields(tt.args)...)
				if err != nil || !strings.Contains(out, tt.want) {
					t.Errorf("gobgp %s: %v, want %q in:\n%s", tt.args, err, tt.want, out)
				}
			}
			for _, args := range []string{
				"global rib add 203.0.113.0/24", "global rib del all", "global del all",
				"neighbor add 192.0.2.99 as 65000", "neighbor " + lab.Router4 + " reset", "neighbor " + lab.Router4 + " softresetout",
				"neighbor " + lab.Router4 + " shutdown", "neighbor del " + lab.Router4, "policy prefix add own-IPv4 0.0.0.0/0",
			} {
				out, err := gobgp(strings.Fields(args)...)
				if err == nil || !strings.Contains(out, "read-only") {
					t.Errorf("gobgp %s: %v, want a refusal:\n%s", args, err, out)
				}
			}
			if out, _ := gobgp("global", "rib"); strings.Contains(out, "203.0.113.0") || !strings.Contains(out, lab.Pool4(1)) {
				t.Errorf("the table was changed:\n%s", out)
			}
			monitor(t, program, target)
		})
	}
}

// monitor checks that the running table is shown at once, and that a CLI which goes away is no trouble.
func monitor(t *testing.T, program, target string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, target, "monitor", "global", "rib", "--current")
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	defer func() { _ = cmd.Wait() }() // it is killed by the context
	defer cancel()
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.Contains(lines.Text(), lab.Pool4(1)) {
			return
		}
	}
	t.Errorf("monitor global rib does not show %s", lab.Pool4(1))
}
