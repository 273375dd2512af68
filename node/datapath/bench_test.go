package datapath_test

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/gaggle-cni/gaggle/integration/netnstest"
	"github.com/gaggle-cni/gaggle/node"
	"github.com/gaggle-cni/gaggle/node/datapath"
)

func BenchmarkSources(b *testing.B) {
	ns := netnstest.New(b)
	var d *datapath.Datapath
	netnstest.Do(b, ns, func() {
		var err error
		d, err = datapath.New(datapath.Options{Log: slog.New(slog.DiscardHandler), Changed: func() {}})
		if err != nil {
			b.Fatal(err)
		}
	})
	defer d.Close()
	s := d.Sources()
	if _, err := s.List(b.Context()); err != nil {
		b.Fatal(err)
	}
	four := netip.MustParseAddr("10.0.0.1")
	for n := range 250 {
		if err := s.Put(b.Context(), node.LinkName(fmt.Sprintf("ggl%d", n)), checkOf(four)); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("put and delete", func(b *testing.B) {
		for b.Loop() {
			if err := s.Put(b.Context(), "gglx", checkOf(four)); err != nil {
				b.Fatal(err)
			}
			if err := s.Delete(b.Context(), "gglx"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("list", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.List(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}
