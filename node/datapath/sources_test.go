package datapath_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
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

type checks = map[node.LinkName]node.SourceCheck

func checkOf(addrs ...netip.Addr) node.SourceCheck {
	return node.SourceCheck{On: true, Addrs: node.MakeAddrs(addrs)}
}

// nft runs the program in the node's namespace.
func (w *world) nft(args ...string) string {
	w.Helper()
	path, err := exec.LookPath("nft")
	if err != nil {
		if path = "/usr/sbin/nft"; os.Getenv("CI") == "" {
			w.Skip("needs nft")
		}
	}
	var out []byte
	netnstest.Do(w.T, w.ns, func() { out, err = exec.CommandContext(w.Context(), path, args...).CombinedOutput() })
	if err != nil {
		w.Fatalf("nft %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// hears listens for datagrams in a namespace and returns where to and a function that tells the next one's text.
func (w *world) hears(ns *os.File, addr netip.Addr) (at netip.AddrPort, next func() string) {
	w.Helper()
	var conn *net.UDPConn
	netnstest.Do(w.T, ns, func() {
		var err error
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		w.must(err)
	})
	w.Cleanup(func() { conn.Close() })
	return conn.LocalAddr().(*net.UDPAddr).AddrPort(), func() string {
		w.Helper()
		w.must(conn.SetReadDeadline(time.Now().Add(patience)))
		text := make([]byte, 100)
		n, from, err := conn.ReadFromUDPAddrPort(text)
		w.must(err)
		return fmt.Sprintf("%s from %s", text[:n], from.Addr().Unmap())
	}
}

// says sends a datagram from an address. The container has it, whoever else has it too.
func (w *world) says(pod *os.File, text string, from netip.Addr, to netip.AddrPort) {
	w.Helper()
	lo, addr := w.link(pod, "lo"), &netlink.Addr{IPNet: hostNet(from), Flags: unix.IFA_F_NODAD}
	if len(only(w.describe(pod), "route table 255 local "+from.String()+"/")) == 0 {
		w.must(netnstest.Handle(w.T, pod).AddrAdd(lo, addr))
		defer func() { w.must(netnstest.Handle(w.T, pod).AddrDel(lo, addr)) }() // it may be that of somebody to speak to
	}
	netnstest.Do(w.T, pod, func() {
		conn, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), net.UDPAddrFromAddrPort(to))
		w.must(err)
		defer conn.Close()
		_, err = conn.Write([]byte(text))
		w.must(err)
	})
}

func hostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// A checkedWorld is a node with an uplink and two pods, one of which has further addresses.
type checkedWorld struct {
	*world
	router, pod, other *os.File
	sources            *datapath.Sources
	syncer             *node.Syncer[node.LinkName, node.SourceCheck]
	want               checks
}

var (
	extra6, extra4 = netip.MustParseAddr("2001:db8:f::5"), netip.MustParseAddr("203.0.113.5")
	next6, next4   = netip.MustParseAddr("2001:db8:1::2"), netip.MustParseAddr("10.1.0.2")
)

func newCheckedWorld(t *testing.T) *checkedWorld {
	w := &checkedWorld{world: newWorld(t)}
	w.router = w.uplink()
	w.must(w.d.Prepare(t.Context()))
	a, b := attachment(1, pod6, pod4), attachment(2, next6, next4)
	a.Extra = []netip.Addr{extra6, extra4}
	w.pod, w.other = w.attach(a), w.attach(b)
	w.routeTo(a)
	w.routeTo(b)
	w.sources = w.d.Sources()
	w.syncer = node.NewSyncer("source check", w.sources)
	w.want = checks{node.LinkName(a.HostIf): checkOf(a.Bound()...), node.LinkName(b.HostIf): checkOf(b.Bound()...)}
	return w
}

// settle does what a pass does.
func (w *checkedWorld) settle() {
	w.Helper()
	w.syncer.Doubt()
	w.must(errors.Join(w.syncer.Ensure(w.Context(), w.want).Err(), w.syncer.Prune(w.Context(), w.want).Err()))
}

// checked sends from addresses that the pod may not use, to the router, the node and another pod, and shows that only what is sent
// from its own arrives.
func (w *checkedWorld) checked(own, foreign []netip.Addr) {
	w.Helper()
	for _, to := range []struct {
		ns       *os.File
		to6, to4 netip.Addr
	}{
		{w.router, rtr6, rtr4},
		{w.ns, own6, own4},
		{w.other, next6, next4},
	} {
		for _, dst := range []netip.Addr{to.to6, to.to4} {
			at, next := w.hears(to.ns, dst)
			for _, from := range foreign {
				if from.Is4() == dst.Is4() && from != dst {
					w.says(w.pod, "foreign", from, at)
				}
			}
			for _, from := range own {
				if from.Is4() == dst.Is4() {
					w.says(w.pod, "own", from, at)
					if want, got := "own from "+from.String(), next(); got != want {
						w.Errorf("%s hears %q, want %q", dst, got, want)
					}
				}
			}
		}
	}
}

// A pod can send from its own addresses only, of both families and all kinds, to the world, the node and other pods. Without
// the check the kernel lets others pass.
func TestPodSendsFromItsOwnAddresses(t *testing.T) {
	w := newCheckedWorld(t)
	stranger6, stranger4 := netip.MustParseAddr("2001:db8:99::1"), netip.MustParseAddr("198.51.100.7")
	at, next := w.hears(w.router, rtr4)
	w.says(w.pod, "foreign", stranger4, at)
	if got := next(); got != "foreign from "+stranger4.String() {
		t.Fatalf("without the check the router hears %q: the test shows nothing", got)
	}

	w.settle()
	own := []netip.Addr{pod6, pod4, extra6, extra4}
	foreign := []netip.Addr{stranger6, stranger4, next6, next4, own6, own4, node.Gateway4}
	w.checked(own, foreign)
	// The node and the pods reach each other as ever: neighbours, answers, errors.
	w.reaches(w.ns, pod6)
	w.reaches(w.ns, pod4)
	w.reaches(w.pod, next6)
	w.reaches(w.pod, next4)

	// What it may send from follows its addresses.
	link := node.LinkName(attachment(1).HostIf)
	w.want[link] = checkOf(pod6, pod4, extra6)
	w.settle()
	w.checked([]netip.Addr{pod6, pod4, extra6}, append(foreign, extra4))
	delete(w.want, link)
	w.settle()
	at, next = w.hears(w.router, rtr4)
	w.says(w.pod, "foreign", stranger4, at)
	if got := next(); got != "foreign from "+stranger4.String() {
		t.Errorf("without a check of its link the router hears %q", got)
	}
}

// A link that is not checked is nobody's business, whatever it is called.
func TestForeignLinksAreNotChecked(t *testing.T) {
	w := newCheckedWorld(t)
	w.settle()
	peer := netnstest.New(t)
	w.addVeth(w.ns, "gglforeign", peer, "far")
	w.address(w.ns, "gglforeign", "198.51.100.1/24", "2001:db8:c::1/64")
	w.address(peer, "far", "198.51.100.2/24", "2001:db8:c::2/64")
	w.reaches(peer, netip.MustParseAddr("198.51.100.1"))
	w.reaches(peer, netip.MustParseAddr("2001:db8:c::1"))
}

// B-112, I24: whatever somebody does to the table is noticed and made good, and no other table is touched.
func TestSourceCheckIsRestored(t *testing.T) {
	w := newCheckedWorld(t)
	w.nft("add table inet theirs { chain c { type filter hook forward priority 0; policy accept; counter; }; }")
	w.settle()
	whole := func() string { return w.nft("--stateless", "list", "table", "inet", datapath.Table) }
	want := whole()
	w.watch()
	link := attachment(1).HostIf
	for _, damage := range []string{
		"delete table inet gaggle",
		"delete rule inet gaggle prerouting handle $last",
		"insert rule inet gaggle prerouting accept",
		"flush chain inet gaggle prerouting",
		"flush set inet gaggle links",
		"flush set inet gaggle sources6",
		"delete element inet gaggle sources4 { " + link + " . " + pod4.String() + " }",
		"add element inet gaggle sources4 { " + link + " . " + next4.String() + " }",
		"add element inet gaggle links { strange0 }",
		"add table inet gaggle { flags dormant; }",
		"add chain inet gaggle another",
		"add set inet gaggle another { type ipv4_addr; }",
	} {
		t.Run(damage, func(t *testing.T) {
			if command, ok := strings.CutSuffix(damage, "$last"); ok {
				list := strings.Split(strings.TrimSpace(w.nft("--handle", "list", "chain", "inet", "gaggle", "prerouting")), "\n")
				_, handle, _ := strings.Cut(list[len(list)-3], "# handle ")
				damage = command + handle
			}
			before := w.changes.Load()
			w.nft(damage)
			w.changed(before + 1)
			w.settle()
			if diff := cmp.Diff(want, whole()); diff != "" {
				t.Errorf("after the repair (-want +got):\n%s", diff)
			}
		})
	}
	w.checked([]netip.Addr{pod6, pod4}, []netip.Addr{next6, next4})

	if theirs := w.nft("list", "table", "inet", "theirs"); !strings.Contains(theirs, "counter") {
		t.Errorf("the foreign table is %q", theirs)
	}
	w.nft("flush", "ruleset")
	w.settle()
	if diff := cmp.Diff(want, whole()); diff != "" {
		t.Errorf("after a flush of everything (-want +got):\n%s", diff)
	}
	// A new process finds what the last one left, and changes nothing.
	before := w.changes.Load()
	w.sources = w.d.Sources()
	w.syncer = node.NewSyncer("source check", w.sources)
	w.before.Store(new(func(op string) error { return errors.New("unexpected change: " + op) }))
	w.settle()
	w.before.Store(nil)
	if n := w.changes.Load(); n != before {
		t.Errorf("%d changes were reported for what we did ourselves", n-before)
	}

	// With the last pod goes the table; a damaged one too.
	w.want = nil
	w.settle()
	if got := w.nft("list", "ruleset"); got != "" {
		t.Errorf("without a pod the rule set is\n%s", got)
	}
	w.nft("add table inet gaggle { set links { type ipv4_addr; }; }")
	w.settle()
	if got := w.nft("list", "ruleset"); got != "" {
		t.Errorf("without a pod the rule set is\n%s", got)
	}
}

// B-121, L08: what a pod says of routers goes nowhere, while looks for neighbours and duplicate addresses do.
func TestPodIsNoRouter(t *testing.T) {
	w := newCheckedWorld(t)
	w.settle()
	link := attachment(1).HostIf
	netnstest.Sysctl(t, w.ns, "net/ipv6/conf/"+link+"/accept_ra", "2") // as if somebody had turned it on
	before := w.describe(w.ns)
	w.must(rawICMP6(t, w.pod, append([]byte{134, 0, 0, 0, 64, 0, 0x0e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0},
		// prefix information, on-link and autonomous (RFC 4861 section 4.6.2)
		3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0, 0x20, 1, 0x0d, 0xb8, 0, 0x66, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)))
	w.reaches(w.pod, own6) // it has been handled by now
	if diff := cmp.Diff(before, w.describe(w.ns)); diff != "" {
		t.Errorf("a router advertisement of a pod changed the node (-before +after):\n%s", diff)
	}
	if got := w.nft("list", "chain", "inet", "gaggle", "prerouting"); !strings.Contains(got, "nd-router-advert counter packets 1") {
		t.Errorf("it was not dropped as one:\n%s", got)
	}
}

// rawICMP6 sends a message from the pod's link-local address to all nodes; the kernel fills in the checksum.
func rawICMP6(t *testing.T, pod *os.File, message []byte) (err error) {
	netnstest.Do(t, pod, func() {
		var fd int
		if fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6); err != nil {
			return
		}
		defer unix.Close(fd)
		link, linkErr := net.InterfaceByName("eth0")
		err = errors.Join(linkErr, unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255))
		if err == nil {
			all := netip.MustParseAddr("ff02::1").As16()
			err = unix.Sendto(fd, message, 0, &unix.SockaddrInet6{Addr: all, ZoneId: uint32(link.Index)})
		}
	})
	return err
}

// C05 for the source check: a change that fails is told, what was there stays, and the next one makes good.
func TestEachSourceCheckChangeFails(t *testing.T) {
	w := newCheckedWorld(t)
	w.settle()
	link := node.LinkName(attachment(1).HostIf)
	whole := func() string { return w.nft("--stateless", "list", "table", "inet", datapath.Table) }
	fault := errors.New("fault")
	for name, step := range map[string]func() error{
		"put":    func() error { return w.sources.Put(t.Context(), link, checkOf(pod6)) },
		"delete": func() error { return w.sources.Delete(t.Context(), link) },
	} {
		before, op := whole(), ""
		if hit := w.failing(1, fault, &op, func() {
			if err := step(); !errors.Is(err, fault) {
				t.Errorf("%s, %s: %v, want the fault", name, op, err)
			}
		}); !hit {
			t.Errorf("%s made no change", name)
		}
		if diff := cmp.Diff(before, whole()); diff != "" {
			t.Errorf("%s failed, and changed (-before +after):\n%s", name, diff)
		}
		w.must(step())
		w.settle()
	}
	for _, name := range []node.LinkName{"", "a-name-that-is-too-long"} {
		if err := w.sources.Put(t.Context(), name, checkOf(pod6)); err == nil {
			t.Errorf("Put(%q) succeeds", name)
		}
	}
}
