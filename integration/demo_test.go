package integration

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const demoPrefix = "gtdemo"

func demo(t *testing.T) (cmd *exec.Cmd, dir string) {
	t.Helper()
	need(t)
	dir = filepath.Join(t.TempDir(), "d")
	cmd = exec.CommandContext(within(t, 90*time.Second), filepath.Join(bin, "demo"), "-bin", bin, "-dir", dir, "-prefix", demoPrefix)
	return cmd, dir
}

// tidy checks that a demo left nothing on the machine.
func tidy(t *testing.T, dir string) {
	t.Helper()
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s: %v, want it removed", dir, err)
	}
	left, err := filepath.Glob("/run/netns/" + demoPrefix + "-*")
	must(t, err)
	if len(left) > 0 {
		t.Errorf("namespaces left: %v", left)
	}
}

// The demo tells its whole story and removes everything.
func TestDemo(t *testing.T) {
	cmd, dir := demo(t)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Everything has been removed") {
		t.Errorf("demo: %v\n%s", err, out)
	}
	tidy(t, dir)
}

// An interrupt, and a program that does not work, end the demo with an error, and everything is removed all the same.
func TestDemoInterrupted(t *testing.T) {
	t.Run("Ctrl-C", func(t *testing.T) {
		cmd, dir := demo(t)
		stdout, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		lines := bufio.NewScanner(stdout)
		for lines.Scan() && !strings.HasPrefix(lines.Text(), "3. ") {
		}
		must(t, cmd.Process.Signal(syscall.SIGINT))
		for lines.Scan() {
		}
		if cmd.Wait() == nil {
			t.Error("an interrupted demo says it went well")
		}
		tidy(t, dir)
	})
	t.Run("no plugin", func(t *testing.T) {
		cmd, dir := demo(t)
		programs := t.TempDir()
		for _, name := range []string{"gaggle", "demo"} {
			must(t, os.Symlink(filepath.Join(bin, name), filepath.Join(programs, name)))
		}
		cmd.Args[2] = programs
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "ADD of pod a on node1") {
			t.Errorf("demo: %v\n%s", err, out)
		}
		tidy(t, dir)
	})
	t.Run("kept and removed", func(t *testing.T) {
		cmd, dir := demo(t)
		cmd.Args = append(cmd.Args, "-keep")
		out, err := cmd.CombinedOutput()
		must(t, err)
		if _, err := os.Stat(dir); err != nil || !strings.Contains(string(out), "Look around") {
			t.Errorf("nothing was kept: %v\n%s", err, out)
		}
		remove := exec.CommandContext(context.WithoutCancel(t.Context()), cmd.Path, append(cmd.Args[1:], "-remove")...)
		must(t, remove.Run())
		tidy(t, dir)
	})
}
