package datapath

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/node"
)

// Table is the table of family inet with the source-address check.
const Table = "gaggle"

var (
	linkLocal   = netip.MustParsePrefix("fe80::/10") // RFC 4291 section 2.5.6
	unspecified = netip.MustParsePrefix("::/128")
	multicast   = netip.MustParsePrefix("ff00::/8")
)

const routerAdvertisement = 134 // RFC 4861 section 4.2

// Sources are the source-address checks of pods' links, a [node.Target]. They are one table with a constant set of rules: what
// comes in by a link in one set passes only if link and source address together are in another. Whatever is done to a link is
// one transaction, so that none is ever cut off from its addresses; the table is there as long as anything is checked.
type Sources struct {
	d     *Datapath
	rules ruleSet

	links, v4, v6 *nftables.Set

	mu sync.Mutex
	// have is what the last [Sources.List] saw and was put since; intact tells whether the table was whole.
	have   map[node.LinkName]node.SourceCheck
	intact bool
}

var _ node.Target[node.LinkName, node.SourceCheck] = (*Sources)(nil)

// Sources returns the target. Its methods may be called concurrently.
func (d *Datapath) Sources() *Sources {
	table := newTable(Table)
	set := func(name string, key nftables.SetDatatype) *nftables.Set {
		s := &nftables.Set{Table: table, Name: name, KeyType: key, Concatenation: key.Bytes > nftables.TypeIFName.Bytes}
		if !s.Concatenation { // only nft looks at this, to print the names of links
			s.KeyByteOrder = binaryutil.NativeEndian
		}
		return s
	}
	s := &Sources{
		d: d, links: set("links", nftables.TypeIFName),
		v4: set("sources4", nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIPAddr)),
		v6: set("sources6", nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIP6Addr)),
	}
	accept := nftables.ChainPolicyAccept
	none4, none6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	s.rules = ruleSet{
		table: table,
		sets:  []*nftables.Set{s.links, s.v4, s.v6},
		chain: &nftables.Chain{
			Name: "prerouting", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting,
			Priority: nftables.ChainPriorityRaw, Policy: &accept, // before a connection is remembered
		},
		rules: []rule{
			{"links without a check", exprs{}.link(expr.MetaKeyIIFNAME, s.links, true).accept()},
			{"a pod's own IPv4 addresses", exprs{}.family(none4).source(s.v4, none4).accept()},
			{"a pod's own IPv6 addresses", exprs{}.family(none6).source(s.v6, none6).accept()},
			{"a pod is no router", exprs{}.family(none6).icmp6().icmp6Type(routerAdvertisement).drop()},
			// They go no further than the link.
			{"link-local addresses", exprs{}.within(linkLocal, false).accept()},
			{"a look for duplicate addresses, and multicast listeners", exprs{}.within(unspecified, false).within(multicast, true).icmp6().accept()},
			{"any other source address", exprs{}.drop()},
		},
	}
	return s
}

// List implements [node.Target]. A table that is not whole counts for nothing: it is then made anew by the first
// [Sources.Put], and removed by [Sources.Delete] of the empty name if nothing is wanted.
func (s *Sources) List(ctx context.Context) (map[node.LinkName]node.SourceCheck, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out map[node.LinkName]node.SourceCheck
	err := s.d.consistently(ctx, func(c *nft) (err error) {
		out, s.have, s.intact = nil, make(map[node.LinkName]node.SourceCheck), false
		found, err := s.rules.find(c)
		if err != nil || found == nil {
			return err
		}
		if s.intact, err = s.rules.intact(c, found); err != nil {
			return err
		}
		if !s.intact {
			out = map[node.LinkName]node.SourceCheck{"": {}}
			return nil
		}
		s.have, err = s.read(c)
		out = maps.Clone(s.have)
		return err
	})
	return out, err
}

// read reads the elements.
func (s *Sources) read(c *nft) (map[node.LinkName]node.SourceCheck, error) {
	addrs := make(map[node.LinkName][]netip.Addr)
	checked := make(map[node.LinkName]bool)
	for _, set := range s.rules.sets {
		elements, err := c.GetSetElements(set)
		if err != nil {
			return nil, fmt.Errorf("list set %s: %w", set.Name, err)
		}
		for _, e := range elements {
			if len(e.Key) != int(set.KeyType.Bytes) {
				return nil, fmt.Errorf("set %s has a key of %d bytes, want %d", set.Name, len(e.Key), set.KeyType.Bytes)
			}
			name := node.LinkName(strings.TrimRight(string(e.Key[:unix.IFNAMSIZ]), "\x00"))
			if set == s.links {
				checked[name] = true
				continue
			}
			addr, _ := netip.AddrFromSlice(e.Key[unix.IFNAMSIZ:])
			addrs[name] = append(addrs[name], addr)
		}
	}
	out := make(map[node.LinkName]node.SourceCheck)
	for name := range checked {
		out[name] = node.SourceCheck{On: true}
	}
	for name, list := range addrs {
		out[name] = node.SourceCheck{On: checked[name], Addrs: node.MakeAddrs(list)}
	}
	return out, nil
}

// Put implements [node.Target].
func (s *Sources) Put(_ context.Context, name node.LinkName, check node.SourceCheck) error {
	if name == "" || len(name) >= unix.IFNAMSIZ {
		return fmt.Errorf("%q is no name of a link", name)
	}
	return s.change(name, check, "source check put")
}

// Delete implements [node.Target].
func (s *Sources) Delete(_ context.Context, name node.LinkName) error {
	return s.change(name, node.SourceCheck{}, "source check delete")
}

// change makes a link's elements those of the given check, and the table whole if it is not.
func (s *Sources) change(name node.LinkName, check node.SourceCheck, op string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.have[name]
	if old == check && s.intact {
		return nil
	}
	others := len(s.have)
	if _, ok := s.have[name]; ok {
		others--
	}
	last := check == node.SourceCheck{} && others == 0
	err := s.d.withNft(func(c *nft) error {
		switch {
		case last:
			s.rules.remove(c)
			return c.commit(op)
		case !s.intact:
			if err := s.rules.replace(c); err != nil {
				return err
			}
		}
		for _, set := range s.rules.sets {
			is, want := s.elements(set, name, old), s.elements(set, name, check)
			if err := changeElements(c, set, is, want); err != nil {
				return fmt.Errorf("set %s: %w", set.Name, err)
			}
		}
		return c.commit(op)
	})
	if err != nil {
		return err
	}
	s.intact = !last
	if delete(s.have, name); check != (node.SourceCheck{}) {
		s.have[name] = check
	}
	return nil
}

// elements are those of a set that stand for a link's check.
func (s *Sources) elements(set *nftables.Set, name node.LinkName, check node.SourceCheck) (keys []string) {
	link := make([]byte, unix.IFNAMSIZ)
	copy(link, name)
	if set == s.links {
		if check.On {
			keys = append(keys, string(link))
		}
		return keys
	}
	for _, addr := range check.Addrs.Values() {
		if addr.Is4() == (set == s.v4) {
			keys = append(keys, string(append(slices.Clone(link), addr.AsSlice()...)))
		}
	}
	return keys
}

// changeElements collects what makes the keys that are those that are wanted.
func changeElements(c *nft, set *nftables.Set, is, want []string) error {
	without := func(keys, others []string) (out []nftables.SetElement) {
		for _, key := range keys {
			if !slices.Contains(others, key) {
				out = append(out, nftables.SetElement{Key: []byte(key)})
			}
		}
		return out
	}
	if gone := without(is, want); len(gone) > 0 {
		if err := c.SetDeleteElements(set, gone); err != nil {
			return err
		}
	}
	if added := without(want, is); len(added) > 0 {
		return c.SetAddElements(set, added)
	}
	return nil
}
