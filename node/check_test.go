package node_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/cni"
	"github.com/gaggle-cni/gaggle/cni/wire"
	"github.com/gaggle-cni/gaggle/node"
)

// checkRequest is a CHECK with what the ADD came to.
func checkRequest(n int, r cni.Result) cni.Request {
	req := request(n)
	req.Previous.MACs = map[string]string{r.HostIf: r.HostMAC, "eth0": r.MAC}
	for _, ip := range r.IPs {
		req.Previous.IPs = append(req.Previous.IPs, ip.Address.Addr())
	}
	return req
}

func hasError(t *testing.T, err error, code uint, text string) {
	t.Helper()
	e, ok := errors.AsType[*cni.Error](err)
	if !ok || e.Code != code || !strings.Contains(e.Msg, text) {
		t.Errorf("error %v, want code %d with %q", err, code, text)
	}
}

// E02, E03, E06: each difference is named with the others, and nothing is changed by looking.
func TestCheckNamesEachDifference(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	r, err := w.add(1)
	if err != nil {
		t.Fatal(err)
	}
	good := checkRequest(1, r)
	if err := w.agent.Check(t.Context(), good); err != nil {
		t.Fatalf("Check() = %v", err)
	}
	six := r.IPs[0].Address
	for _, tt := range []struct {
		name  string
		spoil func(req *cni.Request)
		want  string
	}{
		{"route", func(*cni.Request) {
			routes := w.routes.Items()
			delete(routes, six)
			w.routes.Set(routes)
		}, "route " + six.String() + " is missing on the node"},
		{"another route", func(*cni.Request) {
			routes := w.routes.Items()
			routes[six] = node.Route{Kind: node.RouteHost, Link: "ggl000000000000"}
			w.routes.Set(routes)
		}, "want {Kind:host Link:" + r.HostIf},
		{"source check", func(*cni.Request) { w.sources.Set(nil) }, "does not check what "},
		{"announcement", func(*cni.Request) { w.announced.Set(nil) }, "2001:db8:1::/64 is not announced"},
		{"host interface in prevResult", func(req *cni.Request) { delete(req.Previous.MACs, r.HostIf) }, "interface " + r.HostIf + " is missing"},
		{"address in prevResult", func(req *cni.Request) { req.Previous.IPs = nil }, "prevResult: address " + six.Addr().String() + " is missing"},
		{"MAC", func(req *cni.Request) { req.Previous.MACs["eth0"] = "02:00:00:00:00:01" }, "want 02:00:00:00:00:01"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			routes, announced, sources := w.routes.Items(), w.announced.Items(), w.sources.Items()
			defer func() { w.routes.Set(routes); w.announced.Set(announced); w.sources.Set(sources) }()
			req := checkRequest(1, r)
			tt.spoil(&req)
			before := w.outside()
			hasError(t, w.agent.Check(t.Context(), req), wire.CodeCheck, tt.want)
			if diff := cmp.Diff(before, w.outside(), cmpOptions()...); diff != "" {
				t.Errorf("CHECK changed something:\n%s", diff)
			}
		})
	}
	if err := w.agent.Check(t.Context(), good); err != nil {
		t.Errorf("Check() = %v afterwards", err)
	}
	if err := w.del(1); err != nil {
		t.Fatal(err)
	}
	hasError(t, w.agent.Check(t.Context(), good), wire.CodeCheck, "pod ns/p1 (container c1): it is not attached")
}

// Unknown is not "as it must be".
func TestCheckThatCannotSeeFails(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	r, err := w.add(1)
	if err != nil {
		t.Fatal(err)
	}
	w.announced.SetFail(func(op string, _ netip.Prefix) error {
		if op == "list" {
			return errors.New("no answer")
		}
		return nil
	})
	hasError(t, w.agent.Check(t.Context(), checkRequest(1, r)), wire.CodeKernel, "no answer")
}

// F01, F03: what is not in use goes, other networks' attachments stay.
func TestGC(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	for n := range 4 {
		if _, err := w.add(n); err != nil {
			t.Fatal(err)
		}
	}
	other := request(9)
	other.ID.Network = "other"
	if _, err := w.agent.Add(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	for range 2 { // F07: a repeat is harmless
		if err := w.agent.GC(t.Context(), "net", []cni.ID{request(1).ID, request(3).ID, {Network: "net", ContainerID: "never", IfName: "eth0"}}); err != nil {
			t.Fatal(err)
		}
		w.check(map[int]bool{1: true, 3: true, 9: true})
	}
	if err := w.agent.GC(t.Context(), "net", nil); err != nil { // F02: none is in use
		t.Fatal(err)
	}
	w.check(map[int]bool{9: true})
	if got := w.db.All(); len(got) != 1 || got[0].ID != other.ID {
		t.Errorf("left are %v, want that of the other network", got)
	}
}

// F06: a failure does not keep the others, and is reported.
func TestGCGoesOn(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	for n := range 3 {
		if _, err := w.add(n); err != nil {
			t.Fatal(err)
		}
	}
	w.datapath.FailDetach = func(a node.Attachment) error {
		if a.ID.ContainerID == "c1" {
			return errors.New("busy")
		}
		return nil
	}
	hasError(t, w.agent.GC(t.Context(), "net", nil), wire.CodeKernel, "net/c1/eth0: busy")
	if got := w.db.All(); len(got) != 1 || got[0].ID.ContainerID != "c1" {
		t.Errorf("left are %v, want the one that failed", got)
	}
	w.datapath.FailDetach = nil
	if err := w.agent.GC(t.Context(), "net", nil); err != nil {
		t.Fatal(err)
	}
	w.check(nil)
}

// F04: an ADD under way, and one that began after the GC, are not in its list and stay.
func TestGCLeavesWhatIsUnderWay(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	attaching, goOn := make(chan bool), make(chan bool)
	w.datapath.FailAttach = func(node.Attachment) error {
		attaching <- true
		<-goOn
		return nil
	}
	added := make(chan error, 1)
	go func() { _, err := w.add(1); added <- err }()
	<-attaching
	if err := w.agent.GC(t.Context(), "net", nil); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	if err := <-added; err != nil {
		t.Fatal(err)
	}
	w.check(map[int]bool{1: true})
}

// G01, G02, G05: STATUS is red while no ADD could be served, and for nothing less.
func TestReady(t *testing.T) {
	w := newWorld(t, testConfig())
	unborn := node.New(node.Options{Config: testConfig(), Store: w.db})
	hasError(t, unborn.Ready(t.Context()), wire.CodeNotAvailable, "not through with its start")

	w.start()
	ready := func() {
		t.Helper()
		if err := w.agent.Ready(t.Context()); err != nil {
			t.Errorf("Ready() = %v, want none", err)
		}
	}
	settle := func() {
		t.Helper()
		w.agent.Doubt()
		if _, err := w.agent.Settle(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ready()
	w.peers.SetFail(func(string, bgp.PeerID) error { return errors.New("no BGP") })
	settle()
	ready()
	w.peers.SetFail(nil)
	w.routes.SetFail(func(op string, p netip.Prefix) error {
		if p == netip.MustParsePrefix("10.1.0.0/24") {
			return errors.New("taken")
		}
		return nil
	})
	w.routes.Set(nil)
	settle()
	ready() // one route of many
	w.routes.SetFail(func(string, netip.Prefix) error { return errors.New("no kernel") })
	settle()
	hasError(t, w.agent.Ready(t.Context()), wire.CodeLimited, "no route can be made")
	w.routes.SetFail(nil)
	settle()
	ready()
	w.kill()
	hasError(t, w.agent.Ready(context.Background()), wire.CodeNotAvailable, "stopping")
}

// E09: a pass puts right what was changed on the host's end of a pair, and leaves alone what is no pod's any more.
func TestPassPutsEndsRight(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	r, err := w.add(1)
	if err != nil {
		t.Fatal(err)
	}
	whole := node.End{IPv4: true, IPv6: true, Up: true, Settings: true}
	want := map[node.LinkName]node.End{node.LinkName(r.HostIf): whole}
	for _, changed := range []node.End{{IPv6: true, Up: true, Settings: true}, {}, whole} {
		w.ends.Set(map[node.LinkName]node.End{node.LinkName(r.HostIf): changed, "ggl000000000000": {Up: true}})
		w.agent.Doubt()
		if _, err := w.agent.Settle(t.Context()); err != nil {
			t.Fatal(err)
		}
		want["ggl000000000000"] = node.End{Up: true}
		if diff := cmp.Diff(want, w.ends.Items()); diff != "" {
			t.Errorf("ends (-want +got):\n%s", diff)
		}
	}
	w.ends.SetFail(func(op string, _ node.LinkName) error {
		if op == "delete" {
			t.Error("a link was deleted by the pass")
		}
		return nil
	})
	if err := w.del(1); err != nil {
		t.Fatal(err)
	}
	// The same name again is a new link, whatever is remembered of the old.
	w.ends.Set(nil)
	if _, err := w.add(1); err != nil {
		t.Fatal(err)
	}
	if got := w.ends.Items()[node.LinkName(r.HostIf)]; got != whole {
		t.Errorf("end of the new link %+v, want %+v", got, whole)
	}
}
