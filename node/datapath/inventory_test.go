package datapath_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/gaggle-cni/gaggle/integration/netnstest"
	"github.com/gaggle-cni/gaggle/node"
)

// I10, F13: what is attached can be read off the kernel, and nothing else passes for it.
func TestInventory(t *testing.T) {
	w := newWorld(t)
	w.uplink()
	a := attachment(1, pod6, pod4)
	pod := netnstest.New(t)
	a.Namespace = w.wired(w.d.Attach(t.Context(), pod, a))
	w.routeTo(a)
	a.Committed = true
	long := attachment(2)
	long.ID.ContainerID = strings.Repeat("c", 300)
	w.attach(long)
	// A stranger's link, with our group but not our name, and a route of ours that leads nowhere near.
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Group = "veth0", 103
	w.must(w.host.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "veth1"}))
	w.must(w.d.Routes().Put(t.Context(), host(pod6.Next()), node.Route{Kind: node.RouteAggregate}))

	inv, err := w.d.Inventory(t.Context())
	w.must(err)
	if len(inv.Links) != 2 {
		t.Errorf("links %v, want two", inv.Links)
	}
	if diff := cmp.Diff(fmt.Sprintf("%+v", a), fmt.Sprintf("%+v", inv.Links[a.HostIf])); diff != "" {
		t.Errorf("attachment (-want +got):\n%s", diff)
	}
	if got := inv.Links[long.HostIf]; got.ID.ContainerID == long.ID.ContainerID || len(got.Addrs) != 0 {
		t.Errorf("link with a description that was cut: %+v", got)
	}
	if !inv.Namespaces[a.Namespace] {
		t.Errorf("namespaces %v, want %d among them", inv.Namespaces, a.Namespace)
	}
}

// F09: the end of a namespace can be seen, and is told from the loss of its link.
func TestInventoryOfNamespaces(t *testing.T) {
	w := newWorld(t)
	pod := netnstest.NewBare(t) // which nothing else holds
	id := w.wired(w.d.Attach(t.Context(), pod, attachment(1, pod6, pod4)))
	w.must(w.host.LinkDel(w.link(w.ns, "ggl000000000001")))
	inv, err := w.d.Inventory(t.Context())
	w.must(err)
	if !inv.Namespaces[id] || len(inv.Links) != 0 {
		t.Errorf("without its link: %+v, want the namespace %d", inv, id)
	}
	w.must(pod.Close())
	w.eventually(func() bool {
		inv, err = w.d.Inventory(t.Context())
		w.must(err)
		return !inv.Namespaces[id]
	}, func() string { return fmt.Sprintf("namespaces %v, want that %d is gone", inv.Namespaces, id) })
}
