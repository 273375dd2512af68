package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// H01, H04, H05, H07, H09, H13: installed files work for the reference runtime at once, are replaced while they are used, come
// back when somebody removes them, and stay while a pod needs them. D20, H12, B-011.
func TestInstall(t *testing.T) {
	l, n := oneNode(t, lab.Peering{})
	binDir, confDir := filepath.Join(l.Dir(), "opt"), filepath.Join(l.Dir(), "net.d")
	places := []string{"--bin-dir", binDir, "--conf-dir", confDir}
	gaggle := func(args ...string) string {
		t.Helper()
		out, err := n.Gaggle(within(t, 30*time.Second), append(args, places...)...)
		must(t, err)
		return out
	}
	gaggle("install")
	conflist := filepath.Join(confDir, "10-gaggle.conflist")
	info, err := os.Stat(conflist)
	must(t, err)
	if info.Mode() != 0o600 {
		t.Errorf("mode of the conflist %v, want 0600", info.Mode())
	}
	// B-122: nothing is set-uid, or can be written to by others.
	for _, dir := range []string{binDir, confDir, n.RunDir} {
		if found := strings.TrimSpace(command(t, "find", dir, "-not", "-type", "l", "-perm", "/6022")); found != "" {
			t.Errorf("with modes that are too wide: %s", found)
		}
	}
	ns, err := l.Namespace(t.Context(), "installed")
	must(t, err)
	runtime := cnitool{n: n, confDir: confDir, plugins: binDir, network: "gaggle", container: ns}
	tool := func(command string) { runtime.call(t, command) }
	tool("add")
	out, err := n.Gaggle(t.Context(), append([]string{"uninstall"}, places...)...)
	if err == nil || !strings.Contains(err.Error()+out, "1 pods are attached") {
		t.Errorf("uninstall with a pod: %v %s", err, out)
	}

	// H04: another plugin takes its place again and again while it is called.
	replaced := make(chan error, 1)
	go func() {
		plugin, err := os.ReadFile(filepath.Join(bin, "gaggle-cni"))
		other := filepath.Join(l.Dir(), "other")
		for i := range 5 {
			err = errors.Join(err, os.WriteFile(other, append(plugin, byte(i)), 0o755)) // what follows a program does not matter to it
			out, failed := n.Gaggle(t.Context(), append([]string{"install", "--plugin", other}, places...)...)
			if !strings.Contains(out, "installed "+filepath.Join(binDir, "gaggle")) {
				failed = errors.Join(failed, fmt.Errorf("install did not replace the plugin: %q", out))
			}
			err = errors.Join(err, failed)
		}
		replaced <- err
	}()
	for done := false; !done; {
		tool("check")
		select {
		case err := <-replaced:
			must(t, err)
			done = true
		default:
		}
	}

	// H07: with --watch, what is removed comes back.
	watching, stop := context.WithCancel(t.Context())
	watched := make(chan error, 1)
	go func() {
		_, err := n.Gaggle(watching, append([]string{"install", "--watch"}, places...)...)
		watched <- err
	}()
	must(t, os.RemoveAll(confDir))
	must(t, os.Remove(filepath.Join(binDir, "gaggle")))
	back := within(t, 30*time.Second)
	for _, path := range []string{conflist, filepath.Join(binDir, "gaggle")} {
		for {
			if _, err := os.Stat(path); err == nil {
				break
			}
			select {
			case <-back.Done():
				t.Fatalf("%s does not come back", path)
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	stop()
	<-watched // it was killed
	tool("check")
	tool("del")
	gaggle("uninstall")
	for _, dir := range []string{binDir, confDir} {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left in %s are %v, %v", dir, left, err)
		}
	}
}
