package main

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gaggle-cni/gaggle/cni/wire"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"gaggle-cni": main})
}

// The scripts of testdata/script call the plugin as a runtime does, with no node process behind it: A01, A02, A03, A10, A11, B01, B02,
// B05, B07, B08, B10, B25, B-123, C24, D05.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata/script"})
}

// environ is a complete environment for a command.
func environ(command string) map[string]string {
	return map[string]string{
		"CNI_COMMAND": command, "CNI_CONTAINERID": "c1", "CNI_NETNS": "/run/netns/c1", "CNI_IFNAME": "eth0",
		"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0",
	}
}

// A node process that accepts a call and goes away gives an error that names the pod, not a hang. B04, B25, B29.
func TestNodeProcessGoesAway(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "cni.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // ends with the listener
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	var stdout, stderr strings.Builder
	start := time.Now()
	code := run(environ("GC"), strings.NewReader(`{"cniVersion":"0.4.0","name":"n","type":"gaggle","socket":"`+socket+`"}`), &stdout, &stderr)
	var got wire.Error
	if err := json.Unmarshal([]byte(stdout.String()), &got); err != nil {
		t.Fatalf("stdout %q: %v", stdout.String(), err)
	}
	if code != 1 || got.Code != wire.CodeTryAgainLater || got.CNIVersion != "0.4.0" || !strings.Contains(got.Msg, "pod shop/web-0 (container c1): the node process went away") {
		t.Errorf("exit code %d, error %+v", code, got)
	}
	if took := time.Since(start); took > callTimeout/2 {
		t.Errorf("took %v", took)
	}
}

// D05: a DEL without a node process is kept, and succeeds.
func TestDelIsKept(t *testing.T) {
	dir := t.TempDir()
	conf := `{"cniVersion":"0.4.0","name":"n","type":"gaggle","socket":"` + filepath.Join(dir, "cni.sock") + `"}`
	for range 2 {
		var stdout, stderr strings.Builder
		if code := run(environ("DEL"), strings.NewReader(conf), &stdout, &stderr); code != 0 || stdout.String() != "" {
			t.Errorf("DEL: exit code %d, stdout %q; want success in silence", code, stdout.String())
		}
	}
	if paths, err := wire.Queued(filepath.Join(dir, wire.QueueDir)); err != nil || len(paths) != 1 {
		t.Errorf("%v, %v wait; want one", paths, err)
	}
}

// A DEL that is kept just when the node process comes is done by it, and no longer kept.
func TestDelFindsTheNodeProcessAfterAll(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "cni.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // ends with the listener
		for n := 0; ; n++ {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			if n > 0 { // the first finds a process that is about to go
				_, _, _ = wire.ReadRequest(conn)
				_ = wire.WriteResponse(conn, wire.Response{Protocol: wire.Version})
			}
			conn.Close()
		}
	}()
	var stdout, stderr strings.Builder
	code := run(environ("DEL"), strings.NewReader(`{"cniVersion":"0.4.0","name":"n","socket":"`+socket+`"}`), &stdout, &stderr)
	if code != 0 || stdout.String() != "" {
		t.Errorf("exit code %d, stdout %q", code, stdout.String())
	}
	if paths, err := wire.Queued(filepath.Join(dir, wire.QueueDir)); err != nil || len(paths) != 0 {
		t.Errorf("%v, %v wait; want none", paths, err)
	}
}

// G03: STATUS answers within two seconds although the node process hangs.
func TestStatusOfANodeProcessThatHangs(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "cni.sock")
	l, err := net.Listen("unix", socket) // connections wait in its backlog
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	env := map[string]string{"CNI_COMMAND": "STATUS"} // G08
	var stdout, stderr strings.Builder
	start := time.Now()
	code := run(env, strings.NewReader(`{"cniVersion":"1.1.0","name":"n","socket":"`+socket+`"}`), &stdout, &stderr)
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("took %v", took)
	}
	if code != 1 || !strings.Contains(stdout.String(), `"cniVersion":"1.1.0","code":50,"msg":"node: `) {
		t.Errorf("exit code %d, stdout %s", code, stdout.String())
	}
}

// B13: standard input that is endless is refused and not stored.
func TestEndlessConfig(t *testing.T) {
	var stdout, stderr strings.Builder
	code := run(environ("DEL"), endless{}, &stdout, &stderr)
	if code != 1 || !strings.Contains(stdout.String(), "more than") {
		t.Errorf("exit code %d, stdout %q", code, stdout.String())
	}
}

// B14: standard input that nobody closes is given up.
func TestConfigThatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stdin, runtime := io.Pipe()
		defer runtime.Close()
		start := time.Now()
		_, err := readAll(stdin)
		if took := time.Since(start); err == nil || took != stdinTimeout {
			t.Errorf("readAll() = %v after %v, want an error after %v", err, took, stdinTimeout)
		}
	})
}

// B10: standard input that cannot be read is told from one that is wrong.
func TestConfigThatCannotBeRead(t *testing.T) {
	var stdout, stderr strings.Builder
	code := run(environ("DEL"), iotest.ErrReader(errors.New("gone bad")), &stdout, &stderr)
	if code != 1 || !strings.Contains(stdout.String(), `"code":5,"msg":"read network configuration: gone bad"`) {
		t.Errorf("exit code %d, stdout %s", code, stdout.String())
	}
}

// B04: a plugin that is told to end says so in JSON, whatever it was waiting for.
func TestSignal(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "cni.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		for _, command := range []string{"GC", "DEL"} {
			plugin := exec.Command("gaggle-cni")
			for key, value := range environ(command) {
				plugin.Env = append(plugin.Env, key+"="+value)
			}
			plugin.Stdin = strings.NewReader(`{"cniVersion":"1.1.0","name":"n","socket":"` + socket + `"}`)
			var stdout strings.Builder
			plugin.Stdout = &stdout
			if err := plugin.Start(); err != nil {
				t.Fatal(err)
			}
			conn, err := l.AcceptUnix()
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := wire.ReadRequest(conn); err != nil {
				t.Error(err)
			}
			if err := plugin.Process.Signal(sig); err != nil {
				t.Error(err)
			}
			err = plugin.Wait()
			conn.Close()
			var got wire.Error
			if jsonErr := json.Unmarshal([]byte(stdout.String()), &got); err == nil || jsonErr != nil || got.Code != wire.CodeTryAgainLater || !strings.Contains(got.Msg, sig.String()) {
				t.Errorf("%s at %v: %v, stdout %q; want code 11 that names the signal", command, sig, err, stdout.String())
			}
		}
	}
}

// B24: a DEL that failed does not say what a runtime takes for success, whatever was the matter.
func TestFailedDelIsNotTakenForSuccess(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "cni.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // ends with the listener
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			_, _, _ = wire.ReadRequest(conn)
			_ = wire.WriteResponse(conn, wire.Response{Protocol: wire.Version, Error: &wire.Error{
				Code: wire.CodeKernel, Msg: "remove link: Link not found", Details: "open /x: no such file or directory",
			}})
			conn.Close()
		}
	}()
	for command, says := range map[string]bool{"DEL": false, "GC": true} {
		var stdout, stderr strings.Builder
		code := run(environ(command), strings.NewReader(`{"cniVersion":"1.1.0","name":"n","socket":"`+socket+`"}`), &stdout, &stderr)
		for _, words := range []string{"not found", "no such file or directory"} {
			if code != 1 || strings.Contains(stdout.String(), words) != says {
				t.Errorf("%s: exit code %d, stdout %s; want %q in it: %v", command, code, stdout.String(), words, says)
			}
		}
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}
