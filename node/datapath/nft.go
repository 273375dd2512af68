package datapath

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Bounds of the work with nf_tables. A commit is done when the kernel has taken it, which nothing bounds but other commits.
const (
	nftTimeout     = 10 * time.Second // of each wait for answers
	nftReadTimeout = 5 * time.Second  // of a reading that others' changes make begin anew
)

// nftRetryGap is how long a reading waits that somebody else's change came between.
const nftRetryGap = 5 * time.Millisecond

// An nft is a socket to the kernel's nf_tables, in the node's namespace. Whatever fails on it makes it useless: an answer
// may still be under way.
type nft struct {
	*nftables.Conn
	socket *mdnetlink.Conn
	before func(op string) error
}

// nftState is the socket, if there is one, and its address. What is collected for a commit, and the answers on the socket, are
// one caller's: the lock is held from first to last, and that no longer than nftTimeout.
type nftState struct {
	mu   sync.Mutex
	conn *nft
	port atomic.Uint32
}

// nftConn returns the socket, a new one after a failure.
func (d *Datapath) nftConn() (*nft, error) {
	if d.nft.conn != nil {
		return d.nft.conn, nil
	}
	c := &nft{before: d.o.Before}
	var err error
	c.Conn, err = nftables.New(nftables.WithNetNSFd(int(d.ns)), nftables.AsLasting(),
		nftables.WithSockOptions(func(s *mdnetlink.Conn) error { c.socket = s; return nil }))
	if err != nil {
		return nil, fmt.Errorf("open a socket to nf_tables: %w", err)
	}
	port, err := c.port()
	if err != nil {
		return nil, errors.Join(err, c.CloseLasting())
	}
	d.nft.conn = c
	d.nft.port.Store(port)
	return c, nil
}

// dropNft closes the socket; the next use opens another.
func (d *Datapath) dropNft() {
	if d.nft.conn != nil {
		_ = d.nft.conn.CloseLasting()
		d.nft.conn = nil
	}
}

// withNft does something with the socket.
func (d *Datapath) withNft(do func(c *nft) error) error {
	d.nft.mu.Lock()
	defer d.nft.mu.Unlock()
	c, err := d.nftConn()
	if err != nil {
		return err
	}
	if err = c.socket.SetDeadline(time.Now().Add(nftTimeout)); err == nil {
		err = do(c)
	}
	if err != nil {
		d.dropNft()
	}
	return err
}

// port is the socket's address, which the kernel puts into the events that its changes cause.
func (c *nft) port() (port uint32, err error) {
	raw, err := c.socket.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("socket to nf_tables: %w", err)
	}
	var addr unix.Sockaddr
	var nameErr error
	if err := raw.Control(func(fd uintptr) { addr, nameErr = unix.Getsockname(int(fd)) }); err != nil {
		return 0, fmt.Errorf("socket to nf_tables: %w", err)
	}
	own, ok := addr.(*unix.SockaddrNetlink)
	if nameErr != nil || !ok {
		return 0, fmt.Errorf("address of the socket to nf_tables: %w", nameErr)
	}
	return own.Pid, nil
}

// commit makes everything that was collected so happen, or nothing of it.
func (c *nft) commit(op string) error {
	if err := c.before(op); err != nil {
		return err
	}
	return c.Flush()
}

// generation is the number of the rule set's state; any change by anybody raises it.
func (c *nft) generation() (uint32, error) {
	const nfgenmsg = 4 // bytes: family, version, resource id (linux/netfilter/nfnetlink.h)
	replies, err := c.socket.Execute(mdnetlink.Message{
		Header: mdnetlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: mdnetlink.Request},
		Data:   make([]byte, nfgenmsg),
	})
	if err != nil {
		return 0, fmt.Errorf("read the generation of nf_tables: %w", err)
	}
	for _, r := range replies {
		if len(r.Data) < nfgenmsg {
			continue
		}
		attrs, err := mdnetlink.NewAttributeDecoder(r.Data[nfgenmsg:])
		if err != nil {
			return 0, fmt.Errorf("read the generation of nf_tables: %w", err)
		}
		attrs.ByteOrder = binary.BigEndian
		for attrs.Next() {
			if attrs.Type() == unix.NFTA_GEN_ID {
				return attrs.Uint32(), nil
			}
		}
	}
	return 0, errors.New("nf_tables does not tell its generation")
}

// consistently reads, again and again until nobody has changed anything meanwhile: several lists are one picture only then,
// and one that was interrupted may lack entries.
func (d *Datapath) consistently(ctx context.Context, read func(c *nft) error) error {
	ctx, cancel := context.WithTimeout(ctx, nftReadTimeout) // what comes after in a pass needs time too
	defer cancel()
	for {
		var before, after uint32
		err := d.withNft(func(c *nft) (err error) {
			if before, err = c.generation(); err != nil {
				return err
			}
			if err = read(c); err != nil {
				return err
			}
			after, err = c.generation()
			return err
		})
		if err != nil {
			// What was listed a moment ago may be gone, and a list cut off: that is so if somebody changed something.
			_ = d.withNft(func(c *nft) (genErr error) { after, genErr = c.generation(); return genErr })
		}
		if before == after {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("read nf_tables: it changes without pause: %w", errors.Join(err, context.Cause(ctx)))
		case <-time.After(nftRetryGap):
		}
	}
}

// A ruleSet is a table of ours, without the elements of its sets. Its rules carry a text each, the comment that nft shows,
// by which they are recognised.
type ruleSet struct {
	table *nftables.Table
	sets  []*nftables.Set
	chain *nftables.Chain
	rules []rule
}

type rule struct {
	text  string
	exprs exprs
}

func newTable(name string) *nftables.Table {
	return &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
}

// replace collects what makes the table be just this, whatever it was.
func (r ruleSet) replace(c *nft) error {
	r.remove(c)
	c.AddTable(r.table)
	for _, s := range r.sets {
		if err := c.AddSet(s, nil); err != nil {
			return fmt.Errorf("set %s: %w", s.Name, err)
		}
	}
	c.AddChain(r.chain)
	for _, rule := range r.rules {
		c.AddRule(&nftables.Rule{
			Table: r.table, Chain: r.chain, Exprs: rule.exprs,
			UserData: userdata.AppendString(nil, userdata.TypeComment, rule.text),
		})
	}
	return nil
}

// remove collects what makes the table go, whether it is there or not.
func (r ruleSet) remove(c *nft) {
	c.AddTable(r.table) // an absent table cannot be deleted
	c.DelTable(r.table)
}

// find returns the table of this name as the kernel has it; nil if it has none.
func (r ruleSet) find(c *nft) (*nftables.Table, error) {
	tables, err := c.ListTablesOfFamily(r.table.Family)
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	for _, t := range tables {
		if t.Name == r.table.Name {
			return t, nil
		}
	}
	return nil, nil
}

// texts reads the rules' texts off the kernel, in order.
func (r ruleSet) texts(c *nft) ([]string, error) {
	rules, err := c.GetRules(r.table, r.chain)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	texts := make([]string, 0, len(rules))
	for _, k := range rules {
		text, _ := userdata.GetString(k.UserData, userdata.TypeComment)
		texts = append(texts, text)
	}
	return texts, nil
}

// intact reports whether the table that was found is in force, with its chain, sets and rules and no others.
func (r ruleSet) intact(c *nft, found *nftables.Table) (bool, error) {
	if found.Flags != 0 { // it may be dormant
		return false, nil
	}
	chains, err := c.ListChainsOfTableFamily(r.table.Family)
	if err != nil {
		return false, fmt.Errorf("list chains: %w", err)
	}
	chains = slices.DeleteFunc(chains, func(k *nftables.Chain) bool { return k.Table.Name != r.table.Name })
	if len(chains) != 1 || !sameChain(chains[0], r.chain) {
		return false, nil
	}
	sets, err := c.GetSets(r.table)
	if err != nil {
		return false, fmt.Errorf("list sets: %w", err)
	}
	slices.SortFunc(sets, func(a, b *nftables.Set) int { return strings.Compare(a.Name, b.Name) })
	if !slices.EqualFunc(sets, r.sets, func(a, b *nftables.Set) bool {
		return a.Name == b.Name && a.KeyType.Bytes == b.KeyType.Bytes
	}) {
		return false, nil
	}
	texts, err := r.texts(c)
	return slices.EqualFunc(texts, r.rules, func(text string, rule rule) bool { return text == rule.text }), err
}

func sameChain(a, b *nftables.Chain) bool {
	if a.Hooknum == nil || a.Priority == nil || a.Policy == nil { // it is no base chain: nothing passes by it
		return false
	}
	return a.Name == b.Name && a.Type == b.Type && *a.Hooknum == *b.Hooknum && *a.Priority == *b.Priority &&
		*a.Policy == nftables.ChainPolicyAccept
}
