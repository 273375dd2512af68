package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gaggle-cni/gaggle/cni/wire"
)

// handler answers as its functions say.
type handler struct {
	add        func(context.Context, Request) (Result, error)
	del, check func(context.Context, Request) error
	gc         func(context.Context, string, []ID) error
	ready      func(context.Context) error
}

func (h handler) Add(ctx context.Context, r Request) (Result, error) { return h.add(ctx, r) }
func (h handler) Del(ctx context.Context, r Request) error           { return h.del(ctx, r) }
func (h handler) Check(ctx context.Context, r Request) error         { return h.check(ctx, r) }
func (h handler) GC(ctx context.Context, n string, ids []ID) error   { return h.gc(ctx, n, ids) }
func (h handler) Ready(ctx context.Context) error                    { return h.ready(ctx) }

// serve starts a server and returns its socket.
func serve(t *testing.T, h Handler) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "cni.sock")
	s, err := Listen(t.Context(), Options{
		Socket: socket, Handler: h, Log: slog.New(slog.DiscardHandler), Queue: filepath.Join(filepath.Dir(socket), wire.QueueDir),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	return socket
}

func dial(t *testing.T, socket string) *net.UnixConn {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func ask(t *testing.T, socket string, r wire.Request, netns *os.File) wire.Response {
	t.Helper()
	resp, err := wire.Call(dial(t, socket), r, netns, time.Now().Add(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func addRequest(conf string) wire.Request {
	return wire.Request{
		Protocol: wire.Version, Command: "ADD", ContainerID: "c1", Netns: "/run/netns/c1", IfName: "eth0",
		Args: "K8S_POD_NAME=p;IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_UID=u;X=1", Config: json.RawMessage(conf), Timeout: 5000,
	}
}

func devNull(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func dualStack(context.Context, Request) (Result, error) {
	return Result{
		HostIf: "ggl0123456789ab", HostMAC: "02:00:00:00:00:01", MAC: "02:00:00:00:00:02", MTU: 1400,
		IPs: []IP{
			{Address: netip.MustParsePrefix("2001:db8::5/128"), Gateway: netip.MustParseAddr("fe80::1")},
			{Address: netip.MustParsePrefix("10.0.0.5/32"), Gateway: netip.MustParseAddr("169.254.1.1")},
		},
		Routes: []Route{{Dst: netip.MustParsePrefix("::/0"), GW: netip.MustParseAddr("fe80::1")}},
	}, nil
}

// A04, A05, A06, B-047, B-132, C13, C14, C15, C16, C18: the result has the version that was asked for and the shape of that version.
func TestResultShapes(t *testing.T) {
	socket := serve(t, handler{add: dualStack})
	for _, version := range wire.SupportedVersions {
		t.Run(version, func(t *testing.T) {
			conf := fmt.Sprintf(`{"cniVersion":%q,"name":"net","type":"gaggle","dns":{"nameservers":["192.0.2.53"]}}`, version)
			resp := ask(t, socket, addRequest(conf), devNull(t))
			if resp.Error != nil {
				t.Fatal(resp.Error)
			}
			var r struct {
				CNIVersion string
				Interfaces []struct {
					Name, Mac, Sandbox string
					Mtu                *int
				}
				IPs []struct {
					Version   *string
					Interface *int
					Address   string
					Gateway   string
				}
				Routes []map[string]any
				DNS    struct{ Nameservers []string }
			}
			if err := json.Unmarshal(resp.Result, &r); err != nil {
				t.Fatal(err)
			}
			old := version < "1.0.0"
			switch {
			case r.CNIVersion != version:
				t.Errorf("cniVersion %q, want %q", r.CNIVersion, version)
			case len(r.Interfaces) != 2 || r.Interfaces[0].Sandbox != "" || r.Interfaces[1].Sandbox != "/run/netns/c1" || r.Interfaces[1].Name != "eth0":
				t.Errorf("interfaces %+v, want the host's without sandbox, then eth0 with it", r.Interfaces)
			case len(r.IPs) != 2 || r.IPs[0].Address != "2001:db8::5/128" || r.IPs[1].Address != "10.0.0.5/32":
				t.Errorf("ips %+v, want both as host addresses", r.IPs)
			case r.IPs[0].Interface == nil || *r.IPs[0].Interface != 1:
				t.Errorf("ips[0].interface is not 1: %s", resp.Result)
			case old != (r.IPs[0].Version != nil), old && (*r.IPs[0].Version != "6" || *r.IPs[1].Version != "4"):
				t.Errorf("ips[].version is wrong for %s: %s", version, resp.Result)
			case (version >= "1.1.0") != (r.Interfaces[1].Mtu != nil):
				t.Errorf("interfaces[].mtu is wrong for %s: %s", version, resp.Result)
			case len(r.DNS.Nameservers) != 1:
				t.Errorf("dns %+v, want it as configured", r.DNS)
			case len(r.Routes) != 1 || len(r.Routes[0]) != 2:
				t.Errorf("routes %v, want dst and gw alone", r.Routes)
			}
		})
	}
}

// What cannot be served is refused with the code that says why: A07, A09, A11, A14, B02, B04, B05, B07, B08, B09, B10, B15, B16, B22, C21,
// C23.
func TestRefusals(t *testing.T) {
	const good = `{"cniVersion":"1.0.0","name":"net"}`
	socket := serve(t, handler{
		add: func(context.Context, Request) (Result, error) { panic("boom") },
		del: func(context.Context, Request) error { return errors.New("boom") },
	})
	tests := []struct {
		name string
		set  func(r *wire.Request)
		code uint
		text string
	}{
		{"version", func(r *wire.Request) { r.Config = json.RawMessage(`{"cniVersion":"9.9.9","name":"n"}`) }, 1, "1.1.0"},    // A07
		{"no version", func(r *wire.Request) { r.Config = json.RawMessage(`{"name":"n"}`) }, 1, "0.3.1"},                      // A09
		{"no name", func(r *wire.Request) { r.Config = json.RawMessage(`{"cniVersion":"1.0.0"}`) }, 7, "name is empty"},       // B09
		{"bad name", func(r *wire.Request) { r.Config = json.RawMessage(`{"cniVersion":"1.0.0","name":"../x"}`) }, 7, "name"}, // B09
		{"wrong type", func(r *wire.Request) { r.Config = json.RawMessage(`{"cniVersion":"1.0.0","name":5}`) }, 7, "name"},    // B10
		{"mac", func(r *wire.Request) {
			r.Config = json.RawMessage(`{"cniVersion":"1.0.0","name":"n","runtimeConfig":{"mac":"01:00:00:00:00:09"}}`)
		}, 7, "01:00:00:00:00:09"}, // C21
		{"ips", func(r *wire.Request) {
			r.Config = json.RawMessage(`{"cniVersion":"1.0.0","name":"n","runtimeConfig":{"ips":["10.0.0.1","10.0.0.300"]}}`)
		}, 7, `runtimeConfig.ips: "10.0.0.300"`}, // C23
		{"command", func(r *wire.Request) { r.Command = "FOO" }, 4, "CNI_COMMAND"},                                    // A11
		{"container", func(r *wire.Request) { r.ContainerID = "../../x" }, 4, "CNI_CONTAINERID"},                      // B07
		{"no container", func(r *wire.Request) { r.ContainerID = "" }, 4, "CNI_CONTAINERID"},                          // B05
		{"long container", func(r *wire.Request) { r.ContainerID = strings.Repeat("a", 4096) }, 4, "4096 characters"}, // B07
		{"interface", func(r *wire.Request) { r.IfName = "abcdefghijklmnop" }, 4, "CNI_IFNAME"},                       // B08
		{"interface with slash", func(r *wire.Request) { r.IfName = "a/b" }, 4, "CNI_IFNAME"},                         // B08
		{"args", func(r *wire.Request) { r.Args = "A=B=C" }, 4, "CNI_ARGS"},                                           // B15
		{"unknown args", func(r *wire.Request) { r.Args = "A=B" }, 4, "IgnoreUnknown"},                                // B16
		{"protocol", func(r *wire.Request) { r.Protocol = 99 }, 11, "protocol 99"},                                    // A14
		{"panic", func(*wire.Request) {}, wire.CodeInternal, "boom"},                                                  // B04
		{"plain error", func(r *wire.Request) { r.Command = "DEL" }, wire.CodeInternal, "boom"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := addRequest(good)
			tt.set(&r)
			resp := ask(t, socket, r, devNull(t))
			if resp.Error == nil || resp.Error.Code != tt.code || !strings.Contains(resp.Error.Msg+resp.Error.Details, tt.text) {
				t.Fatalf("got %+v, want code %d with %q", resp.Error, tt.code, tt.text)
			}
			if wantVersion := tt.code != 1; wantVersion && resp.Error.CNIVersion != "1.0.0" {
				t.Errorf("cniVersion %q, want that of the configuration", resp.Error.CNIVersion) // B02
			}
		})
	}
	t.Run("no namespace", func(t *testing.T) {
		if resp := ask(t, socket, addRequest(good), nil); resp.Error == nil || resp.Error.Code != 4 || !strings.Contains(resp.Error.Msg, "CNI_NETNS") {
			t.Errorf("got %+v, want code 4 for CNI_NETNS", resp.Error)
		}
	})
}

// B06, B12, B18, C22: what the handler is given is what the runtime said, and a DEL needs little of it.
func TestRequestIsPassedOn(t *testing.T) {
	got := make(chan Request, 2)
	socket := serve(t, handler{
		add: func(_ context.Context, r Request) (Result, error) { got <- r; return dualStack(t.Context(), r) },
		del: func(_ context.Context, r Request) error { got <- r; return nil },
	})
	conf := `{"cniVersion":"1.0.0","name":"net","zzz":1,"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"a":"b"}}}` // B12
	ask(t, socket, addRequest(conf), devNull(t))
	r := <-got
	want := ID{Network: "net", ContainerID: "c1", IfName: "eth0"}
	if r.ID != want || r.Pod != (PodArgs{Namespace: "ns", Name: "p", UID: "u"}) || r.Netns == nil || !r.Conf.HasAnnotations || r.Conf.Annotations["a"] != "b" {
		t.Errorf("request %+v", r)
	}
	del := addRequest(`{"cniVersion":"0.4.0","name":"net"}`)
	del.Command, del.Netns, del.Args = "DEL", "", "" // B06, B18
	if resp := ask(t, socket, del, nil); resp.Error != nil || len(resp.Result) != 0 {
		t.Errorf("DEL = %+v, want nothing", resp)
	}
}

// C25: descriptors that came with requests are closed, good ones, refused ones and superfluous ones alike.
func TestDescriptorsAreClosed(t *testing.T) {
	socket := serve(t, handler{add: dualStack})
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	null := devNull(t)
	run := func() {
		conn := dial(t, socket)
		r := addRequest(`{"cniVersion":"1.0.0","name":"net"}`)
		if _, err := wire.Call(conn, r, null, time.Now().Add(5*time.Second)); err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		conn = dial(t, socket)
		body, _ := json.Marshal(r)
		header := []byte{0, 0, byte(len(body) >> 8), byte(len(body))}
		_, _, err := conn.WriteMsgUnix(append(header, body...), syscall.UnixRights(int(null.Fd()), int(null.Fd()), int(null.Fd())), nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := wire.ReadResponse(conn); err != nil || resp.Error == nil {
			t.Fatalf("three descriptors: %+v, %v, want a refusal", resp, err)
		}
		_ = conn.Close()
	}
	run()
	before := count()
	for range 50 {
		run()
	}
	deadline := time.Now().Add(5 * time.Second)
	for count() > before+2 {
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors, before %d", count(), before)
		}
	}
}

// C06: the handler's context ends when the caller has gone.
func TestCallerGone(t *testing.T) {
	started, ended := make(chan bool), make(chan error, 1)
	socket := serve(t, handler{add: func(ctx context.Context, _ Request) (Result, error) {
		started <- true
		<-ctx.Done()
		ended <- ctx.Err()
		return Result{}, ctx.Err()
	}})
	conn := dial(t, socket)
	if err := wire.WriteRequest(conn, addRequest(`{"cniVersion":"1.0.0","name":"net"}`), devNull(t)); err != nil {
		t.Fatal(err)
	}
	<-started
	_ = conn.Close()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v, want Canceled", err)
		}
	case <-time.After(3 * time.Second): // the deadline would come after 4.5
		t.Error("the handler still runs")
	}
}

// I17: what is under way when the server stops is finished and answered.
func TestStopFinishesCalls(t *testing.T) {
	started, goOn := make(chan bool), make(chan bool)
	socket := filepath.Join(t.TempDir(), "cni.sock")
	s, err := Listen(t.Context(), Options{
		Socket: socket, Log: slog.New(slog.DiscardHandler), Queue: filepath.Join(filepath.Dir(socket), wire.QueueDir),
		Handler: handler{add: func(ctx context.Context, r Request) (Result, error) {
			started <- true
			<-goOn
			if err := ctx.Err(); err != nil {
				return Result{}, err
			}
			return dualStack(ctx, r)
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	conn := dial(t, socket)
	if err := wire.WriteRequest(conn, addRequest(`{"cniVersion":"1.0.0","name":"net"}`), devNull(t)); err != nil {
		t.Fatal(err)
	}
	<-started
	stop()
	for deadline := time.Now().Add(5 * time.Second); ; { // until nobody new is listened to
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
		if err != nil {
			break
		}
		conn.Close()
		if time.Now().After(deadline) {
			t.Fatal("a server that was stopped still listens")
		}
	}
	select {
	case err := <-done:
		t.Errorf("Run() = %v before the call has ended", err)
	default:
	}
	close(goOn)
	if resp, err := wire.ReadResponse(conn); err != nil || resp.Error != nil || len(resp.Result) == 0 {
		t.Errorf("the call under way came to %+v, %v; want its result", resp, err)
	}
	if err := <-done; err != nil {
		t.Errorf("Run() = %v", err)
	}
}

// L01, B-120: whatever the umask, nobody else can connect from the first moment on.
func TestSocketMode(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	path := filepath.Join(t.TempDir(), "s")
	for range 2 { // I09: the second time over a stale socket
		l, err := ListenPrivate(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v, want 0600", info.Mode(), err)
		}
		l.SetUnlinkOnClose(false)
		_ = l.Close()
	}
}

// B15, B16, B17: pairs in any order, with others' among them if IgnoreUnknown says so.
func TestParseArgs(t *testing.T) {
	pod := PodArgs{Namespace: "ns", Name: "p", UID: "u"}
	tests := []struct {
		in   string
		want PodArgs
		ok   bool
	}{
		{"", PodArgs{}, true},
		{"IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;K8S_POD_UID=u;K8S_POD_INFRA_CONTAINER_ID=c", pod, true},
		{"K8S_POD_UID=u;X=Y;K8S_POD_NAME=p;IgnoreUnknown=TRUE;K8S_POD_NAMESPACE=ns;IgnoreUnknown=1;", pod, true}, // B17
		{"K8S_POD_NAME=p;X=1", PodArgs{}, false},
		{"K8S_POD_NAME=p;X=1;IgnoreUnknown=0", PodArgs{}, false},
		{"IgnoreUnknown=yes", PodArgs{}, false},
		{"A", PodArgs{}, false},
		{"=x", PodArgs{}, false},
		{"A=B=C", PodArgs{}, false},
	}
	for _, tt := range tests {
		got, err := parseArgs(tt.in)
		if got.PodArgs != tt.want || (err == nil) != tt.ok {
			t.Errorf("parseArgs(%q) = %+v, %v, want %+v, ok %v", tt.in, got, err, tt.want, tt.ok)
		}
	}
}

// B29, L11: messages are bounded, and what is accepted is safe.
func FuzzParse(f *testing.F) {
	f.Add("ADD", "c1", "eth0", "A=B", []byte(`{"cniVersion":"1.0.0","name":"n"}`))
	f.Add("DEL", "", "", ";;", []byte(`{`))
	f.Add("GC", "", "", "", []byte(`{"cniVersion":"1.1.0","name":"n","cni.dev/valid-attachments":[{"containerID":"c","ifname":"eth0"}]}`))
	f.Add("CHECK", "c1", "eth0", "", []byte(`{"cniVersion":"0.4.0","name":"n","prevResult":{"ips":[{"version":"4","address":"10.0.0.5/32"}]}}`))
	f.Fuzz(func(t *testing.T, command, container, ifname, args string, conf []byte) {
		w := wire.Request{Protocol: wire.Version, Command: command, ContainerID: container, IfName: ifname, Args: args, Config: conf}
		r, err := parse(w, os.Stdin) // any file: nothing opens it
		if err != nil {
			if e := wireError(err, ""); len(e.Msg) > maxMsg+8 {
				t.Errorf("message of %d bytes", len(e.Msg))
			}
			return
		}
		// L11: an accepted key stays one path element each, and one version of those that are served.
		if commands[command].container && strings.Count(r.ID.String(), "/") != 2 || !slices.Contains(wire.SupportedVersions, r.Conf.CNIVersion) {
			t.Errorf("accepted %+v", r)
		}
	})
}

// L02: whatever lies in the queue of deletions, reading it ends with a request that names one attachment, or with an error.
func FuzzParseQueued(f *testing.F) {
	f.Add([]byte(`{"network":"n","containerID":"c","ifName":"eth0"}`))
	f.Add([]byte(`{"network":"../..","containerID":"c/d","ifName":""}`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseQueued(data)
		if err == nil && strings.Count(r.ID.String(), "/") != 2 {
			t.Errorf("accepted %+v", r)
		}
	})
}
