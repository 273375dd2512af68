package node_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/cni"
	"github.com/gaggle-cni/gaggle/node"
	"github.com/gaggle-cni/gaggle/node/nodetest"
	"github.com/gaggle-cni/gaggle/node/store"
)

// A world is a node with a real store and stand-ins for everything else. The node process in it can be started, stopped and
// killed; store, kernel and speaker live on.
type world struct {
	t      testing.TB
	config node.Config
	fuse   *nodetest.Fuse
	db     *store.DB

	datapath        *nodetest.Datapath
	ends            *nodetest.Target[node.LinkName, node.End]
	routes, learned *nodetest.Target[netip.Prefix, node.Route]
	sources         *nodetest.Target[node.LinkName, node.SourceCheck]
	masquerade      *nodetest.Target[netip.Prefix, bgp.Prefixes]
	announced       *nodetest.Target[netip.Prefix, bgp.Announcement]
	peers           *nodetest.Target[bgp.PeerID, bgp.Peer]
	sessions        *nodetest.Sessions
	pods            *nodetest.Pods // nil: without Kubernetes

	mu   sync.Mutex
	told []string // by the Reporter

	agent *node.Agent
	stop  func()
}

func testConfig() node.Config {
	return node.Config{
		Node: "node1",
		Pools: []node.Pool{
			{Name: "six", Prefix: netip.MustParsePrefix("2001:db8:1::/64")},
			{Name: "four", Prefix: netip.MustParsePrefix("10.1.0.0/24")},
		},
		Families: bgp.IPv4 | bgp.IPv6,
		BGP: &node.BGP{ASN: 64512, Peers: map[bgp.PeerID]bgp.Peer{
			{Addr: netip.MustParseAddr("192.0.2.1")}: {Name: "tor", ASN: 64500},
		}},
	}
}

func newWorld(tb testing.TB, config node.Config) *world {
	tb.Helper()
	began := time.Now()
	db, err := store.Open(filepath.Join(tb.TempDir(), "state.db"), store.Options{
		BootID: "boot", Uptime: func() time.Duration { return time.Since(began) },
	})
	if err != nil {
		tb.Fatal(err)
	}
	fuse := &nodetest.Fuse{}
	w := &world{
		t: tb, config: config, fuse: fuse, db: db,
		datapath: &nodetest.Datapath{Fuse: fuse, Uplink: node.Uplink{
			Link: "eth0", MTU: 1400, IPv4: netip.MustParseAddr("192.0.2.10"), IPv6: netip.MustParseAddr("2001:db8::10"),
		}},
		ends:       &nodetest.Target[node.LinkName, node.End]{Fuse: fuse},
		routes:     &nodetest.Target[netip.Prefix, node.Route]{Fuse: fuse},
		learned:    &nodetest.Target[netip.Prefix, node.Route]{Fuse: fuse},
		sources:    &nodetest.Target[node.LinkName, node.SourceCheck]{Fuse: fuse},
		masquerade: &nodetest.Target[netip.Prefix, bgp.Prefixes]{Fuse: fuse},
		announced:  &nodetest.Target[netip.Prefix, bgp.Announcement]{Fuse: fuse},
		peers:      &nodetest.Target[bgp.PeerID, bgp.Peer]{Fuse: fuse},
		sessions:   &nodetest.Sessions{},
	}
	tb.Cleanup(func() {
		w.kill()
		if err := db.Close(); err != nil {
			tb.Error(err)
		}
	})
	return w
}

// start begins a life of the node process.
func (w *world) start() {
	w.t.Helper()
	w.fuse.Disarm()
	o := node.Options{
		Config: w.config, Store: &nodetest.Store{Store: w.db, Fuse: w.fuse}, Datapath: w.datapath,
		Ends: w.ends, Routes: w.routes, Learned: w.learned,
		Sources: w.sources, Masquerade: w.masquerade,
		Speaker: &node.Speaker{Announcements: w.announced, Peers: w.peers, Sessions: w.sessions},
		Secret:  w.db.Secret(), Log: slog.New(slog.DiscardHandler), Now: time.Now, Reporter: w,
	}
	if w.pods != nil {
		o.Pods = w.pods
	}
	w.agent = node.New(o)
	if err := w.agent.Recover(w.t.Context()); err != nil {
		w.t.Fatalf("Recover() = %v", err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.agent.Run(ctx)
	}()
	w.stop = func() { cancel(); <-done; w.stop = nil }
	if _, err := w.agent.Settle(w.t.Context()); err != nil {
		w.t.Fatalf("first pass: %v", err)
	}
}

// kill ends the life. Whether in order or not makes no difference to the core, apart from the fuse.
func (w *world) kill() {
	if w.stop != nil {
		w.stop()
	}
}

// PodTrouble implements [node.Reporter].
func (w *world) PodTrouble(pod node.Pod, reason, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, fmt.Sprintf("%s %s: %s", pod.Key, reason, message))
}

// events returns what was told since the last call.
func (w *world) events() (told []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	told, w.told = w.told, nil
	return told
}

func request(n int) cni.Request {
	return cni.Request{
		ID:        cni.ID{Network: "net", ContainerID: fmt.Sprintf("c%d", n), IfName: "eth0"},
		NetnsPath: fmt.Sprintf("/run/netns/c%d", n), Netns: os.Stdin,
		Pod:  cni.PodArgs{Namespace: "ns", Name: fmt.Sprintf("p%d", n), UID: fmt.Sprintf("u%d", n)},
		Conf: cni.Conf{Name: "net", CNIVersion: "1.0.0"},
	}
}

func (w *world) add(n int) (cni.Result, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	return w.agent.Add(ctx, request(n))
}

func (w *world) del(n int) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	return w.agent.Del(ctx, request(n))
}

// outside is everything outside the process, for comparison.
type outside struct {
	Links     []string
	Routes    map[netip.Prefix]node.Route
	Announced map[netip.Prefix]bgp.Announcement
	Peers     map[bgp.PeerID]bgp.Peer
	Sources   map[node.LinkName]node.SourceCheck
}

func (w *world) outside() outside {
	if w.stop != nil { // what goes with the record of a pod, goes with the pass after
		if _, err := w.agent.Settle(w.t.Context()); err != nil {
			w.t.Fatal(err)
		}
	}
	o := outside{Routes: w.routes.Items(), Announced: w.announced.Items(), Peers: w.peers.Items(), Sources: w.sources.Items()}
	for name := range w.datapath.Links() {
		o.Links = append(o.Links, name)
	}
	slices.Sort(o.Links)
	return o
}

// check compares store, kernel and speaker with each other and with the containers that should be attached.
func (w *world) check(live map[int]bool) {
	w.t.Helper()
	records := w.db.All()
	seen := make(map[netip.Addr]bool)
	var links []string
	for _, a := range records {
		if !a.Committed {
			w.t.Errorf("record %s is pending", a.ID)
		}
		links = append(links, a.HostIf)
		for _, addr := range a.Addrs {
			if seen[addr] {
				w.t.Errorf("address %s is given twice", addr)
			}
			seen[addr] = true
		}
	}
	slices.Sort(links)
	if len(records) != len(live) {
		w.t.Errorf("%d records, want %d", len(records), len(live))
	}
	want := node.Plan(node.World{
		Now: time.Now(), Config: w.config, Readiness: w.pods != nil, Attachments: records, Uplinks: w.uplinks(),
	})
	wantOutside := outside{Links: links, Routes: want.Routes, Announced: want.Announce, Peers: want.Peers, Sources: want.Sources}
	if diff := cmp.Diff(wantOutside, w.outside(), cmpOptions()...); diff != "" {
		w.t.Errorf("outside (-want +got):\n%s", diff)
	}
}

func (w *world) uplinks() map[netip.Addr]node.Uplink {
	dsts := []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	for id := range w.config.BGP.Peers {
		dsts = append(dsts, id.Addr)
	}
	up, _ := w.datapath.Uplinks(w.t.Context(), dsts)
	return up
}

func cmpOptions() []cmp.Option {
	return []cmp.Option{cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })}
}
