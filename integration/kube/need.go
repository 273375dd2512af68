package kube

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// enable is the environment variable that lets these tests run.
const enable = "GAGGLE_KUBE"

// Need skips a test unless GAGGLE_KUBE=1 is set, as `make kube` does: building Kubernetes takes a quarter of an hour the first
// time, and a cluster beside all the other tests would disturb those that measure time. Once it is set, what is missing is a
// failure.
func Need(tb testing.TB) {
	tb.Helper()
	if os.Getenv(enable) != "1" {
		tb.Skipf("needs %s=1: run make kube", enable)
	}
	var missing []string
	if os.Geteuid() != 0 {
		missing = append(missing, "root")
	}
	for _, p := range []string{
		"etcd", "containerd", "runc", "ctr", "birdc", "vtysh", "ip", "nft", "iptables", "sysctl", "nsenter", lab.ReferencePlugins + "/ptp",
	} {
		if _, err := exec.LookPath(p); err != nil {
			missing = append(missing, p)
		}
	}
	if len(missing) > 0 {
		tb.Fatalf("needs %s: run make packages, as root", strings.Join(missing, ", "))
	}
}
