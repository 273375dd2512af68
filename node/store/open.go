package store

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/gaggle-cni/gaggle/cni"
	"github.com/gaggle-cni/gaggle/node"
)

// schema is the version of the file's layout. Raise it with every change that an older program cannot read.
const schema = 1

// lockTimeout bounds the wait for the file's lock: bbolt's own default is to wait for ever.
const lockTimeout = 5 * time.Second

var (
	bucketMeta        = []byte("meta")
	bucketAttachments = []byte("attachments")

	keySchema = []byte("schema")
	keyBootID = []byte("boot-id")
	keySecret = []byte("secret")
	keyRun    = []byte("run")
)

// Open opens or makes the file. bootID identifies this boot of the machine: records of an earlier one are dropped, as the
// links and namespaces they describe went with it. The file is locked while it is open, so that two node processes never
// share it.
func Open(path, bootID string) (d *DB, err error) {
	defer func() {
		// A damaged page makes bbolt panic rather than return an error.
		if p := recover(); p != nil {
			d, err = nil, damaged(path, fmt.Errorf("%v", p))
		}
	}()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockTimeout})
	switch {
	case errors.Is(err, bbolterrors.ErrTimeout):
		return nil, fmt.Errorf("open %s: another process has held its lock for %v: is a second node process running?", path, lockTimeout)
	case errors.Is(err, bbolterrors.ErrInvalid), errors.Is(err, bbolterrors.ErrChecksum), errors.Is(err, bbolterrors.ErrVersionMismatch):
		return nil, damaged(path, err)
	case err != nil:
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	d = &DB{
		db: db, byID: make(map[cni.ID]node.Attachment),
		addrs: make(map[netip.Addr]cni.ID), hostIfs: make(map[string]cni.ID),
	}
	if err := db.Update(func(tx *bbolt.Tx) error { return d.load(tx, bootID) }); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), db.Close())
	}
	d.publishLocked() // nobody else has d yet
	return d, nil
}

func damaged(path string, err error) error {
	return fmt.Errorf("open %s: the file is damaged: %w; drain the node, move the file away and start again", path, err)
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
	attachments, err := tx.CreateBucketIfNotExists(bucketAttachments)
	if err != nil {
		return err
	}
	return attachments.ForEach(func(key, value []byte) error {
		var a node.Attachment
		if err := json.Unmarshal(value, &a); err != nil {
			return fmt.Errorf("record %s: %w", key, err)
		}
		d.showLocked(a)
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
		return fmt.Errorf("schema %q: not a number", text)
	}
	if got > schema {
		return fmt.Errorf("schema %d, this program knows %d: %w; run that version, or drain the node and move the file away", got, schema, ErrNewer)
	}
	return nil
}

// forget drops what an earlier boot left.
func forget(tx *bbolt.Tx, meta *bbolt.Bucket, bootID string) error {
	if err := tx.DeleteBucket(bucketAttachments); err != nil && !errors.Is(err, bbolterrors.ErrBucketNotFound) {
		return err
	}
	return errors.Join(meta.Delete(keyRun), meta.Put(keyBootID, []byte(bootID)))
}

// BootID reads the identity of this boot of the machine.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return string(id), nil
}
