package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// I06, B-006, D12: after a reboot that left the state file but no container, every address is free again, although no DEL ever
// comes; and those that come all the same succeed.
func TestReboot(t *testing.T) {
	l, n := oneNode(t, lab.Peering{Pool4: "10.244.1.0/29"})
	unchanged := snapshot(t, n)
	var old []*lab.Pod
	for i := range 5 { // of six
		p, _ := attach(t, n, fmt.Sprint("old", i))
		old = append(old, p)
	}
	n.Process().Kill()
	for _, p := range old {
		must(t, l.RemoveNamespace(p.NS))
	}
	boot := filepath.Join(l.Dir(), "boot_id")
	must(t, os.WriteFile(boot, []byte("11111111-2222-3333-4444-555555555555\n"), 0o644))
	n.Wrap = []string{
		"unshare", "--mount", "--propagation", "private", "sh", "-c", `mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"`, boot,
	}
	must(t, n.Restart(t.Context()))
	if got := podList(t, n); len(got) != 0 {
		t.Errorf("known after the reboot are %+v, want none", got)
	}
	var pods []*lab.Pod
	for i := range 6 {
		p, _ := attach(t, n, fmt.Sprint("new", i))
		pods = append(pods, p)
	}
	for _, p := range old {
		must(t, p.Del(within(t, 10*time.Second)))
	}
	if got := podList(t, n); len(got) != 6 {
		t.Errorf("attached are %+v, want the new ones", got)
	}
	for _, p := range pods {
		must(t, p.Del(t.Context()))
	}
	unchanged()
}

// I01, B-048: what comes while the node process starts waits for it, and finds every address taken that is in use: with one left,
// one of two gets it.
func TestAddsDuringTheStart(t *testing.T) {
	_, n := oneNode(t, lab.Peering{Pool4: "10.244.1.0/29"})
	seen := make(map[netip.Addr]bool)
	note := func(r lab.Result) {
		for _, ip := range r.IPs {
			if seen[ip.Address.Addr()] {
				t.Errorf("%s is given twice", ip.Address)
			}
			seen[ip.Address.Addr()] = true
		}
	}
	for i := range 5 {
		_, r := attach(t, n, fmt.Sprint("p", i))
		note(r)
	}
	n.Process().Kill()
	type outcome struct {
		r   lab.Result
		err error
	}
	done := make(chan outcome)
	for i := range 2 {
		p, err := n.Pod(t.Context(), fmt.Sprint("late", i))
		must(t, err)
		go func() {
			r, err := p.Add(t.Context())
			done <- outcome{r, err}
		}()
	}
	must(t, n.Restart(t.Context()))
	served := 0
	for range 2 {
		o := <-done
		if o.err == nil {
			served++
			note(o.r)
			continue
		}
		if e, ok := errors.AsType[*lab.CNIError](o.err); !ok || e.Code != 101 {
			t.Errorf("ADD = %v, want that the pool is exhausted", o.err)
		}
	}
	if served != 1 {
		t.Errorf("%d were served, want one", served)
	}
	if got := podList(t, n); len(got) != 6 {
		t.Errorf("attached are %+v, want six", got)
	}
}

// I04, B-059, C51: what does not carry our mark is left alone by a start, a pass and a DEL, however much it looks like ours; what is
// ours carries it. I24: a packet filter that is reloaded takes nothing away, as there is nothing of ours in it.
func TestForeignThingsStay(t *testing.T) {
	l, n := oneNode(t, lab.Peering{})
	awaitPools(t, l, n)
	for _, cmd := range []string{
		"link add ggl000000000000 type veth peer name other0", // our prefix, not our group
		"link add ifb7 type ifb",
		"link set ifb7 addrgenmode none", "link set ifb7 up", "addr add 10.99.0.1/24 dev ifb7",
		"route add 203.0.113.0/24 via " + lab.Router4 + " proto bird", "route add 203.0.114.0/24 via " + lab.Router4 + " proto static",
		"-6 route add 2001:db8:f::/48 via " + lab.Router6 + " proto ra", "-6 route add 2001:db8:e::/48 via " + lab.Router6 + " proto static metric 5",
		"route add 203.0.115.0/24 via " + lab.Router4 + " proto 103 table 100", // our number, not our table
		"rule add from 203.0.113.0/24 lookup 100 priority 1000", "-6 rule add from 2001:db8:f::/48 lookup 100 priority 1000",
		"neigh add 10.99.0.2 lladdr 02:00:00:00:00:01 dev ifb7",
	} {
		must(t, n.NS.IP(t.Context(), cmd))
	}
	filter := func(text string) {
		t.Helper()
		_, err := n.NS.Exec(t.Context(), "nft", text)
		must(t, err)
	}
	const others = "add table inet other; add chain inet other forward { type filter hook forward priority 0; }"
	filter(others)
	unchanged := snapshot(t, n)
	p, r := attach(t, n, "a")
	for _, six := range []bool{true, false} { // C51
		out, err := n.NS.Exec(t.Context(), "ip", map[bool]string{true: "-6", false: "-4"}[six], "route", "show", "proto", "103")
		must(t, err)
		if !strings.Contains(out, r.Addr(six).String()+" dev "+r.Interfaces[0].Name) {
			t.Errorf("routes of our number: %s, want one to %s", out, r.Addr(six))
		}
	}
	for range 2 {
		n.Process().Kill()
		must(t, n.Restart(t.Context()))
	}
	filter("flush ruleset") // I24, B-112
	must(t, lab.WaitFor(within(t, 5*time.Second), "the check of source addresses", func() bool {
		out, err := n.NS.Exec(t.Context(), "nft", "list", "table", "inet", "gaggle")
		return err == nil && strings.Contains(out, `"`+r.Interfaces[0].Name+`" . `+r.Addr(false).String())
	}))
	awaitPools(t, l, n)
	for _, six := range []bool{true, false} {
		_, err := lab.Ping(within(t, 10*time.Second), l.Client, r.Addr(six))
		must(t, err)
	}
	filter(others)
	must(t, p.Del(t.Context()))
	unchanged()
}

// A new sandbox of the same pod lives beside the old one, and keeps everything when that goes, in either order and however it
// goes; nothing of a pod's former life comes back with its name. B-015, B-047, C11, C12, C15, D07, J04, J08.
func TestSandboxesOfOnePod(t *testing.T) {
	l, n := oneNode(t, lab.Peering{})
	awaitPools(t, l, n)
	unchanged := snapshot(t, n)
	for _, first := range []string{"the old one goes first", "the new one goes first", "the old one has no namespace any more"} {
		t.Run(first, func(t *testing.T) {
			var pods []*lab.Pod
			var results []lab.Result
			for _, name := range []string{"old", "new"} {
				p, err := n.Pod(t.Context(), name)
				must(t, err)
				p.Name = "db-0"
				r, err := p.Add(t.Context())
				must(t, err)
				if r.Interfaces[1].Name != "eth0" || r.Interfaces[1].Sandbox != p.NS.Path() || len(r.IPs) != 2 { // B-047
					t.Errorf("result %+v", r)
				}
				pods, results = append(pods, p), append(results, r)
			}
			gone, stays := 0, 1
			if first == "the new one goes first" {
				gone, stays = 1, 0
			}
			var stops []func() (lab.Loss, error)
			for _, six := range []bool{true, false} {
				for _, r := range results {
					_, err := lab.Ping(within(t, 5*time.Second), l.Client, r.Addr(six))
					must(t, err)
				}
				stop, err := lab.Probe(l.Client, results[stays].Addr(six))
				must(t, err)
				stops = append(stops, stop)
			}
			if strings.Contains(first, "no namespace") {
				must(t, l.RemoveNamespace(pods[gone].NS))
				pods[gone].NS.Name = "" // becomes a path that is no namespace
			}
			for range 3 {
				must(t, pods[gone].Del(within(t, 10*time.Second)))
			}
			for _, stop := range stops {
				loss, err := stop()
				must(t, err)
				if loss.Lost > 0 || loss.Sent < 3 {
					t.Errorf("%d of %d packets lost, want none", loss.Lost, loss.Sent)
				}
			}
			if got := podList(t, n); len(got) != 1 || got[0].ContainerID != pods[stays].ContainerID {
				t.Errorf("attached are %+v, want the one that stays", got)
			}
			must(t, pods[stays].Remove(t.Context()))
			if !strings.Contains(first, "no namespace") {
				must(t, pods[gone].Remove(t.Context()))
			}
		})
	}
	unchanged()
}

// What runtimes put into a configuration is taken as it comes: a megabyte of what others need, annotations, and for a DEL a result that
// is another's or none. B13, C22, D03.
func TestConfigurationsOfRuntimes(t *testing.T) {
	_, n := oneNode(t, lab.Peering{})
	other, err := n.Pod(t.Context(), "other")
	must(t, err)
	otherResult, err := other.Call(t.Context(), "ADD", "1.0.0")
	must(t, err)
	for name, tt := range map[string]struct {
		add, del map[string]any
		ips      int
	}{
		"a megabyte": {map[string]any{"zzz": strings.Repeat("x", 1<<20)}, map[string]any{"zzz": strings.Repeat("x", 1<<20)}, 2},
		"annotations": {map[string]any{
			"runtimeConfig": map[string]any{"io.kubernetes.cri.pod-annotations": map[string]string{"gaggle.dev/ipv4": "false"}},
		}, nil, 1},
		"another's result": {nil, map[string]any{"prevResult": json.RawMessage(otherResult)}, 2},
		"no result":        {nil, map[string]any{"prevResult": "zzz"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := n.Pod(t.Context(), "p")
			must(t, err)
			out, err := p.CallWith(t.Context(), "ADD", "1.0.0", tt.add)
			must(t, err)
			var r lab.Result
			must(t, json.Unmarshal(out, &r))
			if len(r.IPs) != tt.ips {
				t.Errorf("result %s, want %d addresses", out, tt.ips)
			}
			_, err = p.CallWith(t.Context(), "DEL", "1.0.0", tt.del)
			must(t, err)
			must(t, p.Remove(t.Context()))
			if got := podList(t, n); len(got) != 1 || got[0].Name != "other" {
				t.Errorf("attached are %+v, want the one that nobody deleted", got)
			}
		})
	}
	_, err = other.CallWith(t.Context(), "CHECK", "1.0.0", map[string]any{"prevResult": json.RawMessage(otherResult)})
	must(t, err)
}
