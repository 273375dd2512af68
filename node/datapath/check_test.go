package datapath_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/integration/netnstest"
	"github.com/gaggle-cni/gaggle/node"
)

// E02, E03: each thing that is not as it was made is named, and nothing is changed by looking.
func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(w *world, pod *os.File, host, inside *netlink.Handle, a *node.Attachment)
		want  string // empty: nothing is wrong
	}{
		{"as it was made", func(*world, *os.File, *netlink.Handle, *netlink.Handle, *node.Attachment) {}, ""},
		{"pair gone", func(w *world, _ *os.File, host, _ *netlink.Handle, a *node.Attachment) {
			w.must(host.LinkDel(w.link(w.ns, a.HostIf)))
		}, "link ggl000000000001 is missing"},
		{"renamed in the container", func(w *world, pod *os.File, _, inside *netlink.Handle, _ *node.Attachment) {
			link := w.link(pod, "eth0")
			w.must(inside.LinkSetDown(link))
			w.must(inside.LinkSetName(link, "x0"))
		}, "link eth0 in the container is missing"},
		{"another's link", func(w *world, _ *os.File, host, _ *netlink.Handle, a *node.Attachment) {
			w.must(host.LinkSetGroup(w.link(w.ns, a.HostIf), 0))
		}, "is not ours"},
		{"another pair's end", func(w *world, pod *os.File, _, inside *netlink.Handle, _ *node.Attachment) {
			w.must(inside.LinkDel(w.link(pod, "eth0")))
			w.addVeth(pod, "eth0", netnstest.New(w.T), "peer")
			// The first pair went with its end: the node has another of that name.
			w.addVeth(w.ns, "ggl000000000001", netnstest.New(w.T), "peer")
			w.must(w.host.LinkSetGroup(w.link(w.ns, "ggl000000000001"), 103))
		}, "not ends of one veth pair"},
		{"down on the node", func(w *world, _ *os.File, host, _ *netlink.Handle, a *node.Attachment) {
			w.must(host.LinkSetDown(w.link(w.ns, a.HostIf)))
		}, "link ggl000000000001 is down"},
		{"down in the container", func(w *world, pod *os.File, _, inside *netlink.Handle, _ *node.Attachment) {
			w.must(inside.LinkSetDown(w.link(pod, "eth0")))
		}, "link eth0 in the container is down"},
		{"another MAC", func(w *world, pod *os.File, _, inside *netlink.Handle, _ *node.Attachment) {
			w.must(inside.LinkSetHardwareAddr(w.link(pod, "eth0"), net.HardwareAddr{2, 9, 9, 9, 9, 9}))
		}, "MAC of eth0 in the container is 02:09:09:09:09:09, want 02:02:00:00:00:01"},
		{"another MAC that the chain knows of", func(w *world, pod *os.File, _, inside *netlink.Handle, a *node.Attachment) { // E04, M03
			w.must(inside.LinkSetHardwareAddr(w.link(pod, "eth0"), net.HardwareAddr{2, 9, 9, 9, 9, 9}))
			a.MAC = node.MAC{2, 9, 9, 9, 9, 9}
		}, ""},
		{"another MAC on the node", func(w *world, _ *os.File, host, _ *netlink.Handle, a *node.Attachment) {
			w.must(host.LinkSetHardwareAddr(w.link(w.ns, a.HostIf), net.HardwareAddr{2, 9, 9, 9, 9, 9}))
		}, "MAC of ggl000000000001 is"},
		{"MTU on the node", func(w *world, _ *os.File, host, _ *netlink.Handle, a *node.Attachment) {
			w.must(host.LinkSetMTU(w.link(w.ns, a.HostIf), 1300))
		}, "MTU of ggl000000000001 is 1300, want 1400"},
		{"a larger MTU in the container", func(w *world, pod *os.File, _, inside *netlink.Handle, _ *node.Attachment) {
			w.must(inside.LinkSetMTU(w.link(pod, "eth0"), 1500))
		}, "MTU of eth0 in the container is 1500, want 1400 at most"},
		{"a smaller MTU in the container", func(w *world, pod *os.File, _, inside *netlink.Handle, _ *node.Attachment) { // M03
			w.must(inside.LinkSetMTU(w.link(pod, "eth0"), 1300))
		}, ""},
		{"IPv6 address gone", func(w *world, pod *os.File, _, inside *netlink.Handle, _ *node.Attachment) {
			w.must(inside.AddrDel(w.link(pod, "eth0"), &netlink.Addr{IPNet: network("2001:db8:1::1/128")}))
		}, "address 2001:db8:1::1/128 of eth0 in the container is missing"},
		{"IPv4 address gone", func(w *world, pod *os.File, _, inside *netlink.Handle, _ *node.Attachment) {
			w.must(inside.AddrDel(w.link(pod, "eth0"), &netlink.Addr{IPNet: network("10.1.0.1/32")}))
		}, "address 10.1.0.1/32 of eth0 in the container is missing"},
		{"one address more", func(w *world, pod *os.File, _, _ *netlink.Handle, _ *node.Attachment) {
			w.address(pod, "eth0", "10.99.0.1/32")
		}, ""},
		{"gateway gone from the node", func(w *world, _ *os.File, host, _ *netlink.Handle, a *node.Attachment) {
			w.must(host.AddrDel(w.link(w.ns, a.HostIf), &netlink.Addr{IPNet: network("169.254.1.1/32"), Scope: int(netlink.SCOPE_LINK)}))
		}, "address 169.254.1.1/32 of ggl000000000001 is missing"},
		{"IPv6 default route gone", func(w *world, pod *os.File, _, inside *netlink.Handle, _ *node.Attachment) {
			w.must(inside.RouteDel(&netlink.Route{Dst: everything(pod6), Gw: node.Gateway6.AsSlice(), LinkIndex: w.link(pod, "eth0").Attrs().Index}))
		}, "default route via fe80::1 in the container is missing"},
		{"IPv4 default route gone", func(w *world, pod *os.File, _, inside *netlink.Handle, _ *node.Attachment) {
			w.must(inside.RouteDel(&netlink.Route{Dst: everything(pod4), Gw: node.Gateway4.AsSlice()}))
		}, "default route via 169.254.1.1 in the container is missing"},
		{"default route in another table", func(w *world, pod *os.File, _, inside *netlink.Handle, _ *node.Attachment) { // E04, M05
			route := &netlink.Route{Dst: everything(pod4), Gw: node.Gateway4.AsSlice(), LinkIndex: w.link(pod, "eth0").Attrs().Index}
			moved := *route
			moved.Table = 100
			w.must(inside.RouteDel(route))
			w.must(inside.RouteAdd(&moved))
		}, ""},
		{"gateway's neighbour gone", func(w *world, pod *os.File, _, inside *netlink.Handle, _ *node.Attachment) {
			w.must(inside.NeighDel(&netlink.Neigh{LinkIndex: w.link(pod, "eth0").Attrs().Index, Family: unix.AF_INET6, IP: node.Gateway6.AsSlice()}))
		}, ""},
		{"gateway's neighbour another", func(w *world, pod *os.File, _, inside *netlink.Handle, _ *node.Attachment) {
			w.must(inside.NeighSet(&netlink.Neigh{
				LinkIndex: w.link(pod, "eth0").Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT,
				IP: node.Gateway4.AsSlice(), HardwareAddr: net.HardwareAddr{2, 9, 9, 9, 9, 9},
			}))
		}, "neighbour 169.254.1.1 in the container is 02:09:09:09:09:09, want 02:01:00:00:00:01"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			a := attachment(1, pod6, pod4)
			pod := w.attach(a)
			w.routeTo(a)
			tt.spoil(w, pod, w.host, netnstest.Handle(t, pod), &a)
			see := func() (inPod, onNode []string) { // what the kernel does not change by itself
				neighbour := func(line string) bool { return strings.HasPrefix(line, "neigh ") }
				return of("eth0", w.describe(pod)), slices.DeleteFunc(of(a.HostIf, w.describe(w.ns)), neighbour)
			}
			podBefore, nodeBefore := see()
			diffs, err := w.d.Check(t.Context(), pod, a)
			w.must(err)
			switch got := fmt.Sprint(diffs); {
			case tt.want == "" && len(diffs) > 0:
				t.Errorf("Check() = %s, want none", got)
			case tt.want != "" && !strings.Contains(got, tt.want):
				t.Errorf("Check() = %s, want one about %q", got, tt.want)
			}
			podAfter, nodeAfter := see()
			w.compare("pod", podBefore, podAfter)
			w.compare("node", nodeBefore, nodeAfter)
		})
	}
}

// E07, D16: what counts is which namespace it is, by whatever path it came.
func TestCheckInAnotherNamespace(t *testing.T) {
	w := newWorld(t)
	a, b := attachment(1, pod6, pod4), attachment(2, rtr6, rtr4)
	first, other := w.attach(a), w.attach(b)
	diffs, err := w.d.Check(t.Context(), other, a)
	w.must(err)
	if len(diffs) == 0 {
		t.Error("Check() finds nothing wrong with another container's namespace")
	}
	for ns, want := range map[*os.File]bool{first: true, other: false} {
		if got, err := w.d.Attached(t.Context(), ns, a); err != nil || got != want {
			t.Errorf("Attached() = %v, %v; want %v", got, err, want)
		}
	}
	if _, err := w.d.Check(t.Context(), w.ns, a); !errors.Is(err, node.ErrNetns) {
		t.Errorf("Check() in the node's namespace = %v, want %v", err, node.ErrNetns)
	}
}
