package node

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gaggle-cni/gaggle/bgp"
)

// What would cut a node off: a pool over a connected subnet, whichever is the larger, over an address or over
// a router of the node, and an address that the node does not have.
func TestMisfits(t *testing.T) {
	own := pfx("192.0.2.10/24")
	uplinks := map[netip.Addr]Uplink{addr("0.0.0.0"): {Link: "eth0", IPv4: own.Addr(), Gateway: addr("172.31.1.1")}}
	for _, tt := range []struct {
		name  string
		pool  string
		ips   bgp.NextHops
		known []netip.Prefix
		want  []Misfit
	}{
		{"none", "10.1.0.0/24", bgp.NextHops{IPv4: own.Addr()}, []netip.Prefix{own}, nil},
		{"equal", "192.0.2.0/24", bgp.NextHops{}, []netip.Prefix{own}, []Misfit{{Pool: "p", Prefix: pfx("192.0.2.0/24"), Own: own}}},
		{"over it", "192.0.0.0/16", bgp.NextHops{}, []netip.Prefix{own}, []Misfit{{Pool: "p", Prefix: pfx("192.0.0.0/16"), Own: own}}},
		{"within it", "192.0.2.128/25", bgp.NextHops{}, []netip.Prefix{own}, []Misfit{{Pool: "p", Prefix: pfx("192.0.2.128/25"), Own: own}}},
		{
			"own address", "203.0.113.0/24",
			bgp.NextHops{},
			[]netip.Prefix{own, pfx("203.0.113.1/32")},
			[]Misfit{{Pool: "p", Prefix: pfx("203.0.113.0/24"), Own: pfx("203.0.113.1/32")}},
		},
		{
			"router that is on no subnet", "172.31.0.0/16",
			bgp.NextHops{},
			[]netip.Prefix{own},
			[]Misfit{{Pool: "p", Prefix: pfx("172.31.0.0/16"), Hop: addr("172.31.1.1")}},
		},
		{
			"router of a subnet that is named", "172.31.0.0/16",
			bgp.NextHops{},
			[]netip.Prefix{pfx("172.31.1.10/24")},
			[]Misfit{{Pool: "p", Prefix: pfx("172.31.0.0/16"), Own: pfx("172.31.1.10/24")}},
		},
		{
			"another node's address", "10.1.0.0/24",
			bgp.NextHops{IPv4: addr("192.0.2.11"), IPv6: addr("2001:db8::10")},
			[]netip.Prefix{own},
			[]Misfit{{Prefix: pfx("2001:db8::10/128")}, {Prefix: pfx("192.0.2.11/32")}},
		},
		{"nothing is known", "192.0.2.0/24", bgp.NextHops{IPv4: addr("192.0.2.11")}, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := World{
				Config:  Config{Pools: []Pool{{Name: "p", Prefix: pfx(tt.pool)}}, NodeIPs: tt.ips},
				Uplinks: uplinks, Connected: tt.known,
			}
			if diff := cmp.Diff(tt.want, w.Misfits(), cmpNetip...); diff != "" {
				t.Errorf("Misfits() (-want +got):\n%s", diff)
			}
		})
	}
}
