package datapath

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/cni"
	"github.com/gaggle-cni/gaggle/node"
)

// Inventory implements [node.Datapath].
func (d *Datapath) Inventory(ctx context.Context) (node.Inventory, error) {
	inv := node.Inventory{Links: make(map[string]node.Attachment)}
	h, giveBack, err := d.handle()
	if err != nil {
		return inv, err
	}
	defer giveBack()
	all, err := links(ctx, h)
	if err != nil {
		return inv, err
	}
	byIndex := make(map[int]*node.Attachment)
	for _, link := range all {
		if ours(link) {
			a := readLink(link.Attrs())
			byIndex[link.Attrs().Index] = &a
		}
	}
	if err := readAddresses(ctx, h, byIndex); err != nil {
		return inv, err
	}
	for _, a := range byIndex {
		slices.SortFunc(a.Addrs, primaryFirst)
		inv.Links[a.HostIf] = *a
	}
	inv.Namespaces, err = d.namespaces(ctx)
	return inv, err
}

// primaryFirst orders as the records do: IPv6 first.
func primaryFirst(a, b netip.Addr) int {
	if a.Is6() != b.Is6() {
		return b.BitLen() - a.BitLen()
	}
	return a.Compare(b)
}

// readLink reads what the link alone tells.
func readLink(link *netlink.LinkAttrs) node.Attachment {
	a := node.Attachment{HostIf: link.Name, MTU: link.MTU, Namespace: node.NetnsID(link.NetNsID), Committed: true}
	copy(a.HostMAC[:], link.HardwareAddr)
	a.ID, a.Pod.Key = parseAlias(link.Alias)
	return a
}

// readAddresses finds the containers' addresses by the routes to them, and their MACs by the neighbours.
func readAddresses(ctx context.Context, h *handle, byIndex map[int]*node.Attachment) error {
	for _, family := range []int{netlink.FAMILY_V6, netlink.FAMILY_V4} {
		routes, err := mainRoutes(ctx, h, family, Protocol)
		if err != nil {
			return err
		}
		for _, r := range routes {
			if p := prefixOf(r.Dst, family); p.IsSingleIP() {
				readRoute(r, p.Addr(), byIndex)
			}
		}
		neighbours, err := dump(ctx, "neighbours", func() ([]netlink.Neigh, error) { return h.NeighList(0, family) })
		if err != nil {
			return err
		}
		for _, n := range neighbours {
			if a := byIndex[n.LinkIndex]; a != nil && len(n.HardwareAddr) == len(a.MAC) && slices.Contains(a.Addrs, addrOf(n.IP)) {
				copy(a.MAC[:], n.HardwareAddr)
			}
		}
	}
	return nil
}

// readRoute notes which containers a route to one address leads to: directly to one that has it, or by their own addresses to
// those that share it.
func readRoute(r netlink.Route, addr netip.Addr, byIndex map[int]*node.Attachment) {
	for _, hop := range nexthops(r) {
		switch a := byIndex[hop.LinkIndex]; {
		case a == nil:
		case hop.Gw == nil:
			a.Addrs = append(a.Addrs, addr)
		default:
			a.Anycast = append(a.Anycast, addr)
		}
	}
}

// namespaces lists the network namespaces that the node's own has a number for, as ip netns list-id does. The library knows
// only how to ask for one that is open.
func (d *Datapath) namespaces(ctx context.Context) (map[node.NetnsID]bool, error) {
	ids := make(map[node.NetnsID]bool)
	err := inNamespace(d.ns, func() error {
		req := nl.NewNetlinkRequest(unix.RTM_GETNSID, unix.NLM_F_DUMP)
		req.AddData(nl.NewRtGenMsg())
		messages, err := dump(ctx, "network namespaces", func() ([][]byte, error) {
			return req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNSID)
		})
		if err != nil {
			return err
		}
		for _, m := range messages {
			attrs, err := nl.ParseRouteAttr(m[nl.DeserializeRtGenMsg(m).Len():])
			if err != nil {
				return fmt.Errorf("list network namespaces: %w", err)
			}
			for _, attr := range attrs {
				if attr.Attr.Type == unix.NETNSA_NSID && len(attr.Value) == 4 {
					ids[node.NetnsID(int32(nl.NativeEndian().Uint32(attr.Value)))] = true
				}
			}
		}
		return nil
	})
	return ids, err
}

// alias tells an operator who looks at ip link, and us if the record is lost, what the link is for: the attachment, then the
// pod.
func alias(a node.Attachment) string {
	text := a.ID.String()
	if pod := a.Pod.Key.String(); pod != "" {
		text += " " + pod
	}
	return text[:min(len(text), maxAlias)]
}

// parseAlias reads an alias; what is none is read as the zero ID. One that was too long cannot be told from a whole one here.
func parseAlias(text string) (id cni.ID, pod node.PodKey) {
	idText, podText, _ := strings.Cut(text, " ")
	parts := strings.Split(idText, "/")
	if len(parts) != 3 || slices.Contains(parts, "") {
		return cni.ID{}, node.PodKey{}
	}
	pod.Namespace, pod.Name, _ = strings.Cut(podText, "/")
	return cni.ID{Network: parts[0], ContainerID: parts[1], IfName: parts[2]}, pod
}
