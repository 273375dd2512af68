package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A Process runs in a namespace until it ends or the lab is closed.
type Process struct {
	Log  string // the file with its output
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error
}

// Start starts a long-running command in a namespace. Its output goes to a file in the lab's directory.
func (l *Lab) Start(ns NS, name string, args ...string) (*Process, error) {
	full := ns.command(args...)
	return l.launch(name, exec.Command(full[0], full[1:]...), func(start func() error) error { return start() })
}

// launch starts a command from where in calls its argument.
func (l *Lab) launch(name string, cmd *exec.Cmd, in func(start func() error) error) (*Process, error) {
	path := filepath.Join(l.o.Dir, name+".log")
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own
	p := &Process{Log: path, cmd: cmd, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if p.cmd.SysProcAttr == nil {
		p.cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	// A group of its own, so that an interrupt at the terminal reaches the lab and not its parts.
	p.cmd.SysProcAttr.Setpgid = true
	if err := in(p.cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", strings.Join(cmd.Args, " "), err)
	}
	go func() { // ends with the process
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.processes = append(l.processes, p)
	return p, nil
}

// PID returns the process's id; nsenter has replaced itself by the program.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Resident returns the KiB of memory that are resident (proc_pid_status(5), VmRSS).
func (p *Process) Resident() (int, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	var kib int
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		return 0, fmt.Errorf("no VmRSS in %q: %w", status, err)
	}
	return kib, nil
}

// Kill ends the process and its children as a crash would, and waits.
func (p *Process) Kill() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // it may have ended
	<-p.done
}

// Terminate asks the process to end, and waits.
func (p *Process) Terminate(ctx context.Context) error {
	_ = syscall.Kill(p.cmd.Process.Pid, syscall.SIGTERM)
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("%s goes on after SIGTERM: %w", p.cmd.Args[0], ctx.Err())
	}
}

// Ended tells whether the process has ended by itself.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Tail returns the last lines of the output.
func (p *Process) Tail(n int) string {
	data, _ := os.ReadFile(p.Log)
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(len(lines)-n, 0):], "\n")
}

// readyTimeout bounds the start of a program.
const readyTimeout = 15 * time.Second

// await waits until a program that was started can be used.
func (p *Process) await(ctx context.Context, what string, ready func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return p.Await(ctx, what, ready)
}

// Await waits until a program that was started can be used, for as long as the context allows.
func (p *Process) Await(ctx context.Context, what string, ready func() bool) error {
	err := WaitFor(ctx, what, func() bool { return ready() || p.Ended() })
	if err == nil && p.Ended() {
		err = fmt.Errorf("%s ended at once: %w", what, p.err)
	}
	if err != nil {
		return fmt.Errorf("%w; its last words:\n%s", err, p.Tail(20))
	}
	return nil
}
