package datapath_test

import (
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/integration/netnstest"
	"github.com/gaggle-cni/gaggle/node"
)

func TestUplinks(t *testing.T) {
	w := newWorld(t)
	dst := netip.MustParseAddr
	all := []netip.Addr{
		dst("::"), dst("0.0.0.0"), rtr6, rtr4, dst("203.0.113.1"), dst("fe80::1%up0"), dst("fe80::1%absent"),
		dst("2001:db8:dead::1"), dst("198.51.100.1"),
	}
	compare := func(want map[netip.Addr]node.Uplink) {
		t.Helper()
		got, err := w.d.Uplinks(t.Context(), all)
		w.must(err)
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("Uplinks() (-want +got):\n%s", diff)
		}
	}
	compare(map[netip.Addr]node.Uplink{}) // no routes: left out, and no error

	w.uplink()
	up0 := node.Uplink{Link: "up0", MTU: 1450, IPv4: own4, IPv6: own6} // B-023
	by4 := up0
	by4.Gateway = rtr4
	w.must(w.host.LinkSetMTU(w.link(w.ns, "up0"), up0.MTU))
	// Better by metric, and another link.
	w.addVeth(w.ns, "up1", netnstest.New(t), "peer")
	w.address(w.ns, "lo", "2001:db8:ffff::1/128", "203.0.113.255/32")
	for _, p := range []string{"2001:db8:dead::/48", "198.51.100.0/24"} {
		w.must(w.host.RouteAdd(&netlink.Route{Dst: network(p), Type: unix.RTN_UNREACHABLE}))
	}
	w.must(w.host.RouteAdd(&netlink.Route{Dst: network("::/0"), LinkIndex: w.link(w.ns, "up1").Attrs().Index, Priority: 1}))
	unnumbered := node.Uplink{Link: "up1", MTU: 1500, IPv4: dst("203.0.113.255"), IPv6: dst("2001:db8:ffff::1")}
	compare(map[netip.Addr]node.Uplink{
		dst("::"): unnumbered, dst("0.0.0.0"): by4, rtr6: up0, rtr4: up0, dst("203.0.113.1"): by4, dst("fe80::1%up0"): up0,
	})
}

// The node's own addresses, their subnets and the other ends of its links are connected; those of pods' links are not.
func TestConnected(t *testing.T) {
	w := newWorld(t)
	w.uplink()
	w.attach(attachment(1, pod6, pod4))
	w.addVeth(w.ns, "ptp0", netnstest.New(t), "peer")
	w.must(w.host.AddrAdd(w.link(w.ns, "ptp0"), &netlink.Addr{IPNet: network("203.0.113.1/32"), Peer: network("203.0.113.2/32")}))
	w.address(w.ns, "lo", "2001:db8:ffff::1/128")
	got, err := w.d.Connected(t.Context())
	w.must(err)
	slices.SortFunc(got, netip.Prefix.Compare)
	want := []netip.Prefix{
		netip.PrefixFrom(own4, 24), netip.MustParsePrefix("203.0.113.1/32"), netip.MustParsePrefix("203.0.113.2/32"),
		netip.PrefixFrom(own6, 64), netip.MustParsePrefix("2001:db8:ffff::1/128"),
	}
	if !slices.Equal(got, want) {
		t.Errorf("Connected() = %v, want %v", got, want)
	}
	names, err := w.d.LinkNames(t.Context())
	w.must(err)
	wantNames := map[netip.Addr]string{own4: "up0", own6: "up0", want[1].Addr(): "ptp0", want[4].Addr(): "lo"}
	if !maps.Equal(names, wantNames) {
		t.Errorf("LinkNames() = %v, want %v", names, wantNames)
	}
}

func TestPrepare(t *testing.T) {
	w := newWorld(t)
	w.uplink()
	for link, value := range map[string]string{"all": "1", "default": "1", "lo": "1", "up0": "0"} {
		netnstest.Sysctl(t, w.ns, "net/ipv6/conf/"+link+"/accept_ra", value)
	}
	// A name with a dot in it is a link as any other.
	w.addVeth(w.ns, "vlan.7", netnstest.New(t), "peer")
	want := w.settings(w.ns)
	for range 2 {
		w.must(w.d.Prepare(t.Context()))
		for _, key := range []string{
			"ipv4/ip_forward", "ipv4/fib_multipath_hash_policy", "ipv6/fib_multipath_hash_policy",
			"ipv6/conf/all/forwarding",
		} {
			want["/proc/sys/net/"+key] = "1"
		}
		want["/proc/sys/net/ipv6/conf/vlan.7/accept_ra"] = "2"
		want["/proc/sys/net/ipv4/conf/all/accept_redirects"] = "0" // by the kernel, as is what follows
		for key := range want {
			if strings.HasSuffix(key, "/forwarding") && strings.HasPrefix(key, "/proc/sys/net/ipv") {
				want[key] = "1"
			}
		}
		w.same("settings", want, w.settings(w.ns))
	}
}

// B-109: a default route that came from a router advertisement is there after forwarding was turned on, and another
// advertisement is still heard. C35.
func TestPrepareKeepsRouterAdvertisements(t *testing.T) {
	w := newWorld(t)
	router := netnstest.New(t)
	w.addVeth(w.ns, "up0", router, "node")
	advertised := func() bool {
		w.advertise(router, "node")
		return len(only(w.describe(w.ns), "route table 254 unicast ::/0 via fe80::")) == 1
	}
	w.eventually(advertised, func() string { return "there is no default route from the router" })

	w.must(w.d.Prepare(t.Context()))
	if len(only(w.describe(w.ns), "route table 254 unicast ::/0 via fe80::")) != 1 {
		t.Error("the default route is gone")
	}
	routes, err := w.host.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Protocol: unix.RTPROT_RA}, netlink.RT_FILTER_PROTOCOL)
	w.must(err)
	for _, r := range routes {
		w.must(w.host.RouteDel(&r))
	}
	w.eventually(advertised, func() string { return "the router is not heard any more" })
}

// advertise sends a router advertisement (RFC 4861 section 4.2) with a lifetime of half an hour to all nodes.
func (w *world) advertise(router *os.File, link string) {
	w.Helper()
	index := w.link(router, link).Attrs().Index
	netnstest.Do(w.T, router, func() {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6)
		w.must(err)
		defer unix.Close(fd)
		w.must(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255))
		w.must(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, index))
		const typeRA, hopLimit, lifetime = 134, 64, 1800
		message := []byte{typeRA, 0, 0, 0, hopLimit, 0, lifetime >> 8, lifetime & 0xff, 0, 0, 0, 0, 0, 0, 0, 0}
		to := &unix.SockaddrInet6{Addr: netip.IPv6LinkLocalAllNodes().As16(), ZoneId: uint32(index)}
		w.must(unix.Sendto(fd, message, 0, to))
	})
}
