package store

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/cni"
	"github.com/gaggle-cni/gaggle/node"
)

// schema is the version of the file's layout. Raise it with every change that an older program cannot read.
const schema = 1

// Bounds of the wait for the lock.
const (
	lockTimeout = 5 * time.Second
	lockGap     = 50 * time.Millisecond
)

// reserve is how much room the file takes at once: enough for the records of several hundred pods, so that pods can still
// be removed, which takes writing, when others have filled the file system.
const reserve = 4 << 20

// maxEntry is more than a key or a record can have: a container's id has 4 KiB at most, annotations are not kept.
const maxEntry = 1 << 20

// maxRest is longer than any address is told to rest.
const maxRest = 24 * time.Hour

var (
	bucketMeta        = []byte("meta")
	bucketAttachments = []byte("attachments")
	bucketResting     = []byte("resting") // address → uptime until when it rests

	keySchema = []byte("schema")
	keyBootID = []byte("boot-id")
	keySecret = []byte("secret")
	keyRun    = []byte("run")
	keyDigest = []byte("digest") // of the attachments
	keyConfig = []byte("config") // the last good configuration
)

var (
	// ErrNewer means that the file was written by a newer version of the program.
	ErrNewer = errors.New("written by a newer version")
	// ErrDamaged means that what is in the file cannot be trusted.
	ErrDamaged = errors.New("the state file is damaged")
)

// Options are what a [DB] needs to know of the machine.
type Options struct {
	// BootID identifies this boot: records of an earlier one are dropped, as the links and namespaces they describe went
	// with it.
	BootID string
	// Uptime is the clock by which addresses rest. It must go on over restarts of the process and never jump.
	Uptime func() time.Duration
}

// Open reads what is in the file, all of it, and writes it anew: bbolt's pages have no checksums, and damage that cannot be
// seen would stay. A file that is not there is empty. A lock beside it is held while it is open, so that two node processes
// never share it. Its error is [ErrDamaged] if the file is there and not sound.
func Open(path string, o Options) (d *DB, err error) {
	lock, err := takeLock(path + ".lock")
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	d = &DB{
		lock: lock, uptime: o.Uptime, byID: make(map[cni.ID]node.Attachment),
		addrs: make(map[netip.Addr]cni.ID), hostIfs: make(map[string]cni.ID), resting: make(resting),
	}
	if err := d.read(path, o.BootID); err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if err := d.write(path, o.BootID); err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	d.publishLocked() // nobody else has d yet
	return d, nil
}

// takeLock locks a file of its own: the state file itself is replaced.
func takeLock(path string) (lock *os.File, err error) {
	if lock, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(lockTimeout)
	for {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			break
		}
		if time.Now().After(deadline) {
			err = fmt.Errorf("another process has held its lock for %v: is a second node process running?", lockTimeout)
			break
		}
		time.Sleep(lockGap) //nolint:forbidigo // nothing tells when a lock is free
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// read reads a file of this boot. It changes nothing.
func (d *DB) read(path, bootID string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	return sound(func() error {
		db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: lockTimeout})
		if err != nil {
			if _, system := errors.AsType[*fs.PathError](err); system || errors.Is(err, bbolterrors.ErrTimeout) {
				return err
			}
			return fmt.Errorf("%w: %w", ErrDamaged, err) // bbolt has many ways to say so
		}
		return errors.Join(db.View(func(tx *bbolt.Tx) error {
			if info.Size() < tx.Size() {
				return fmt.Errorf("%w: it has %d bytes of %d", ErrDamaged, info.Size(), tx.Size())
			}
			return d.load(tx, bootID)
		}), db.Close())
	})
}

// sound turns what a damaged file does to bbolt into [ErrDamaged]: a page that makes no sense is a panic, and one beyond the
// end of the file a fault.
func sound(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, p)
		}
	}()
	return do()
}

// write puts a new file with all that was read in the place of the old. Where there is no room for both, the old one goes on
// to be used.
func (d *DB) write(path, bootID string) (err error) {
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a start that was cut off
		return err
	}
	err = d.make(fresh, bootID)
	if err == nil {
		err = os.Rename(fresh, path)
	}
	if !noRoom(err) {
		return err
	}
	_ = os.Remove(fresh) // or the next start does
	if info, err := os.Stat(path); err != nil || info.Size() == 0 {
		return errors.New("the file system is full: free space in the run directory")
	}
	return d.make(path, bootID) // puts what is there
}

func noRoom(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// make opens a file for writing and puts everything into it.
func (d *DB) make(path, bootID string) (err error) {
	defer func() {
		if err != nil && d.db != nil {
			err = errors.Join(err, d.db.Close())
			d.db = nil
		}
	}()
	if d.db, err = bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockTimeout}); err != nil {
		return err
	}
	if err := d.db.Update(func(tx *bbolt.Tx) error { return d.putAll(tx, bootID) }); err != nil {
		return err
	}
	return takeRoom(path)
}

func (d *DB) putAll(tx *bbolt.Tx, bootID string) error {
	for _, name := range [][]byte{bucketMeta, bucketAttachments, bucketResting} {
		if err := tx.DeleteBucket(name); err != nil && !errors.Is(err, bbolterrors.ErrBucketNotFound) {
			return err
		}
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	if d.secret == ([32]byte{}) {
		_, _ = rand.Read(d.secret[:]) // never fails
	}
	run, err := json.Marshal(d.lastRun)
	if err != nil {
		return err
	}
	meta := tx.Bucket(bucketMeta)
	errs := []error{
		meta.Put(keySchema, []byte(strconv.Itoa(schema))), meta.Put(keyBootID, []byte(bootID)),
		meta.Put(keySecret, d.secret[:]), meta.Put(keyRun, run), meta.Put(keyConfig, d.config),
	}
	for id, a := range d.byID {
		value, err := encode(a)
		if err == nil {
			err = change(tx, id, value)
		}
		errs = append(errs, err)
	}
	for addr, until := range d.resting {
		errs = append(errs, lay(tx, []netip.Addr{addr}, until))
	}
	return errors.Join(errs...)
}

// takeRoom takes it on the file system ahead, where that can be.
func takeRoom(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	for tries := 3; tries > 0 && errors.Is(unix.Fallocate(int(f.Fd()), 0, 0, reserve), unix.EINTR); tries-- {
		continue // a signal came; what else goes wrong only means that there is no room ahead
	}
	return nil
}

// load reads and shows what is of this schema and this boot.
func (d *DB) load(tx *bbolt.Tx, bootID string) error {
	meta := tx.Bucket(bucketMeta)
	if meta == nil {
		return fmt.Errorf("%w: it has no head", ErrDamaged)
	}
	if err := checkSchema(meta); err != nil {
		return err
	}
	copy(d.secret[:], meta.Get(keySecret))
	d.config = slices.Clone(meta.Get(keyConfig)) // of any boot
	if string(meta.Get(keyBootID)) != bootID {
		return nil // of an earlier boot: what it tells of went with that
	}
	if value := meta.Get(keyRun); value != nil {
		if err := json.Unmarshal(value, &d.lastRun); err != nil {
			return fmt.Errorf("%w: last run: %w", ErrDamaged, err)
		}
	}
	return errors.Join(d.loadAttachments(tx), d.loadResting(tx))
}

func (d *DB) loadAttachments(tx *bbolt.Tx) error {
	attachments := tx.Bucket(bucketAttachments)
	if attachments == nil {
		return fmt.Errorf("%w: it has no records", ErrDamaged)
	}
	want, err := readDigest(tx.Bucket(bucketMeta))
	if err != nil {
		return err
	}
	var have digest
	err = attachments.ForEach(func(key, value []byte) error {
		if len(key) > maxEntry || len(value) > maxEntry {
			return fmt.Errorf("%w: a record of %d bytes", ErrDamaged, len(value))
		}
		have.add(key, value)
		a, err := decode(value)
		if err == nil && a.ID.String() != string(key) {
			err = fmt.Errorf("it is that of %s", a.ID)
		}
		if err != nil {
			return fmt.Errorf("%w: record %q: %w", ErrDamaged, key, err)
		}
		for _, addr := range a.Addrs {
			// Sandboxes of one pod share its static address.
			if other, twice := d.addrs[addr]; twice && (a.Pod.Key == node.PodKey{} || d.byID[other].Pod.Key != a.Pod.Key) {
				return fmt.Errorf("%w: %s is that of %s and of %s", ErrDamaged, addr, other, a.ID)
			}
		}
		d.showLocked(a)
		return nil
	})
	if err == nil && have != want {
		err = fmt.Errorf("%w: there are %d records, and should be %d", ErrDamaged, have.count, want.count)
	}
	return err
}

func (d *DB) loadResting(tx *bbolt.Tx) error {
	rests := tx.Bucket(bucketResting)
	if rests == nil {
		return fmt.Errorf("%w: it has no resting addresses", ErrDamaged)
	}
	return rests.ForEach(func(key, value []byte) error {
		addr, until, err := decodeResting(key, value)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		d.resting[addr] = min(until, d.uptime()+maxRest)
		return nil
	})
}

func checkSchema(meta *bbolt.Bucket) error {
	text := meta.Get(keySchema)
	got, err := strconv.Atoi(string(text))
	if err != nil {
		return fmt.Errorf("%w: schema %q: not a number", ErrDamaged, text)
	}
	if got > schema {
		return fmt.Errorf("schema %d, this program knows %d: %w; run that version, or drain the node and move the file away", got, schema, ErrNewer)
	}
	return nil
}

// SetAside moves a damaged file out of the way, in place of one that was moved before, and tells where to.
func SetAside(path string) (aside string, err error) {
	aside = path + ".damaged"
	if err := os.Rename(path, aside); err != nil {
		return "", fmt.Errorf("set the state file aside: %w", err)
	}
	return aside, nil
}

// BootID reads the identity of this boot of the machine.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return string(id), nil
}
