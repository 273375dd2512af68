package datapath_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/integration/netnstest"
	"github.com/gaggle-cni/gaggle/node"
	"github.com/gaggle-cni/gaggle/node/datapath"
)

// What Attach makes, in the words of describe; the lines are sorted. No address is tentative (C10, C29), MTU and MACs are as
// chosen (C19, C20), the pod's neighbours are permanent, the host's are not (C36).
const (
	podLink  = `link eth0 veth mtu 1400 mac 02:02:00:00:00:01 group 0 flags up|broadcast|multicast alias ""`
	podAddr4 = `addr 10.1.0.1/32 eth0 scope universe`
	podAddr6 = `addr 2001:db8:1::1/128 eth0 scope universe
addr fe80::2:ff:fe00:1/64 eth0 scope link`
	podNeigh4 = `neigh 169.254.1.1 eth0 02:01:00:00:00:01 permanent`
	podNeigh6 = `neigh fe80::1 eth0 02:01:00:00:00:01 permanent`
	podRoute4 = `route table 254 unicast 0.0.0.0/0 via 169.254.1.1 dev eth0 proto 3 metric 0 scope universe
route table 254 unicast 169.254.1.1/32 dev eth0 proto 3 metric 0 scope link`
	podRoute6 = `route table 254 unicast 2001:db8:1::1/128 dev eth0 proto 2 metric 256 scope universe
route table 254 unicast ::/0 via fe80::1 dev eth0 proto 3 metric 1024 scope universe
route table 254 unicast fe80::/64 dev eth0 proto 2 metric 256 scope universe`

	hostLink = `link ggl000000000001 veth mtu 1400 mac 02:01:00:00:00:01 group 103 flags up|broadcast|multicast ` +
		`alias "gaggle/c1/eth0 default/c1"`
	hostAddr4  = `addr 169.254.1.1/32 ggl000000000001 scope link`
	hostAddr6  = `addr fe80::1/64 ggl000000000001 scope link`
	hostNeigh4 = `neigh 10.1.0.1 ggl000000000001 02:02:00:00:00:01`
	hostNeigh6 = `neigh 2001:db8:1::1 ggl000000000001 02:02:00:00:00:01`
	hostRoute6 = `route table 254 unicast fe80::/64 dev ggl000000000001 proto 2 metric 256 scope universe`
)

var families = []struct {
	name      string
	addrs     []netip.Addr
	pod, host []string
}{
	{
		"dual stack",
		[]netip.Addr{pod6, pod4},
		[]string{podAddr4, podAddr6, podLink, podNeigh4, podNeigh6, podRoute4, podRoute6},
		[]string{hostAddr4, hostAddr6, hostLink, hostNeigh4, hostNeigh6, hostRoute6},
	},
	{
		"IPv6",
		[]netip.Addr{pod6},
		[]string{podAddr6, podLink, podNeigh6, podRoute6},
		[]string{hostAddr6, hostLink, hostNeigh6, hostRoute6},
	},
	{
		"IPv4",
		[]netip.Addr{pod4},
		[]string{podAddr4, podLink, podNeigh4, podRoute4},
		[]string{hostAddr4, hostLink, hostNeigh4},
	},
}

func TestAttach(t *testing.T) {
	for _, tt := range families {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			pod := netnstest.New(t)
			for _, ns := range []*os.File{w.ns, pod} { // a default that would have every address checked for duplicates
				netnstest.Sysctl(t, ns, "net/ipv6/conf/all/accept_dad", "1")
				netnstest.Sysctl(t, ns, "net/ipv6/conf/default/accept_dad", "1")
			}
			a := attachment(1, tt.addrs...)
			w.wired(w.d.Attach(t.Context(), pod, a))
			w.compare("pod", tt.pod, of("eth0", w.describe(pod)))
			w.compare("node", tt.host, of(a.HostIf, w.describe(w.ns)))
			for _, addr := range tt.addrs {
				w.bindable(pod, addr)
			}
			w.routeTo(a)
			for _, addr := range tt.addrs {
				w.reaches(w.ns, addr)
			}
		})
	}
}

// C29: what comes for the pod right after Attach is not lost. A datagram is not sent twice.
func TestFirstPacketArrives(t *testing.T) {
	w := newWorld(t)
	for n := range byte(60) {
		addr := netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: n + 1})
		a := attachment(n, addr)
		w.attach(a)
		w.routeTo(a)
		netnstest.Do(t, w.ns, func() {
			c, err := net.Dial("udp", netip.AddrPortFrom(addr, 9).String())
			w.must(err)
			defer c.Close()
			w.must(c.SetDeadline(time.Now().Add(patience / 10)))
			_, err = c.Write([]byte{0})
			w.must(err)
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
				t.Fatalf("pod %d answers %v, want that the port is closed", n, err)
			}
		})
	}
}

// What an earlier attempt left, in the same container or another, is replaced: C04, B-017. C48.
func TestAttachReplacesAnEarlierAttempt(t *testing.T) {
	for _, tt := range families {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			a := attachment(1, tt.addrs...)
			first := w.attach(a)
			w.wired(w.d.Attach(t.Context(), first, a))
			w.compare("pod", tt.pod, of("eth0", w.describe(first)))
			w.compare("node", tt.host, of(a.HostIf, w.describe(w.ns)))

			second := w.attach(a)
			w.compare("second pod", tt.pod, of("eth0", w.describe(second)))
			w.compare("first pod", nil, of("eth0", w.describe(first)))
			w.compare("node", tt.host, of(a.HostIf, w.describe(w.ns)))
		})
	}
}

// C02: the container's own interface stays, and nothing is left on the node.
func TestAttachRefusesATakenInterfaceName(t *testing.T) {
	w := newWorld(t)
	router, pod := w.uplink(), netnstest.New(t)
	w.addVeth(pod, "eth0", router, "peer")
	podBefore, nodeBefore := w.describe(pod), w.describe(w.ns)
	podSettings, nodeSettings := w.settings(pod), w.settings(w.ns)
	_, err := w.d.Attach(t.Context(), pod, attachment(1, pod6, pod4))
	if !errors.Is(err, node.ErrInterfaceExists) {
		t.Errorf("Attach() = %v, want %v", err, node.ErrInterfaceExists)
	}
	w.compare("pod", podBefore, w.describe(pod))
	w.compare("node", nodeBefore, w.describe(w.ns))
	w.same("pod's settings", podSettings, w.settings(pod))
	w.same("node's settings", nodeSettings, w.settings(w.ns))
}

// B-017: a link of the host interface's name that does not carry our mark is neither replaced nor removed. C48.
func TestAttachRefusesAForeignHostLink(t *testing.T) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = attachment(1).HostIf
	marked := attrs
	marked.Group = datapath.Group
	for _, link := range []netlink.Link{
		&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"},
		&netlink.Bridge{LinkAttrs: marked}, // of our group, but no veth
	} {
		t.Run(link.Type(), func(t *testing.T) {
			w := newWorld(t)
			w.must(w.host.LinkAdd(link))
			pod := netnstest.New(t)
			podBefore, nodeBefore := w.describe(pod), w.describe(w.ns)
			a := attachment(1, pod6, pod4)
			if _, err := w.d.Attach(t.Context(), pod, a); !errors.Is(err, node.ErrForeignLink) {
				t.Errorf("Attach() = %v, want %v", err, node.ErrForeignLink)
			}
			if err := w.d.Detach(t.Context(), a); err != nil {
				t.Errorf("Detach() = %v, want none", err)
			}
			w.compare("pod", podBefore, w.describe(pod))
			w.compare("node", nodeBefore, w.describe(w.ns))
		})
	}
}

// C24: what is no container's network namespace is refused before anything is done.
func TestAttachRefusesWhatIsNoContainersNamespace(t *testing.T) {
	w := newWorld(t)
	before := w.describe(w.ns)
	open := func(path string) *os.File {
		f, err := os.Open(path)
		w.must(err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	for name, ns := range map[string]*os.File{
		"the node's": w.ns, "another kind": open("/proc/self/ns/uts"), "a file": open("/proc/self/comm"), "a directory": open("/"),
	} {
		if _, err := w.d.Attach(t.Context(), ns, attachment(1, pod6, pod4)); !errors.Is(err, node.ErrNetns) {
			t.Errorf("%s: Attach() = %v, want %v", name, err, node.ErrNetns)
		}
	}
	w.compare("node", before, w.describe(w.ns))
}

// An Attach that is given up leaves nothing, although its context is no more when it cleans up.
func TestAttachThatIsCancelledLeavesNothing(t *testing.T) {
	w := newWorld(t)
	pod := netnstest.New(t)
	podBefore, nodeBefore := w.describe(pod), w.describe(w.ns)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.d.Attach(ctx, pod, attachment(1, pod6, pod4)); !errors.Is(err, context.Canceled) {
		t.Errorf("Attach() = %v, want %v", err, context.Canceled)
	}
	w.compare("pod", podBefore, w.describe(pod))
	w.compare("node", nodeBefore, w.describe(w.ns))
}

// B-104, C28: IPv6 works in a namespace that was made with IPv6 off, and stays off for other interfaces.
func TestAttachWhereIPv6IsOff(t *testing.T) {
	for _, tt := range families {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			pod := netnstest.New(t)
			for _, ns := range []*os.File{w.ns, pod} {
				netnstest.Sysctl(t, ns, "net/ipv6/conf/all/disable_ipv6", "1")
				netnstest.Sysctl(t, ns, "net/ipv6/conf/default/disable_ipv6", "1")
			}
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "other"
			w.must(netnstest.Handle(t, pod).LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))

			a := attachment(1, tt.addrs...)
			w.wired(w.d.Attach(t.Context(), pod, a))
			w.compare("pod", tt.pod, of("eth0", w.describe(pod)))
			w.compare("node", tt.host, of(a.HostIf, w.describe(w.ns)))
			want := "1"
			if slices.Contains(tt.addrs, pod6) {
				want = "0"
			}
			for link, want := range map[string]string{"lo": want, "eth0": want, "other": "1", "all": "1", "default": "1"} {
				if got := netnstest.Sysctl(t, pod, "net/ipv6/conf/"+link+"/disable_ipv6"); got != want {
					t.Errorf("disable_ipv6 of %s = %s, want %s", link, got, want)
				}
			}
			w.routeTo(a)
			for _, addr := range tt.addrs {
				w.reaches(w.ns, addr)
			}
		})
	}
}

// The MTU of the uplink may be below what IPv6 needs; IPv4 works all the same.
func TestAttachWithAnMTUTooSmallForIPv6(t *testing.T) {
	w := newWorld(t)
	a := attachment(1, pod4)
	a.MTU = 1000
	w.attach(a)
	w.routeTo(a)
	w.reaches(w.ns, pod4)
}

// C36: a chained plugin may give the pod another MAC.
func TestPodIsReachedAfterItsMACChanged(t *testing.T) {
	w := newWorld(t)
	a := attachment(1, pod6, pod4)
	pod := w.attach(a)
	w.routeTo(a)
	for _, family := range []string{"ipv4", "ipv6"} { // or it takes the kernel seconds to doubt a neighbour
		netnstest.Sysctl(t, w.ns, "net/"+family+"/neigh/"+a.HostIf+"/delay_first_probe_time", "1")
		netnstest.Sysctl(t, w.ns, "net/"+family+"/neigh/"+a.HostIf+"/retrans_time_ms", "50")
	}
	mac := net.HardwareAddr{2, 9, 9, 9, 9, 9}
	w.must(netnstest.Handle(t, pod).LinkSetHardwareAddr(w.link(pod, "eth0"), mac))
	w.reaches(w.ns, pod6)
	w.reaches(w.ns, pod4)
}

// of keeps the lines about one link, but none of the table that the kernel keeps by itself.
func of(link string, lines []string) []string {
	return slices.DeleteFunc(lines, func(line string) bool {
		return !slices.Contains(strings.Fields(line), link) || strings.HasPrefix(line, "route table 255")
	})
}

// compare compares what describe returns; one entry of want may be several lines.
func (w *world) compare(what string, want, got []string) {
	w.Helper()
	w.same(what, strings.Join(want, "\n"), strings.Join(got, "\n"))
}

func (w *world) same(what string, want, got any) {
	w.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		w.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// bindable checks that an address can be used now: one that is tentative cannot.
func (w *world) bindable(ns *os.File, addr netip.Addr) {
	w.Helper()
	netnstest.Do(w.T, ns, func() {
		l, err := net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
		w.must(err)
		l.Close()
	})
}

// Further addresses can be used by who asks for them, and are never chosen: what a pod sends comes from its primary ones.
func TestSecondaryAddresses(t *testing.T) {
	w := newWorld(t)
	w.uplink()
	a := attachment(1, pod6, pod4)
	a.Extra = []netip.Addr{netip.MustParseAddr("2001:db8:f::1"), netip.MustParseAddr("203.0.113.1")}
	a.Anycast = []netip.Addr{netip.MustParseAddr("2001:db8::ffff"), netip.MustParseAddr("192.0.2.200")} // nearer to the router than the pod's own
	pod := w.attach(a)
	w.routeTo(a)
	for _, addr := range a.Bound() {
		w.bindable(pod, addr)
		target := host(addr)
		if slices.Contains(a.Anycast, addr) {
			via := a.Addrs[0]
			if addr.Is4() {
				via = a.Addrs[1]
			}
			w.must(w.d.Routes().Put(t.Context(), target, node.Route{
				Kind: node.RouteAnycast, Vias: node.MakeVias([]node.Via{{Addr: via, Link: a.HostIf}}),
			}))
		} else {
			w.must(w.d.Routes().Put(t.Context(), target, hostRoute(a.HostIf)))
		}
		w.reaches(w.ns, addr)
	}
	for to, want := range map[netip.Addr]netip.Addr{rtr6: pod6, rtr4: pod4, own6: pod6, own4: pod4} {
		netnstest.Do(t, pod, func() {
			c, err := net.Dial("udp", netip.AddrPortFrom(to, 9).String())
			w.must(err)
			defer c.Close()
			if got := netip.MustParseAddrPort(c.LocalAddr().String()).Addr(); got != want {
				t.Errorf("to %s the pod sends from %s, want %s", to, got, want)
			}
		})
	}
	if diffs, err := w.d.Check(t.Context(), pod, a); err != nil || len(diffs) > 0 {
		t.Errorf("Check() = %v, %v", diffs, err)
	}
	inv, err := w.d.Inventory(t.Context())
	w.must(err)
	if got := inv.Links[a.HostIf].Anycast; len(got) != 2 {
		t.Errorf("read off the kernel: anycast %v", got)
	}
}
