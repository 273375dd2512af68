// Package store keeps the attachments in a bbolt file, so that the node process can die at any instruction and know on its
// next start what it had promised. It decides nothing. It is the only package that knows bbolt.
package store

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"github.com/gaggle-cni/gaggle/cni"
	"github.com/gaggle-cni/gaggle/node"
)

// DB is a [node.Store] in one file. All methods may be called concurrently.
type DB struct {
	db      *bbolt.DB
	lock    *os.File // held from before the file is read until it is closed
	uptime  func() time.Duration
	secret  [32]byte
	lastRun Run
	config  []byte // guarded by mu once the file is open

	// mu is held over a whole change, file and mirror, so that the mirror is published in the order of commits: bbolt
	// itself runs OnCommit after it has let the next writer in.
	mu      sync.Mutex
	byID    map[cni.ID]node.Attachment
	addrs   map[netip.Addr]cni.ID
	hostIfs map[string]cni.ID
	resting resting

	all atomic.Pointer[[]node.Attachment]
}

var _ node.Store = (*DB)(nil)

// Reserve implements [node.Store].
func (d *DB) Reserve(id cni.ID, choose func(node.Taken) (node.Attachment, error)) (node.Attachment, bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if a, ok := d.byID[id]; ok {
		return a, false, nil
	}
	now := d.uptime()
	a, err := choose(node.Taken{
		Addr:    func(addr netip.Addr) bool { _, ok := d.addrs[addr]; return ok },
		HostIf:  func(name string) bool { _, ok := d.hostIfs[name]; return ok },
		Resting: func(addr netip.Addr) bool { return d.resting[addr] > now },
		Rested:  func() []netip.Addr { return d.resting.oldestFirst(now) },
	})
	if err != nil {
		return node.Attachment{}, false, err
	}
	a.ID, a.Committed = id, false
	if err := d.putLocked(a); err != nil {
		return node.Attachment{}, false, err
	}
	return a, true, nil
}

// Commit implements [node.Store].
func (d *DB) Commit(id cni.ID, ns node.NetnsID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	a, ok := d.byID[id]
	if !ok {
		return fmt.Errorf("commit %s: no such record", id)
	}
	a.Committed, a.Namespace = true, ns
	return d.putLocked(a)
}

// Observe implements [node.Store]. What cannot be written counts until the end of the process all the same, and is written with
// the next change of the record.
func (d *DB) Observe(id cni.ID, pod node.Pod) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	a, ok := d.byID[id]
	if !ok || a.Pod == pod {
		return nil
	}
	a.Pod = pod
	err := d.putLocked(a)
	if err != nil {
		d.showLocked(a)
		d.publishLocked()
	}
	return err
}

// Retire implements [node.Store].
func (d *DB) Retire(id cni.ID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	a, ok := d.byID[id]
	if !ok || !a.Committed {
		return nil
	}
	a.Committed = false
	return d.putLocked(a)
}

// Release implements [node.Store].
func (d *DB) Release(id cni.ID, rest time.Duration) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	a, ok := d.byID[id]
	if !ok {
		return nil
	}
	now := d.uptime()
	over := d.resting.over(now)
	var until time.Duration
	if rest > 0 {
		until = now + rest
	}
	free := slices.DeleteFunc(slices.Clone(a.Addrs), func(addr netip.Addr) bool { return d.heldBeside(id, addr) })
	err := d.db.Update(func(tx *bbolt.Tx) error {
		return errors.Join(change(tx, id, nil), wake(tx, over), lay(tx, free, until))
	})
	if err != nil {
		return fmt.Errorf("release %s: %w: %w", id, node.ErrStore, err)
	}
	delete(d.byID, id)
	if d.hostIfs[a.HostIf] == id {
		delete(d.hostIfs, a.HostIf)
	}
	for _, addr := range over {
		delete(d.resting, addr)
	}
	for _, addr := range a.Bound() {
		if d.addrs[addr] == id {
			delete(d.addrs, addr)
		}
	}
	for _, addr := range free {
		if until > 0 {
			d.resting[addr] = until
		}
	}
	for _, other := range d.byID { // one address can be that of several: anycast, and the sandboxes of one pod
		for _, addr := range other.Bound() {
			if _, taken := d.addrs[addr]; !taken {
				d.addrs[addr] = other.ID
			}
		}
	}
	d.publishLocked()
	return nil
}

// heldBeside reports whether another record than this has the address.
func (d *DB) heldBeside(id cni.ID, addr netip.Addr) bool {
	for _, other := range d.byID {
		if other.ID != id && slices.Contains(other.Bound(), addr) {
			return true
		}
	}
	return false
}

// All implements [node.Store].
func (d *DB) All() []node.Attachment { return *d.all.Load() }

// Secret is made once for each file. Addresses are derived from it, so that nobody else can foretell them.
func (d *DB) Secret() [32]byte { return d.secret }

// Close closes the file.
func (d *DB) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := errors.Join(d.db.Close(), d.lock.Close()); err != nil {
		return fmt.Errorf("close state file: %w", err)
	}
	return nil
}

// putLocked writes a record, then shows it. Its addresses rest no more.
func (d *DB) putLocked(a node.Attachment) error {
	value, err := encode(a)
	if err != nil {
		return fmt.Errorf("encode record %s: %w", a.ID, err)
	}
	err = d.db.Update(func(tx *bbolt.Tx) error {
		return errors.Join(change(tx, a.ID, value), wake(tx, a.Addrs))
	})
	if err != nil {
		return fmt.Errorf("write record %s: %w: %w", a.ID, node.ErrStore, err)
	}
	for _, addr := range a.Addrs {
		delete(d.resting, addr)
	}
	d.showLocked(a)
	d.publishLocked()
	return nil
}

func (d *DB) showLocked(a node.Attachment) {
	d.byID[a.ID] = a
	d.hostIfs[a.HostIf] = a.ID
	for _, addr := range a.Bound() {
		d.addrs[addr] = a.ID
	}
}

func (d *DB) publishLocked() {
	all := slices.Collect(maps.Values(d.byID))
	slices.SortFunc(all, func(a, b node.Attachment) int { return a.ID.Compare(b.ID) })
	d.all.Store(&all)
}

// resting are the addresses that are free and rest, each until an uptime of the machine.
type resting map[netip.Addr]time.Duration

// oldestFirst returns those that still rest.
func (r resting) oldestFirst(now time.Duration) (addrs []netip.Addr) {
	for addr, until := range r {
		if until > now {
			addrs = append(addrs, addr)
		}
	}
	slices.SortFunc(addrs, func(a, b netip.Addr) int { return cmp.Or(cmp.Compare(r[a], r[b]), a.Compare(b)) })
	return addrs
}

// over returns those whose time has come.
func (r resting) over(now time.Duration) (addrs []netip.Addr) {
	for addr, until := range r {
		if until <= now {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// A Run is what is remembered of a life of the process.
type Run struct {
	// Peers tells whether a BGP session was up.
	Peers bool `json:"peers"`
	// Uptime is the machine's (CLOCK_BOOTTIME), when the process was last known to live.
	Uptime time.Duration `json:"uptime"`
}

// Touch remembers that this process lives.
func (d *DB) Touch(r Run) error {
	value, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode run: %w", err)
	}
	err = d.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyRun, value) })
	if err != nil {
		return fmt.Errorf("write run: %w", err)
	}
	return nil
}

// SetConfig remembers the last good configuration, whatever its form. It may hold secrets, as the file does anyway.
func (d *DB) SetConfig(data []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if bytes.Equal(data, d.config) {
		return nil
	}
	if err := d.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyConfig, data) }); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	d.config = slices.Clone(data)
	return nil
}

// Config returns what was remembered; nothing if nothing was.
func (d *DB) Config() []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.config)
}

// LastRun returns what was remembered when the file was opened; the zero Run if nothing was since the machine booted.
func (d *DB) LastRun() Run { return d.lastRun }
