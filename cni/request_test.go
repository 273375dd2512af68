package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gaggle-cni/gaggle/cni/wire"
)

// nothing answers every call and says which it was.
func nothing(calls chan<- string) handler {
	called := func(_ context.Context, r Request) error { calls <- r.ID.String(); return nil }
	return handler{
		add: func(ctx context.Context, r Request) (Result, error) { calls <- r.ID.String(); return dualStack(ctx, r) },
		del: called, check: called,
		gc:    func(_ context.Context, network string, ids []ID) error { calls <- fmt.Sprint(network, ids); return nil },
		ready: func(context.Context) error { calls <- "ready"; return nil },
	}
}

// A08: a command that the version of the configuration does not have is refused, each other is served. B03: only ADD says
// anything. G08: GC and STATUS need none of the container's variables.
func TestCommandsByVersion(t *testing.T) {
	calls := make(chan string, 1)
	socket := serve(t, nothing(calls))
	for command, since := range map[string]string{"ADD": "0.3.1", "DEL": "0.3.1", "CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"} {
		for _, version := range wire.SupportedVersions {
			t.Run(command+" "+version, func(t *testing.T) {
				r := addRequest(fmt.Sprintf(`{"cniVersion":%q,"name":"net","cni.dev/valid-attachments":[],"prevResult":{"ips":[]}}`, version))
				r.Command = command
				if command == "GC" || command == "STATUS" {
					r.ContainerID, r.IfName, r.Args, r.Netns = "", "", "", ""
				}
				resp := ask(t, socket, r, devNull(t))
				if version < since {
					if resp.Error == nil || resp.Error.Code != wire.CodeIncompatibleVersion || !strings.Contains(resp.Error.Details, since) {
						t.Errorf("%+v, want code 1 that names version %s", resp.Error, since)
					}
					return
				}
				if resp.Error != nil {
					t.Fatal(resp.Error)
				}
				<-calls
				if (len(resp.Result) > 0) != (command == "ADD") {
					t.Errorf("result %s", resp.Result)
				}
			})
		}
	}
}

// F01, F02: a GC that does not say what is in use, or not clearly, removes nothing.
func TestGCList(t *testing.T) {
	calls := make(chan string, 1)
	socket := serve(t, nothing(calls))
	for _, tt := range []struct{ name, list, want, bad string }{
		{"some", `,"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"},{"containerID":"c1","ifname":"net1"}]`, "net[net/c1/eth0 net/c1/net1]", ""},
		{"none", `,"cni.dev/valid-attachments":[]`, "net[]", ""},
		{"absent", ``, "", "is missing: nothing was removed"},
		{"null", `,"cni.dev/valid-attachments":null`, "", "is missing"},
		{"no list", `,"cni.dev/valid-attachments":{}`, "", "valid-attachments"},
		{"nameless", `,"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"},{"containerID":"","ifName":"a/b"}]`, "", "valid-attachments[1].containerID is empty"},
		{"another spelling", `,"cni.dev/valid-attachments":[{"id":"c1"}]`, "", "valid-attachments[0].containerID is empty"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			resp := ask(t, socket, wire.Request{Protocol: wire.Version, Command: "GC", Config: json.RawMessage(`{"cniVersion":"1.1.0","name":"net"` + tt.list + `}`)}, nil)
			if tt.bad == "" {
				if got := <-calls; resp.Error != nil || got != tt.want {
					t.Errorf("GC of %s, %v; want %s", got, resp.Error, tt.want)
				}
				return
			}
			if resp.Error == nil || resp.Error.Code != wire.CodeInvalidConfig || !strings.Contains(resp.Error.Msg, tt.bad) {
				t.Errorf("%+v, want code 7 with %q", resp.Error, tt.bad)
			}
		})
	}
}

// E01, E04: CHECK needs the result of ADD, in any version, with whatever other plugins have added.
func TestPrevious(t *testing.T) {
	want := Previous{
		MACs: map[string]string{"ggl1": "02:00:00:00:00:01", "eth0": "02:00:00:00:00:09", "bwp1": ""},
		IPs:  []netip.Addr{netip.MustParseAddr("2001:db8::5"), netip.MustParseAddr("10.0.0.5")},
	}
	result := func(four, six string) string {
		return `{"interfaces":[{"name":"ggl1","mac":"02:00:00:00:00:01"},{"name":"eth0","mac":"02:00:00:00:00:09","sandbox":"/n"},{"name":"bwp1"},` +
			`{"name":"eth0","mac":"02:00:00:00:00:77"},{"name":"lo","sandbox":"/n"}],` +
			`"ips":[{"address":"2001:db8::5/128","interface":1` + six + `},{"address":"10.0.0.5/32","interface":1` + four + `}]}`
	}
	for _, version := range []string{"0.4.0", "1.0.0", "1.1.0"} {
		prev := result("", "")
		if version == "0.4.0" {
			prev = result(`,"version":"4"`, `,"version":"6"`)
		}
		got, err := parsePrevious(Conf{CNIVersion: version, PrevResult: json.RawMessage(prev)}, "eth0")
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); err != nil || diff != "" {
			t.Errorf("version %s: %v (-want +got):\n%s", version, err, diff)
		}
	}
	for _, bad := range []string{"", "null", "5", `{"ips":[{"address":"x"}]}`} {
		if _, err := parsePrevious(Conf{CNIVersion: "1.0.0", PrevResult: json.RawMessage(bad)}, "eth0"); err == nil || !strings.Contains(err.Error(), "prevResult") {
			t.Errorf("prevResult %q: %v, want an error that names it", bad, err)
		}
	}
}

// D05: what was kept is done before an ADD is, and once. What fails stays, what is not readable goes.
func TestReplay(t *testing.T) {
	var mu sync.Mutex // the server calls from its own goroutines
	var done []string
	fail := true
	h := handler{
		add: func(ctx context.Context, r Request) (Result, error) {
			mu.Lock()
			defer mu.Unlock()
			done = append(done, "ADD "+r.ID.String())
			return dualStack(ctx, r)
		},
		del: func(_ context.Context, r Request) error {
			mu.Lock()
			defer mu.Unlock()
			if fail && r.ID.ContainerID == "stuck" {
				return errors.New("busy")
			}
			done = append(done, "DEL "+r.ID.String())
			return nil
		},
	}
	socket := serve(t, h)
	queue := filepath.Join(filepath.Dir(socket), wire.QueueDir)
	conf := `{"cniVersion":"0.4.0","name":"net","prevResult":{"ips":[]},"zzz":1}`
	for _, id := range []string{"gone", "stuck"} {
		del := addRequest(conf)
		del.Command, del.ContainerID = "DEL", id
		for range 2 { // D01: a repeat is the same deletion
			if _, err := wire.Enqueue(queue, del); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, text := range map[string]string{"a.json": "{", "b.json": `{}`, "c.json": `{"network":"net","containerID":"../x","ifName":"eth0"}`, ".new-1": ""} {
		if err := os.WriteFile(filepath.Join(queue, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	add := func() {
		t.Helper()
		if resp := ask(t, socket, addRequest(conf), devNull(t)); resp.Error != nil {
			t.Fatal(resp.Error)
		}
	}
	add()
	waiting, err := wire.Queued(queue)
	if err != nil || len(waiting) != 1 {
		t.Errorf("%v, %v wait, want the one that failed", waiting, err)
	}
	again := addRequest(conf) // of the container whose deletion failed
	again.ContainerID = "stuck"
	if resp := ask(t, socket, again, devNull(t)); resp.Error == nil || resp.Error.Code != wire.CodeTryAgainLater {
		t.Errorf("ADD before its DEL is done: %+v, want code 11", resp.Error)
	}
	mu.Lock()
	fail = false
	mu.Unlock()
	add()
	add()
	mu.Lock()
	defer mu.Unlock()
	want := []string{"DEL net/gone/eth0", "ADD net/c1/eth0", "DEL net/stuck/eth0", "ADD net/c1/eth0", "ADD net/c1/eth0"}
	if diff := cmp.Diff(want, done); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// C21, C23, B20: what is asked for is read from all the places where runtimes put it, the newer before the older.
func TestWhatIsAskedFor(t *testing.T) {
	for _, tt := range []struct {
		name, conf, args string
		ips              string
		mac              string
		bad              string
	}{
		{"nothing", ``, "", "[]", "", ""},
		{"runtimeConfig", `,"runtimeConfig":{"ips":["10.0.0.5/24","2001:db8::5"],"mac":"02:00:00:00:00:0A"}`, "", "[10.0.0.5 2001:db8::5]", "02:00:00:00:00:0A", ""},
		{"args", `,"args":{"cni":{"ips":["10.0.0.6"]}}`, "", "[10.0.0.6]", "", ""},
		{"CNI_ARGS", ``, "IP=10.0.0.7;MAC=02:00:00:00:00:0b", "[10.0.0.7]", "02:00:00:00:00:0b", ""},
		{"all", `,"runtimeConfig":{"ips":["10.0.0.5"],"mac":"02:00:00:00:00:0a"},"args":{"cni":{"ips":["10.0.0.6"]}}`, "IP=10.0.0.7;MAC=02:00:00:00:00:0b", "[10.0.0.5]", "02:00:00:00:00:0a", ""},
		{"args before CNI_ARGS", `,"args":{"cni":{"ips":["10.0.0.6"]}}`, "IP=10.0.0.7", "[10.0.0.6]", "", ""},
		{"two of a family", `,"runtimeConfig":{"ips":["10.0.0.5","10.0.0.6"]}`, "", "", "", "a second address of its family"},
		{"a zone", `,"runtimeConfig":{"ips":["fe80::1%eth0"]}`, "", "", "", "plain"},
		{"a mapped one", `,"runtimeConfig":{"ips":["::ffff:10.0.0.1"]}`, "", "", "", "plain"},
		{"no list", `,"runtimeConfig":{"ips":"10.0.0.5"}`, "", "", "", "runtimeConfig.ips"},
		{"words in CNI_ARGS", ``, "IP=dhcp", "", "", "CNI_ARGS: IP="},
		{"a group's MAC", `,"runtimeConfig":{"mac":"01:00:5e:00:00:01"}`, "", "", "", "runtimeConfig.mac"},
		{"no MAC", `,"runtimeConfig":{"mac":"00:00:00:00:00:00"}`, "", "", "", "runtimeConfig.mac"},
		{"a long MAC", ``, "MAC=02:00:00:00:00:00:00:01", "", "", "CNI_ARGS: MAC="},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := addRequest(`{"cniVersion":"1.0.0","name":"net"` + tt.conf + `}`)
			w.Args = tt.args
			r, err := parse(w, os.Stdin)
			if tt.bad != "" {
				if err == nil || !strings.Contains(err.Error(), tt.bad) {
					t.Errorf("error %v, want one with %q", err, tt.bad)
				}
				return
			}
			var mac MAC
			if tt.mac != "" {
				hw, err := net.ParseMAC(tt.mac)
				if err != nil {
					t.Fatal(err)
				}
				mac = MAC(hw)
			}
			if err != nil || fmt.Sprint(r.Conf.IPs) != tt.ips || r.Conf.MAC != mac {
				t.Errorf("IPs %v, MAC %x, %v; want %s and %q", r.Conf.IPs, r.Conf.MAC, err, tt.ips, tt.mac)
			}
		})
	}
}

// A deletion that hangs holds up the ADD of its own container, and no other call, nor the stop. One whose file is of the future,
// because the clock was set back since, counts as one of now.
func TestDeletionThatHangs(t *testing.T) {
	hangs, received := make(chan bool, 100), make(chan time.Time, 100)
	socket := serve(t, handler{
		add: dualStack,
		del: func(ctx context.Context, r Request) error {
			if r.ID.ContainerID != "stuck" {
				return nil
			}
			received <- r.Received
			hangs <- true
			<-ctx.Done()
			return ctx.Err()
		},
	})
	conf := `{"cniVersion":"1.0.0","name":"net"}`
	del := addRequest(conf)
	del.Command, del.ContainerID = "DEL", "stuck"
	path, err := wire.Enqueue(filepath.Join(filepath.Dir(socket), wire.QueueDir), del)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, time.Now(), time.Now().Add(8*time.Hour)); err != nil {
		t.Fatal(err)
	}
	var calls sync.WaitGroup
	for i := range 40 {
		calls.Go(func() {
			add := addRequest(conf)
			add.ContainerID, add.Timeout = fmt.Sprintf("other%d", i), 10_000
			if resp := ask(t, socket, add, devNull(t)); resp.Error != nil {
				t.Errorf("ADD beside a deletion that hangs: %v", resp.Error)
			}
		})
	}
	<-hangs
	if at := <-received; time.Until(at) > 0 {
		t.Errorf("the deletion came in at %v, in the future", at)
	}
	other := addRequest(conf)
	other.Command, other.ContainerID = "DEL", "other"
	if resp := ask(t, socket, other, nil); resp.Error != nil {
		t.Errorf("DEL beside a deletion that hangs: %v", resp.Error)
	}
	calls.Wait()
	own := addRequest(conf)
	own.ContainerID, own.Timeout = "stuck", 2_000
	if resp := ask(t, socket, own, devNull(t)); resp.Error == nil || resp.Error.Code != wire.CodeTryAgainLater {
		t.Errorf("ADD of the container whose deletion hangs: %+v, want code 11", resp.Error)
	}
}
