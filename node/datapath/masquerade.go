package datapath

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/node"
)

// MasqueradeTable is the table of family inet with what is masqueraded.
const MasqueradeTable = "gaggle-masquerade"

// Masquerade is what of the pods' addresses leaves the node as the node's own, by prefix, with the destinations that see the
// pods' own; a [node.Target]. It is a table that is only there while anything is masqueraded, because its chain makes the
// kernel remember every connection of the node. Each change replaces the table in one transaction; the connections that the
// kernel remembers keep their translation.
type Masquerade struct {
	d *Datapath

	mu sync.Mutex
	// have is what the last [Masquerade.List] saw and was put since.
	have map[netip.Prefix]bgp.Prefixes
}

var _ node.Target[netip.Prefix, bgp.Prefixes] = (*Masquerade)(nil)

// Masquerade returns the target. Its methods may be called concurrently.
func (d *Datapath) Masquerade() *Masquerade { return &Masquerade{d: d} }

// toPods is the text of the rule that leaves alone what goes to a pod of this node.
const toPods = "to pods"

// goingOn is the text of the rule that leaves alone TCP connections that are older than the kernel's memory of connections.
const goingOn = "connections that go on"

// masqueraded and direct begin the texts of the rules: what is masqueraded, and what of it is not. The table is read back by
// them.
const masqueraded, direct = "masquerade ", "direct "

// masqueradeRules are the table for these prefixes.
func masqueradeRules(want map[netip.Prefix]bgp.Prefixes) ruleSet {
	table, accept := newTable(MasqueradeTable), nftables.ChainPolicyAccept
	r := ruleSet{
		table: table,
		chain: &nftables.Chain{
			Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting,
			Priority: nftables.ChainPriorityNATSource, Policy: &accept,
		},
		rules: []rule{{toPods, exprs{
			&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg1}, equals([]byte(node.HostIfPrefix)...),
		}.leave()}, {goingOn, exprs{}.tcpGoingOn().leave()}},
	}
	for _, p := range slices.SortedFunc(maps.Keys(want), netip.Prefix.Compare) {
		for _, dst := range want[p].Values() {
			r.rules = append(r.rules, rule{direct + p.String() + " " + dst.String(), exprs{}.within(p, false).within(dst, true).leave()})
		}
		r.rules = append(r.rules, rule{masqueraded + p.String(), append(exprs{}.within(p, false), &expr.Masq{})})
	}
	return r
}

// List implements [node.Target]. A table that is not whole counts for the invalid prefix, so that it is made anew or removed.
func (m *Masquerade) List(ctx context.Context) (map[netip.Prefix]bgp.Prefixes, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out map[netip.Prefix]bgp.Prefixes
	err := m.d.consistently(ctx, func(c *nft) error {
		out, m.have = nil, make(map[netip.Prefix]bgp.Prefixes)
		empty := masqueradeRules(nil)
		found, err := empty.find(c)
		if err != nil || found == nil {
			return err
		}
		texts, err := empty.texts(c)
		if err != nil {
			return err
		}
		have := readMasquerade(texts)
		intact, err := masqueradeRules(have).intact(c, found)
		if err != nil {
			return err
		}
		if !intact {
			out = map[netip.Prefix]bgp.Prefixes{{}: ""}
			return nil
		}
		m.have, out = have, maps.Clone(have)
		return nil
	})
	return out, err
}

// readMasquerade reads what the rules' texts say. What it does not understand makes the table differ from what it should be.
func readMasquerade(texts []string) map[netip.Prefix]bgp.Prefixes {
	have := make(map[netip.Prefix]bgp.Prefixes)
	except := make(map[netip.Prefix][]netip.Prefix)
	for _, text := range texts {
		if pair, ok := strings.CutPrefix(text, direct); ok {
			from, to, _ := strings.Cut(pair, " ")
			p, _ := netip.ParsePrefix(from)
			if dst, err := netip.ParsePrefix(to); err == nil {
				except[p] = append(except[p], dst)
			}
		} else if from, ok := strings.CutPrefix(text, masqueraded); ok {
			if p, err := netip.ParsePrefix(from); err == nil {
				have[p] = bgp.MakePrefixes(except[p])
			}
		}
	}
	return have
}

// Put implements [node.Target].
func (m *Masquerade) Put(_ context.Context, p netip.Prefix, except bgp.Prefixes) error {
	return m.change("masquerade put", func(want map[netip.Prefix]bgp.Prefixes) { want[p] = except })
}

// Delete implements [node.Target].
func (m *Masquerade) Delete(_ context.Context, p netip.Prefix) error {
	return m.change("masquerade delete", func(want map[netip.Prefix]bgp.Prefixes) { delete(want, p) })
}

func (m *Masquerade) change(op string, edit func(want map[netip.Prefix]bgp.Prefixes)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	want := maps.Clone(m.have)
	edit(want)
	r := masqueradeRules(want)
	err := m.d.withNft(func(c *nft) error {
		if len(want) == 0 {
			r.remove(c)
		} else if err := r.replace(c); err != nil {
			return err
		}
		return c.commit(op)
	})
	if err == nil {
		m.have = want
	}
	return err
}
