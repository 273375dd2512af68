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

// lockTimeout bounds the wait for the file's lock: bbolt's own default is to wait for ever.
const lockTimeout = 5 * time.Second

// reserve is how much room the file takes at once: enough for the records of several hundred pods, so that pods can still
// be removed, which takes writing, when others have filled the file system.
const reserve = 4 << 20

var (
	bucketMeta        = []byte("meta")
	bucketAttachments = []byte("attachments")
	bucketResting     = []byte("resting") // address → uptime until when it rests

	keySchema = []byte("schema")
	keyBootID = []byte("boot-id")
	keySecret = []byte("secret")
	keyRun    = []byte("run")
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

// Open opens or makes the file, and reads all of it. The file is locked while it is open, so that two node processes never
// share it. Its error is [ErrDamaged] if the file is there and not sound.
func Open(path string, o Options) (d *DB, err error) {
	db, err := openFile(path)
	if err != nil {
		return nil, err
	}
	d = &DB{
		db: db, uptime: o.Uptime, byID: make(map[cni.ID]node.Attachment),
		addrs: make(map[netip.Addr]cni.ID), hostIfs: make(map[string]cni.ID), resting: make(resting),
	}
	if err := sound(func() error { return d.read(o.BootID) }); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), db.Close())
	}
	d.publishLocked() // nobody else has d yet
	return d, nil
}

func openFile(path string) (db *bbolt.DB, err error) {
	err = sound(func() error {
		db, err = bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockTimeout})
		return err
	})
	switch {
	case errors.Is(err, bbolterrors.ErrTimeout):
		return nil, fmt.Errorf("open %s: another process has held its lock for %v: is a second node process running?", path, lockTimeout)
	case errors.Is(err, bbolterrors.ErrInvalid), errors.Is(err, bbolterrors.ErrChecksum), errors.Is(err, bbolterrors.ErrVersionMismatch):
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	case err != nil && !errors.Is(err, ErrDamaged) && !refused(err) && cut(path):
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return db, nil
}

// refused reports whether an error is the operating system's.
func refused(err error) bool {
	_, ok := errors.AsType[*fs.PathError](err)
	return ok
}

// cut reports whether a file is too short to be one of ours, for which bbolt has no error of its own.
func cut(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Size() < int64(4*os.Getpagesize())
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

// read checks the file, brings it to this schema and this boot, and shows what is in it.
func (d *DB) read(bootID string) error {
	if err := d.whole(); err != nil {
		return err
	}
	if err := d.db.Update(func(tx *bbolt.Tx) error { return d.load(tx, bootID) }); err != nil {
		return err
	}
	// Only now: it walks the pages in a goroutine of its own, where a fault could not be caught.
	if err := d.db.View(consistent); err != nil {
		return err
	}
	return d.reserve()
}

// whole makes sure that the file has all its pages.
func (d *DB) whole() error {
	info, err := os.Stat(d.db.Path())
	if err != nil {
		return err
	}
	return d.db.View(func(tx *bbolt.Tx) error {
		if info.Size() < tx.Size() {
			return fmt.Errorf("%w: it has %d bytes of %d", ErrDamaged, info.Size(), tx.Size())
		}
		return nil
	})
}

func consistent(tx *bbolt.Tx) (err error) {
	for found := range tx.Check() { // to its end, or its goroutine would stay
		if err == nil {
			err = fmt.Errorf("%w: %w", ErrDamaged, found)
		}
	}
	return err
}

// reserve takes room on the file system. A full one does not keep the node from starting.
func (d *DB) reserve() error {
	f, err := os.OpenFile(d.db.Path(), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.Fallocate(int(f.Fd()), 0, 0, reserve)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

// load brings the file to this schema and this boot and reads it.
func (d *DB) load(tx *bbolt.Tx, bootID string) error {
	meta, err := tx.CreateBucketIfNotExists(bucketMeta)
	if err != nil {
		return err
	}
	if err := checkSchema(meta); err != nil {
		return err
	}
	if string(meta.Get(keyBootID)) != bootID {
		if err := forget(tx, meta, bootID); err != nil {
			return err
		}
	}
	if copy(d.secret[:], meta.Get(keySecret)) != len(d.secret) {
		_, _ = rand.Read(d.secret[:]) // never fails
		if err := meta.Put(keySecret, d.secret[:]); err != nil {
			return err
		}
	}
	if value := meta.Get(keyRun); value != nil {
		if err := json.Unmarshal(value, &d.lastRun); err != nil {
			return fmt.Errorf("%w: last run: %w", ErrDamaged, err)
		}
	}
	return errors.Join(d.loadAttachments(tx), d.loadResting(tx))
}

func (d *DB) loadAttachments(tx *bbolt.Tx) error {
	attachments, err := tx.CreateBucketIfNotExists(bucketAttachments)
	if err != nil {
		return err
	}
	return attachments.ForEach(func(key, value []byte) error {
		a, err := decode(value)
		if err == nil && a.ID.String() != string(key) {
			err = fmt.Errorf("it is that of %s", a.ID)
		}
		if err != nil {
			return fmt.Errorf("%w: record %q: %w", ErrDamaged, key, err)
		}
		d.showLocked(a)
		return nil
	})
}

func (d *DB) loadResting(tx *bbolt.Tx) error {
	rests, err := tx.CreateBucketIfNotExists(bucketResting)
	if err != nil {
		return err
	}
	return rests.ForEach(func(key, value []byte) error {
		addr, until, err := decodeResting(key, value)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		d.resting[addr] = until
		return nil
	})
}

func checkSchema(meta *bbolt.Bucket) error {
	text := meta.Get(keySchema)
	if text == nil {
		return meta.Put(keySchema, []byte(strconv.Itoa(schema)))
	}
	got, err := strconv.Atoi(string(text))
	if err != nil {
		return fmt.Errorf("%w: schema %q: not a number", ErrDamaged, text)
	}
	if got > schema {
		return fmt.Errorf("schema %d, this program knows %d: %w; run that version, or drain the node and move the file away", got, schema, ErrNewer)
	}
	return nil
}

// forget drops what an earlier boot left.
func forget(tx *bbolt.Tx, meta *bbolt.Bucket, bootID string) error {
	for _, name := range [][]byte{bucketAttachments, bucketResting} {
		if err := tx.DeleteBucket(name); err != nil && !errors.Is(err, bbolterrors.ErrBucketNotFound) {
			return err
		}
	}
	return errors.Join(meta.Delete(keyRun), meta.Put(keyBootID, []byte(bootID)))
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
