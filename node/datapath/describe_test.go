package datapath_test

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/integration/netnstest"
)

// describe lists what is in a namespace: links, addresses, routes of all tables, rules and neighbours, a line each. Indexes,
// counters and the momentary states of neighbours are left out, so that two moments can be compared.
func (w *world) describe(ns *os.File) []string {
	w.Helper()
	h := netnstest.Handle(w.T, ns)
	names := make(map[int]string)
	var lines []string
	add := func(format string, args ...any) {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf(format, args...)))
	}
	links, err := h.LinkList()
	w.must(err)
	for _, l := range links {
		a := l.Attrs()
		names[a.Index] = a.Name
		flags := a.Flags &^ net.FlagRunning // it follows with a delay
		add("link %s %s mtu %d mac %s group %d flags %s alias %q", a.Name, l.Type(), a.MTU, a.HardwareAddr, a.Group, flags, a.Alias)
	}
	for _, l := range links {
		addrs, err := h.AddrList(l, netlink.FAMILY_ALL)
		w.must(err)
		for _, a := range addrs {
			add("addr %s %s scope %s%s", a.IPNet, l.Attrs().Name, netlink.Scope(a.Scope), addrFlags(a.Flags))
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		w.must(err)
		for _, r := range routes {
			add("route table %d %s", r.Table, route(r, names))
		}
		rules, err := h.RuleList(family)
		w.must(err)
		for _, r := range rules {
			add("%v", r)
		}
		neighbours, err := h.NeighList(0, family)
		w.must(err)
		for _, n := range neighbours {
			if n.State&(unix.NUD_NOARP|unix.NUD_FAILED|unix.NUD_INCOMPLETE) == 0 {
				add("neigh %s %s %s%s", n.IP, names[n.LinkIndex], n.HardwareAddr, mark(n.State&unix.NUD_PERMANENT != 0, " permanent"))
			}
		}
	}
	slices.Sort(lines)
	return lines
}

func route(r netlink.Route, names map[int]string) string {
	line := fmt.Sprintf("%s %s", unixType(r.Type), r.Dst)
	hops := r.MultiPath
	if len(hops) == 0 {
		hops = []*netlink.NexthopInfo{{Gw: r.Gw, Via: r.Via, LinkIndex: r.LinkIndex}}
	}
	for _, hop := range hops {
		if hop.Gw != nil {
			line += fmt.Sprintf(" via %s", hop.Gw)
		}
		if hop.Via != nil {
			line += fmt.Sprintf(" via %s", hop.Via)
		}
		line += " dev " + names[hop.LinkIndex]
	}
	if r.Src != nil {
		line += fmt.Sprintf(" src %s", r.Src)
	}
	return line + fmt.Sprintf(" proto %d metric %d scope %s", int(r.Protocol), r.Priority, r.Scope)
}

func unixType(kind int) string {
	names := map[int]string{
		unix.RTN_UNICAST: "unicast", unix.RTN_LOCAL: "local", unix.RTN_BROADCAST: "broadcast", unix.RTN_ANYCAST: "anycast",
		unix.RTN_MULTICAST: "multicast", unix.RTN_UNREACHABLE: "unreachable",
	}
	return names[kind]
}

func addrFlags(flags int) string {
	return mark(flags&unix.IFA_F_TENTATIVE != 0, " tentative") + mark(flags&unix.IFA_F_DADFAILED != 0, " dadfailed") +
		mark(flags&unix.IFA_F_DEPRECATED != 0, " deprecated")
}

func mark(on bool, text string) string {
	if on {
		return text
	}
	return ""
}

// only keeps the lines that begin with one of the prefixes.
func only(lines []string, prefixes ...string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		return !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(line, p) })
	})
}

// visible is describe without the table that the kernel keeps by itself and, for a new link, fills in the background.
func (w *world) visible(ns *os.File) []string {
	w.Helper()
	return slices.DeleteFunc(w.describe(ns), func(line string) bool { return strings.HasPrefix(line, "route table 255") })
}

// settings reads all network settings of a namespace that can be read.
func (w *world) settings(ns *os.File) map[string]string {
	w.Helper()
	out := make(map[string]string)
	netnstest.Do(w.T, ns, func() {
		w.must(filepath.WalkDir("/proc/sys/net", func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			if data, err := os.ReadFile(path); err == nil {
				out[path] = strings.TrimSpace(string(data))
			}
			return nil
		}))
	})
	return out
}
