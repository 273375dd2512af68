package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/bgp/gobgp"
	"github.com/gaggle-cni/gaggle/integration/lab"
	"github.com/gaggle-cni/gaggle/node"
	"github.com/gaggle-cni/gaggle/node/datapath"
	"github.com/gaggle-cni/gaggle/node/store"
)

// routerStopTimeout bounds the end of the router's BGP.
const routerStopTimeout = 5 * time.Second

// routerConfig describes a router: no pools and nothing announced, but all that the nodes say of their pods is imported, by
// the code that serves the import rules of a node's peer.
func routerConfig() node.Config {
	prefixes := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("2001:db8:44::/48")}
	peer := func(name string) bgp.Peer {
		return bgp.Peer{
			Name: name, ASN: lab.NodeASN, Passive: true, Families: bgp.IPv4 | bgp.IPv6,
			HoldTime: 9 * time.Second, Keepalive: 3 * time.Second,
			GracefulRestart: bgp.GracefulRestart{Enabled: true, RestartTime: 120 * time.Second},
			Import:          bgp.Import{Prefixes: bgp.MakePrefixes(prefixes)},
		}
	}
	return node.Config{
		Node: "router",
		BGP: &node.BGP{
			ASN: lab.RouterASN, RouterID: netip.MustParseAddr(lab.Router4), ListenPort: 179,
			Peers: map[bgp.PeerID]bgp.Peer{ // as the nodes' peerings
				{Addr: netip.MustParseAddr(lab.Node4(1))}: peer("node1"),
				{Addr: netip.MustParseAddr(lab.Node6(2))}: peer("node2"),
			},
		},
	}
}

// runRouter runs the router until the context ends.
func runRouter(ctx context.Context, dir string) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	began := time.Now()
	uptime := func() time.Duration { return time.Since(began) } // nothing of the router outlives it
	db, err := store.Open(filepath.Join(dir, "state.db"), store.Options{BootID: "demo", Uptime: uptime})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	config := routerConfig()

	var agent *node.Agent
	dp, err := datapath.New(datapath.Options{Log: log, Changed: func() { agent.Doubt() }})
	if err != nil {
		return err
	}
	defer dp.Close()
	speaker, err := gobgp.New(gobgp.Options{
		ASN: config.BGP.ASN, RouterID: config.BGP.RouterID, ListenPort: config.BGP.ListenPort,
		APISocket: filepath.Join(dir, "gobgp.sock"), Log: log, Changed: func() { agent.Kick() },
	})
	if err != nil {
		return err
	}
	agent = node.New(node.Options{
		Config: config, Store: db, Datapath: dp, Ends: dp.Ends(), Routes: dp.Routes(), Learned: dp.Learned(), Secret: db.Secret(),
		Sources: dp.Sources(), Masquerade: dp.Masquerade(),
		Speaker: &node.Speaker{Announcements: speaker.Announcements(), Peers: speaker.Peers(), Sessions: speaker},
		Log:     log, Now: time.Now,
	})
	if err := speaker.Start(ctx); err != nil {
		return fmt.Errorf("start the router: %w", err)
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), routerStopTimeout)
		defer cancel()
		err = errors.Join(err, speaker.Stop(stop))
	}()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return agent.Run(ctx) })
	g.Go(func() error { return dp.Watch(ctx) })
	return g.Wait()
}
