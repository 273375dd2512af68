package main

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/gaggle-cni/gaggle/node/kube"
	"github.com/gaggle-cni/gaggle/node/nodeconfig"
	"github.com/gaggle-cni/gaggle/node/store"
)

// The last good configuration is in the store, as it was made of documents and cluster, and serves a start without an API server.
// Another one is refused without harm.
func TestKeptConfiguration(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	open := func() *store.DB {
		db, err := store.Open(path, store.Options{BootID: "boot", Uptime: func() time.Duration { return 0 }})
		if err != nil {
			t.Fatal(err)
		}
		return db
	}
	doc, err := nodeconfig.Read([]byte(`apiVersion: gaggle.dev/v1alpha1
kind: NodeConfig
metadata: {name: all}
spec:
  bgp: {asn: 64512, peers: [{name: tor, address: 192.0.2.1, asn: 64500, password: {secretRef: {name: md5, key: tor}}}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	c := kube.Config{
		Merged: nodeconfig.Merge([]nodeconfig.Document{doc}),
		Cluster: nodeconfig.Cluster{
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")},
			Secrets:  map[string]nodeconfig.Secret{"md5/tor": {Value: "secret"}},
		},
	}
	p := &process{log: slog.New(slog.NewTextHandler(t.Output(), nil)), db: open(), flags: nodeFlags{name: "node1"}}
	if p.useKept(t.Context(), errors.New("away")) {
		t.Error("a configuration comes out of an empty store")
	}
	p.keep(t.Context(), keptOf(c))
	if err := p.db.Close(); err != nil {
		t.Fatal(err)
	}
	p.db = open()
	if !p.useKept(t.Context(), errors.New("away")) {
		t.Fatal("the last good configuration is not used")
	}
	if len(p.config.Pools) != 1 || p.config.Pools[0].Prefix != c.Cluster.PodCIDRs[0] || len(p.config.BGP.Peers) != 1 {
		t.Errorf("configuration %+v", p.config)
	}
	for _, peer := range p.config.BGP.Peers {
		if string(peer.Password) != "secret" {
			t.Error("the password is not that of the Secret")
		}
	}
	bad, err := json.Marshal(kept{Document: "kind: Other"})
	if err == nil {
		err = p.db.SetConfig(bad)
	}
	if err != nil || p.useKept(t.Context(), errors.New("away")) {
		t.Errorf("a configuration that is none is used; %v", err)
	}
	if err := p.db.Close(); err != nil {
		t.Fatal(err)
	}
}
