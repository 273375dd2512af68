package lab

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// volatile is what changes by itself: timers, counters, and the states and uses of neighbours.
var volatile = regexp.MustCompile(`(valid_lft|preferred_lft|expires|used|probes|users|age) \S+|\b(REACHABLE|STALE|DELAY|PROBE|ref \d+)\b`)

// Snapshot describes a namespace's links, addresses, routes of all tables, rules, neighbours of pods' links and packet
// filters, so that two moments can be compared.
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
	return b.String(), nil
}
