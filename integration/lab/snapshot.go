package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// volatile is what changes by itself: timers, counters, and the states and uses of neighbours.
var volatile = regexp.MustCompile(`(valid_lft|preferred_lft|expires|used|probes|users|age) \S+|\b(REACHABLE|STALE|DELAY|PROBE|ref \d+)\b`)

// Snapshot describes a namespace's links, addresses, routes of all tables, rules, neighbours of pods' links, packet filters and
// general settings, so that two moments can be compared.
func (n NS) Snapshot(ctx context.Context) (string, error) {
	var b strings.Builder
	for _, args := range []string{
		"-d link", "addr", "route show table all", "-6 route show table all", "rule", "-6 rule", "neigh", "-6 neigh",
	} {
		out, err := output(ctx, append([]string{"ip", "-n", n.Name}, strings.Fields(args)...)...)
		if err != nil {
			return "", err
		}
		lines := strings.Split(volatile.ReplaceAllString(out, ""), "\n")
		if strings.Contains(args, "neigh") {
			// Neighbours on the uplink come and go with traffic.
			lines = slices.DeleteFunc(lines, func(s string) bool { return strings.Contains(s, " dev eth0 ") })
		}
		if args != "-d link" && args != "addr" {
			slices.Sort(lines)
		}
		fmt.Fprintf(&b, "# ip %s\n%s\n", args, strings.TrimSpace(strings.Join(lines, "\n")))
	}
	filters, err := n.Exec(ctx, "nft", "list", "ruleset")
	if err != nil {
		return "", err
	}
	settings, err := n.settings()
	fmt.Fprintf(&b, "# nft\n%s\n# sysctl\n%s\n", filters, settings)
	return b.String(), err
}

// settings are those that are not a single link's.
func (n NS) settings() (text string, err error) {
	var b strings.Builder
	err = n.Do(func() error {
		for _, pattern := range []string{"ip*", "conf/all/*", "conf/default/*", "conf/lo/*"} {
			paths, err := filepath.Glob("/proc/sys/net/ipv[46]/" + pattern)
			if err != nil {
				return err
			}
			for _, path := range paths {
				if value, err := os.ReadFile(path); err == nil { // some can only be written, some are directories
					fmt.Fprintf(&b, "%s %s", path, value)
				}
			}
		}
		return nil
	})
	return b.String(), err
}

// Connections returns the addresses in the namespace's table of connections, those before and after translation, each once.
func (n NS) Connections() (addrs map[netip.Addr]bool, err error) {
	addrs = make(map[netip.Addr]bool)
	err = n.Do(func() error {
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
			if err != nil {
				return fmt.Errorf("list connections: %w", err)
			}
			for _, f := range flows {
				for _, ip := range []net.IP{f.Forward.SrcIP, f.Forward.DstIP, f.Reverse.SrcIP, f.Reverse.DstIP} {
					a, _ := netip.AddrFromSlice(ip)
					addrs[a.Unmap()] = true
				}
			}
		}
		return nil
	})
	return addrs, err
}
