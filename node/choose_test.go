package node_test

import (
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gaggle-cni/gaggle/cni"
	"github.com/gaggle-cni/gaggle/cni/wire"
	"github.com/gaggle-cni/gaggle/node"
)

// C21, C23: an address that is asked for is given, or the ADD fails. Another is never given instead, and a failure takes none
// of the other family (C42).
func TestAddressesThatAreAskedFor(t *testing.T) {
	config := testConfig()
	config.Pools = append(config.Pools, node.Pool{Name: "dmz", Prefix: netip.MustParsePrefix("10.9.0.0/24"), Namespaces: []string{"dmz"}})
	w := newWorld(t, config)
	w.start()
	asking := func(n int, ips ...string) cni.Request {
		r := request(n)
		for _, ip := range ips {
			r.Conf.IPs = append(r.Conf.IPs, netip.MustParseAddr(ip))
		}
		return r
	}
	r, err := w.agent.Add(t.Context(), asking(1, "10.1.0.77"))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.IPs) != 2 || !r.IPs[0].Address.Addr().Is6() || r.IPs[1].Address.Addr().String() != "10.1.0.77" {
		t.Errorf("addresses %v, want one of IPv6 and 10.1.0.77", r.IPs)
	}
	for name, ip := range map[string]string{
		"taken": "10.1.0.77", "of no pool": "10.2.0.1", "the network": "10.1.0.0", "the broadcast address": "10.1.0.255",
		"another namespace's": "10.9.0.1", "the subnet's routers": "2001:db8:1::",
	} {
		_, err := w.agent.Add(t.Context(), asking(2, ip))
		hasError(t, err, wire.CodeAddress, ip)
		if t.Failed() {
			t.Fatal(name)
		}
	}
	w.check(map[int]bool{1: true})

	six := asking(3, "10.1.0.78")
	six.Conf.Annotations = map[string]string{"gaggle.dev/ipv4": "false"}
	_, err = w.agent.Add(t.Context(), six)
	hasError(t, err, wire.CodeAddress, "IPv4 is off")

	if err := w.del(1); err != nil { // freed, it can be asked for again
		t.Fatal(err)
	}
	if _, err := w.agent.Add(t.Context(), asking(4, "10.1.0.77", "2001:db8:1::77")); err != nil {
		t.Fatal(err)
	}
	w.check(map[int]bool{4: true})
}

// C40: a pool may hold the node's own address and a peer's. Pods get neither, asked for or not.
func TestNodesAddressesAreNotForPods(t *testing.T) {
	config := testConfig()
	config.Pools[1].Prefix = netip.MustParsePrefix("192.0.2.0/28") // of the node 192.0.2.10 and its peer 192.0.2.1
	w := newWorld(t, config)
	w.start()
	for _, ip := range []string{"192.0.2.10", "192.0.2.1"} {
		r := request(1)
		r.Conf.IPs = []netip.Addr{netip.MustParseAddr(ip)}
		_, err := w.agent.Add(t.Context(), r)
		hasError(t, err, wire.CodeAddress, ip)
	}
	live := make(map[int]bool)
	for n := range 12 { // of fourteen
		r, err := w.add(n)
		if err != nil {
			t.Fatal(err)
		}
		if ip := r.IPs[1].Address.Addr().String(); ip == "192.0.2.10" || ip == "192.0.2.1" {
			t.Errorf("%s was given to a pod", ip)
		}
		live[n] = true
	}
	_, err := w.add(12)
	hasError(t, err, wire.CodeExhausted, "no free address")
	w.check(live)
}

func TestMACThatIsAskedFor(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	req := request(1)
	req.Conf.MAC = cni.MAC{0x02, 0xaa, 0xbb, 0xcc, 0xdd, 0xee}
	r, err := w.agent.Add(t.Context(), req)
	if want := "02:aa:bb:cc:dd:ee"; err != nil || r.MAC != want {
		t.Errorf("MAC %q, %v; want %s", r.MAC, err, want)
	}
}

// M10, C49: the default routes belong to eth0 unless the configuration says otherwise.
func TestDefaultRoute(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	for _, tt := range []struct {
		ifName string
		conf   *bool
		want   int
	}{{"eth0", nil, 2}, {"net1", nil, 0}, {"net2", new(true), 2}, {"net3", new(false), 0}} {
		req := request(1)
		req.ID.IfName, req.Conf.DefaultRoute = tt.ifName, tt.conf
		r, err := w.agent.Add(t.Context(), req)
		if err != nil || len(r.Routes) != tt.want || len(r.IPs) != 2 {
			t.Errorf("%s: %d routes and %d addresses, %v; want %d and 2", tt.ifName, len(r.Routes), len(r.IPs), err, tt.want)
		}
	}
	w.check(map[int]bool{1: true, 2: true, 3: true, 4: true})
}

// A container that comes again under its id, in another namespace, is attached anew: what the lost DEL left goes.
func TestSameIDInAnotherNamespace(t *testing.T) {
	w := newWorld(t, testConfig())
	w.start()
	if _, err := w.add(1); err != nil {
		t.Fatal(err)
	}
	again := request(1)
	again.Netns = os.Stdout
	again.Conf.IPs = []netip.Addr{netip.MustParseAddr("10.1.0.77")}
	r, err := w.agent.Add(t.Context(), again)
	if err != nil || r.IPs[1].Address.Addr() != again.Conf.IPs[0] {
		t.Errorf("addresses %v, %v; want what is asked for now", r.IPs, err)
	}
	if ok, err := w.datapath.Attached(t.Context(), os.Stdout, w.db.All()[0]); err != nil || !ok {
		t.Errorf("attached in the new namespace: %v, %v", ok, err)
	}
	w.check(map[int]bool{1: true})
}

// The minute's look at everything comes on a node that is never quiet, too.
func TestDoubtOnABusyNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, testConfig())
		w.start()
		want := w.outside()
		w.routes.Set(nil) // nobody is told
		for range 8 {
			time.Sleep(10 * time.Second)
			if _, err := w.agent.Settle(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(want, w.outside(), cmpOptions()...); diff != "" {
			t.Errorf("not put right (-want +got):\n%s", diff)
		}
		w.kill()
	})
}

// A pod never gets an address of the node, on whatever link, or of its router. A subnet that comes over a pool while the node
// works is told, and stops nothing.
func TestAddressesOfTheNode(t *testing.T) {
	w := newWorld(t, testConfig())
	w.config.Pools[1].Prefix = netip.MustParsePrefix("10.1.0.0/29")
	w.datapath.Uplink.Gateway = netip.MustParseAddr("10.1.0.2")
	w.datapath.Addrs = []netip.Prefix{netip.MustParsePrefix("10.1.0.1/32")}
	w.start()
	for n := range 4 {
		r, err := w.add(n)
		if err != nil {
			t.Fatal(err)
		}
		if a := r.IPs[1].Address.Addr(); a == w.datapath.Addrs[0].Addr() || a == w.datapath.Uplink.Gateway {
			t.Errorf("pod has %s, the node's own or its router's", a)
		}
	}
	_, err := w.add(4)
	hasError(t, err, wire.CodeExhausted, "no free address")
	s, err := w.agent.Status(t.Context())
	want := []string{
		`pool "four" (10.1.0.0/29) lies over the subnet of this node's address 10.1.0.1/32`,
		`pool "four" (10.1.0.0/29) lies over 10.1.0.2, a router this node sends to`,
	}
	if diff := cmp.Diff(want, s.Misfits); err != nil || diff != "" {
		t.Errorf("misfits, %v (-want +got):\n%s", err, diff)
	}
	if len(s.Pass.Errors) > 0 {
		t.Errorf("errors: %q", s.Pass.Errors)
	}
}
