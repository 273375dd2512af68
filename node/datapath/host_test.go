package datapath_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/integration/netnstest"
	"github.com/gaggle-cni/gaggle/node"
	"github.com/gaggle-cni/gaggle/node/datapath"
)

// C30, C31, B-103: both gateways answer a pod that has to ask for them, on a host without a default route; and the host finds
// the pod by asking. C32.
func TestGatewaysAnswer(t *testing.T) {
	w := newWorld(t)
	a := attachment(1, pod6, pod4)
	pod := w.attach(a)
	w.routeTo(a)
	ask := func(ns *os.File, link string, addrs ...netip.Addr) {
		t.Helper()
		h, l := netnstest.Handle(t, ns), w.link(ns, link)
		for _, addr := range addrs {
			w.must(h.NeighDel(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: addr.AsSlice()}))
		}
	}
	ask(pod, "eth0", node.Gateway6, node.Gateway4)
	ask(w.ns, a.HostIf, pod6, pod4)
	w.reaches(pod, node.Gateway6.WithZone("eth0"))
	w.reaches(pod, node.Gateway4)
	w.reaches(w.ns, pod6)
	w.reaches(w.ns, pod4)
}

// C33, B-009: whatever the host's defaults for the reverse path filter are, and whoever sets them again, a pod is reached from
// outside, and the filter on its link is the loose one.
func TestReversePathFilter(t *testing.T) {
	for _, all := range []string{"0", "1", "2"} {
		for _, standard := range []string{"0", "1", "2"} {
			t.Run(all+standard, func(t *testing.T) {
				w := newWorld(t)
				router := w.uplink()
				netnstest.Sysctl(t, w.ns, "net/ipv4/conf/all/rp_filter", all)
				netnstest.Sysctl(t, w.ns, "net/ipv4/conf/default/rp_filter", standard)
				w.must(w.d.Prepare(t.Context()))
				a := attachment(1, pod6, pod4)
				w.attach(a)
				w.routeTo(a)
				key := "net/ipv4/conf/" + a.HostIf + "/rp_filter"
				if got := netnstest.Sysctl(t, w.ns, key); got != "2" {
					t.Errorf("rp_filter %s, want 2", got)
				}
				for _, route := range []netip.Addr{pod6, pod4} {
					gw := netip.MustParseAddr("2001:db8::10")
					if route.Is4() {
						gw = netip.MustParseAddr("192.0.2.10")
					}
					dst := &net.IPNet{IP: route.AsSlice(), Mask: net.CIDRMask(route.BitLen(), route.BitLen())}
					w.must(netnstest.Handle(t, router).RouteAdd(&netlink.Route{Dst: dst, Gw: gw.AsSlice()}))
					w.reaches(router, route)
				}
				netnstest.Sysctl(t, w.ns, key, standard) // as systemd-sysctl does
				ends, err := w.d.Ends().List(t.Context())
				w.must(err)
				end := ends[node.LinkName(a.HostIf)]
				if end.Settings != (standard == "2") {
					t.Errorf("rp_filter %s goes for right: %v", standard, end.Settings)
				}
				w.must(w.d.Ends().Put(t.Context(), node.LinkName(a.HostIf), a.End()))
				if got := netnstest.Sysctl(t, w.ns, key); got != "2" {
					t.Errorf("rp_filter %s after the repair, want 2", got)
				}
			})
		}
	}
}

// C34, L08: the host's end forwards and hears no router advertisements, and the pod's hears none either.
func TestSettingsOfBothEnds(t *testing.T) {
	w := newWorld(t)
	for _, key := range []string{"forwarding", "accept_ra"} { // what new links would get
		netnstest.Sysctl(t, w.ns, "net/ipv6/conf/default/"+key, map[string]string{"forwarding": "0", "accept_ra": "2"}[key])
	}
	a := attachment(1, pod6, pod4)
	pod := netnstest.New(t)
	netnstest.Sysctl(t, pod, "net/ipv6/conf/default/accept_ra", "2")
	w.wired(w.d.Attach(t.Context(), pod, a))
	for _, s := range []struct {
		ns              *os.File
		link, key, want string
	}{
		{w.ns, a.HostIf, "net/ipv6/conf/%s/forwarding", "1"},
		{w.ns, a.HostIf, "net/ipv4/conf/%s/forwarding", "1"},
		{w.ns, a.HostIf, "net/ipv6/conf/%s/accept_ra", "0"},
		{pod, "eth0", "net/ipv6/conf/%s/accept_ra", "0"},
	} {
		if got := netnstest.Sysctl(t, s.ns, fmt.Sprintf(s.key, s.link)); got != s.want {
			t.Errorf(s.key+" is %s, want %s", s.link, got, s.want)
		}
	}
}

// C20, B-105, B-106: link-local address, MAC and what the node knows of it belong together from the start, also with a MAC
// that was asked for; and they are still the same when everything has settled.
func TestLinkLocalBelongsToTheMAC(t *testing.T) {
	w := newWorld(t)
	a := attachment(1, pod6, pod4)
	a.MAC = node.MAC{2, 0xaa, 0xbb, 0xcc, 0xdd, 0xee}
	pod := w.attach(a)
	w.routeTo(a)
	own := netip.MustParseAddr("fe80::aa:bbff:fecc:ddee")
	w.reaches(w.ns, own.WithZone(a.HostIf))
	w.reaches(w.ns, pod6)
	for ns, link := range map[*os.File]string{pod: "eth0", w.ns: a.HostIf} {
		addrs, err := netnstest.Handle(t, ns).AddrList(w.link(ns, link), netlink.FAMILY_V6)
		w.must(err)
		local := 0
		for _, addr := range addrs {
			if addr.IP.IsLinkLocalUnicast() {
				local++
			}
		}
		if local != 1 {
			t.Errorf("%s has %d link-local addresses, want one: %v", link, local, addrs)
		}
	}
	if got := w.link(pod, "eth0").Attrs().HardwareAddr.String(); got != a.MAC.String() {
		t.Errorf("MAC %s, want %s", got, a.MAC)
	}
}

// C46: the container's loopback is its runtime's: up stays up, and down stays down.
func TestLoopbackIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	for n, up := range []bool{true, false} {
		pod := netnstest.NewBare(t)
		if up {
			pod = netnstest.New(t)
		}
		a := attachment(byte(n), pod6, pod4)
		w.wired(w.d.Attach(t.Context(), pod, a))
		if got := w.link(pod, "lo").Attrs().Flags&net.FlagUp != 0; got != up {
			t.Errorf("lo is up: %v, before %v", got, up)
		}
		w.must(w.d.Detach(t.Context(), a))
	}
}

// C27: a runtime makes the namespaces of pods with a user namespace of their own inside that.
func TestNamespaceOfAnotherUserNamespace(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	sleeper := exec.CommandContext(ctx, "sleep", "60")
	sleeper.SysProcAttr = &unix.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 1000}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 1000}},
	}
	w.must(sleeper.Start())
	t.Cleanup(func() { cancel(); _ = sleeper.Wait() })
	pod, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", sleeper.Process.Pid))
	w.must(err)
	defer pod.Close()
	a := attachment(1, pod6, pod4)
	w.wired(w.d.Attach(t.Context(), pod, a))
	w.routeTo(a)
	w.reaches(w.ns, pod6)
	w.reaches(w.ns, pod4)
	if differences, err := w.d.Check(t.Context(), pod, a); err != nil || len(differences) > 0 {
		t.Errorf("Check() = %v, %v", differences, err)
	}
	w.must(w.d.Detach(t.Context(), a))
}

// C37: an address that comes again with another MAC is reached by the first packet, in both directions.
func TestAddressComesAgain(t *testing.T) {
	w := newWorld(t)
	for n := range byte(3) {
		a := attachment(n, pod6, pod4)
		pod := w.attach(a)
		w.routeTo(a)
		w.reaches(w.ns, pod6)
		w.reaches(w.ns, pod4)
		w.reaches(pod, node.Gateway4)
		neighbours, err := w.host.NeighList(w.link(w.ns, a.HostIf).Attrs().Index, netlink.FAMILY_ALL)
		w.must(err)
		for _, neighbour := range neighbours {
			if mac := neighbour.HardwareAddr.String(); mac != a.MAC.String() && !neighbour.IP.IsMulticast() {
				t.Errorf("neighbour %v has MAC %s, want %s", neighbour.IP, mac, a.MAC)
			}
		}
		w.must(w.d.Detach(t.Context(), a))
	}
}

// D17: whatever a pod did to its interface, the node's side goes.
func TestDetachWhateverThePodDid(t *testing.T) {
	for name, do := range map[string]func(w *world, h *netlink.Handle, eth0 netlink.Link) error{
		"renamed": func(_ *world, h *netlink.Handle, eth0 netlink.Link) error {
			return errors.Join(h.LinkSetDown(eth0), h.LinkSetName(eth0, "other"))
		},
		"down":    func(_ *world, h *netlink.Handle, eth0 netlink.Link) error { return h.LinkSetDown(eth0) },
		"deleted": func(_ *world, h *netlink.Handle, eth0 netlink.Link) error { return h.LinkDel(eth0) },
		"moved": func(w *world, h *netlink.Handle, eth0 netlink.Link) error {
			return h.LinkSetNsFd(eth0, int(netnstest.New(w.T).Fd()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			before := fmt.Sprint(w.describe(w.ns))
			a := attachment(1, pod6, pod4)
			pod := w.attach(a)
			w.must(do(w, netnstest.Handle(t, pod), w.link(pod, "eth0")))
			w.must(w.d.Detach(t.Context(), a))
			if after := fmt.Sprint(w.describe(w.ns)); after != before {
				t.Errorf("left behind: %s, before %s", after, before)
			}
		})
	}
}

// I23, B-101: on a node where links come and go all the time, lists are interrupted and everything works all the same.
func TestLinksComeAndGo(t *testing.T) {
	w := newWorld(t)
	w.uplink()
	ctx, cancel := context.WithCancel(t.Context())
	var churn sync.WaitGroup
	churn.Go(func() {
		h, attrs := netnstest.Handle(t, w.ns), netlink.NewLinkAttrs()
		for n := 0; ctx.Err() == nil; n++ {
			attrs.Name = fmt.Sprintf("churn%d", n%50)
			bridge := &netlink.Bridge{LinkAttrs: attrs}
			if err := h.LinkAdd(bridge); err != nil {
				t.Errorf("add %s: %v", attrs.Name, err)
				return
			}
			if err := h.LinkDel(bridge); err != nil {
				t.Errorf("delete %s: %v", attrs.Name, err)
				return
			}
		}
	})
	deadline := time.Now().Add(3 * time.Second)
	for n := byte(0); time.Now().Before(deadline); n++ {
		a := attachment(n, pod6, pod4)
		pod := netnstest.NewBare(t)
		w.wired(w.d.Attach(ctx, pod, a))
		w.routeTo(a)
		if differences, err := w.d.Check(ctx, pod, a); err != nil || len(differences) > 0 {
			t.Errorf("Check() = %v, %v", differences, err)
		}
		if routes, err := w.d.Routes().List(ctx); err != nil || len(routes) != 2 {
			t.Errorf("routes %v, %v, want two", routes, err)
		}
		if inv, err := w.d.Inventory(ctx); err != nil || len(inv.Links) != 1 || len(inv.Links[a.HostIf].Addrs) != 2 {
			t.Errorf("inventory %+v, %v, want one attachment", inv, err)
		}
		_, err := w.d.Connected(ctx)
		w.must(err)
		w.must(w.d.Detach(ctx, a))
		w.must(pod.Close())
	}
	cancel()
	churn.Wait()
}

// C20, B-106: the first that anybody hears of a link has its name, its MAC and our mark: there is nothing that udev could take for
// unset, and nothing changes afterwards.
func TestLinksAreBornWithTheirMAC(t *testing.T) {
	w := newWorld(t)
	pod := netnstest.New(t)
	a := attachment(1, pod6, pod4)
	heard := make(map[string]chan netlink.LinkUpdate)
	done := make(chan struct{})
	defer close(done)
	for name, ns := range map[string]*os.File{a.HostIf: w.ns, "eth0": pod} {
		heard[name] = make(chan netlink.LinkUpdate, 100)
		handle := netns.NsHandle(ns.Fd())
		w.must(netlink.LinkSubscribeWithOptions(heard[name], done, netlink.LinkSubscribeOptions{Namespace: &handle}))
	}
	w.wired(w.d.Attach(t.Context(), pod, a))
	for name, want := range map[string]node.MAC{a.HostIf: a.HostMAC, "eth0": a.MAC} {
		w.eventually(func() bool { return len(heard[name]) > 0 }, func() string { return "nothing is heard of " + name })
		for len(heard[name]) > 0 {
			u := <-heard[name]
			got := u.Attrs()
			if got.Name != name {
				continue
			}
			if got.HardwareAddr.String() != want.String() {
				t.Errorf("heard of %s with MAC %s, want %s", name, got.HardwareAddr, want)
			}
			if name == a.HostIf && got.Group != datapath.Group {
				t.Errorf("heard of %s in group %d, want %d", name, got.Group, datapath.Group)
			}
		}
	}
}

// D14: the pair may go, with its namespace or by anybody's hand, at any moment of a Detach.
func TestDetachWhileThePairGoes(t *testing.T) {
	w := newWorld(t)
	before := w.describe(w.ns)
	for n := range byte(60) {
		a := attachment(n, pod6, pod4)
		pod := netnstest.NewBare(t)
		w.wired(w.d.Attach(t.Context(), pod, a))
		w.routeTo(a)
		link := w.link(w.ns, a.HostIf)
		var others sync.WaitGroup
		others.Go(func() {
			if n%2 == 0 {
				_ = pod.Close()
				return
			}
			_ = w.host.LinkDel(link) // whoever is second finds nothing
		})
		if err := w.d.Detach(t.Context(), a); err != nil {
			t.Errorf("Detach() = %v", err)
		}
		others.Wait()
	}
	w.eventually(func() bool { return slices.Equal(before, w.describe(w.ns)) }, func() string { return strings.Join(w.describe(w.ns), "\n") })
}
