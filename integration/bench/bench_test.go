// Package bench measures what a runtime waits for, beside the reference plugins on the same machine in the same run.
package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// reference is where the distribution installs the reference plugins.
const reference = "/usr/lib/cni"

// A runtime attaches and detaches one container after the other.
type runtime struct {
	name string
	call func(command string, ns lab.NS) error
}

// BenchmarkADD measures ADD as a runtime sees it, the start of the plugin included.
func BenchmarkADD(b *testing.B) { measure(b, "ADD") }

// BenchmarkDEL measures DEL in the same way.
func BenchmarkDEL(b *testing.B) { measure(b, "DEL") }

func measure(b *testing.B, what string) {
	b.Helper()
	dir := b.TempDir()
	if err := lab.Build("../..", dir, "-ldflags=-s -w", "./cmd/gaggle", "./cmd/gaggle-cni"); err != nil {
		b.Fatal(err)
	}
	l, err := lab.New(b.Context(), lab.Options{Prefix: "gb", Dir: dir, Bin: dir}, 1)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := l.Close(); err != nil {
			b.Error(err)
		}
	})
	n := l.Nodes[0]
	if err := n.Start(b.Context(), n.Config(lab.Peering{Over4: true})); err != nil {
		b.Fatal(err)
	}
	for _, r := range []runtime{
		{"gaggle", func(command string, ns lab.NS) error {
			return execute(n.NS, filepath.Join(dir, "gaggle-cni"), command, ns, map[string]any{
				"cniVersion": "1.0.0", "name": "gaggle", "type": "gaggle", "socket": n.Socket(),
			})
		}},
		{"ptp-IPv4-only", ptp(n.NS, dir, "10.99.0.0/16")},
		{"ptp", ptp(n.NS, dir, "10.98.0.0/16", "2001:db8:98::/64")},
	} {
		b.Run(r.name, func(b *testing.B) { run(b, l, r, what) })
	}
}

// ptp is the reference plugin of the same kind, with host-local for its addresses.
func ptp(node lab.NS, dir string, subnets ...string) func(string, lab.NS) error {
	var ranges [][]map[string]string
	for _, s := range subnets {
		ranges = append(ranges, []map[string]string{{"subnet": s}})
	}
	conf := map[string]any{
		"cniVersion": "1.0.0", "name": "ptp" + fmt.Sprint(len(subnets)), "type": "ptp",
		"ipam": map[string]any{"type": "host-local", "dataDir": filepath.Join(dir, "host-local"), "ranges": ranges},
	}
	return func(command string, ns lab.NS) error {
		return execute(node, filepath.Join(reference, "ptp"), command, ns, conf)
	}
}

func execute(node lab.NS, plugin, command string, ns lab.NS, conf map[string]any) error {
	stdin, err := json.Marshal(conf)
	if err != nil {
		return err
	}
	cmd := exec.Command("nsenter", "--net="+node.Path(), plugin)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=" + command, "CNI_CONTAINERID=" + ns.Name, "CNI_NETNS=" + ns.Path(),
		"CNI_IFNAME=eth0", "CNI_PATH=" + reference, "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=bench;K8S_POD_NAME=" + ns.Name,
	}
	cmd.Stdin = bytes.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", command, err, out)
	}
	return nil
}

func run(b *testing.B, l *lab.Lab, r runtime, what string) {
	b.Helper()
	var took []time.Duration
	b.ResetTimer()
	for range b.N {
		b.StopTimer()
		ns, err := l.Namespace(context.Background(), "c")
		if err != nil {
			b.Fatal(err)
		}
		for _, command := range []string{"ADD", "DEL"} {
			start := time.Now()
			if command == what {
				b.StartTimer()
			}
			if err := r.call(command, ns); err != nil {
				b.Fatal(err)
			}
			if command == what {
				b.StopTimer()
				took = append(took, time.Since(start))
			}
		}
		if err := l.RemoveNamespace(ns); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.StopTimer()
	slices.Sort(took)
	for name, share := range map[string]float64{"p50-ms": 0.5, "p90-ms": 0.9, "p99-ms": 0.99} {
		b.ReportMetric(float64(took[int(share*float64(len(took)-1))].Microseconds())/1000, name)
	}
}
