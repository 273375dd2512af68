package kube_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gaggle-cni/gaggle/integration/kube"
	"github.com/gaggle-cni/gaggle/integration/lab"
)

// victim tells this program that it is there to be killed.
const victim = "GAGGLE_KUBE_VICTIM"

// up is the line with which the victim says that its cluster runs.
const up = "cluster is up: "

// TestVictim is the process that TestKilled kills.
func TestVictim(t *testing.T) {
	if os.Getenv(victim) == "" {
		t.Skip("only as a child of TestKilled")
	}
	c := kube.Start(t, kube.Options{})
	prefix, _, _ := strings.Cut(c.Client.Name, "-")
	_, err := os.Stdout.WriteString(up + prefix + " " + filepath.Dir(filepath.Dir(c.Guest())) + "\n")
	must(t, err)
	<-t.Context().Done()
}

// Of a test that is interrupted, or killed, nothing is left but logs: no process, namespace, mount, cgroup or other file.
func TestKilled(t *testing.T) {
	kube.Need(t)
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			prefix, dir := killVictim(t, signal)
			must(t, lab.WaitFor(within(t, patience), "the guard to remove "+prefix, func() bool { return len(leftovers(prefix, dir)) == 0 }))
			must(t, os.RemoveAll(dir))
		})
	}
}

// killVictim starts a process with a cluster and kills it as soon as that is up.
func killVictim(t *testing.T, signal syscall.Signal) (prefix, dir string) {
	t.Helper()
	cmd := exec.CommandContext(within(t, 3*patience), os.Args[0], "-test.run=^TestVictim$", "-test.v")
	cmd.Env = append(os.Environ(), victim+"=1")
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	defer func() { _ = cmd.Wait() }() // it was killed
	defer func() { _ = cmd.Process.Kill() }()
	var said []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said = append(said, lines.Text())
		if rest, ok := strings.CutPrefix(lines.Text(), up); ok {
			prefix, dir, _ = strings.Cut(rest, " ")
			if len(leftovers(prefix, dir)) == 0 {
				t.Error("a cluster that runs leaves no traces: the test looks in the wrong places")
			}
			must(t, cmd.Process.Signal(signal))
			return prefix, dir
		}
	}
	t.Fatalf("the cluster did not start:\n%s", strings.Join(said, "\n"))
	return "", ""
}

// leftovers finds what there is of a cluster: namespaces, cgroups, files but the logs, and processes in its directory or started
// from it.
func leftovers(prefix, dir string) (found []string) {
	for _, pattern := range []string{"/run/netns/" + prefix + "-*", "/sys/fs/cgroup/" + prefix + "-*", "/sys/fs/cgroup/*/" + prefix + "-*", dir + "/*"} {
		paths, _ := filepath.Glob(pattern) // the patterns are right
		found = append(found, paths...)
	}
	found = slices.DeleteFunc(found, func(path string) bool { return path == filepath.Join(dir, "logs") })
	processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range processes {
		if line, err := os.ReadFile(path); err == nil && (strings.Contains(string(line), dir) || strings.Contains(string(line), prefix+"-")) {
			found = append(found, path)
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	if strings.Contains(string(mounts), dir) {
		found = append(found, "a mount")
	}
	return found
}
