package store

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"time"

	"go.etcd.io/bbolt"

	"github.com/gaggle-cni/gaggle/cni"
	"github.com/gaggle-cni/gaggle/node"
)

// castagnoli is the polynomial of the records' checksums: bbolt has one for its own pages, and none for what is in them.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode writes a record: the CRC-32C of the rest, then JSON.
func encode(a node.Attachment) ([]byte, error) {
	text, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	return append(binary.BigEndian.AppendUint32(nil, crc32.Checksum(text, castagnoli)), text...), nil
}

// decode reads a record.
func decode(value []byte) (node.Attachment, error) {
	const sum = 4
	if len(value) < sum || binary.BigEndian.Uint32(value) != crc32.Checksum(value[sum:], castagnoli) {
		return node.Attachment{}, errors.New("the checksum is wrong")
	}
	a := node.Attachment{Namespace: node.NoNetns} // unless it says more
	if err := json.Unmarshal(value[sum:], &a); err != nil {
		return node.Attachment{}, err
	}
	return a, nil
}

// A digest tells whether records are all there: bbolt's pages have no checksums, and one flipped bit in their heads can hide
// some.
type digest struct{ count, sum uint32 }

// add takes a record into the digest; out takes it out again.
func (d *digest) add(key, value []byte) { d.count++; d.sum ^= recordSum(key, value) }
func (d *digest) out(key, value []byte) { d.count--; d.sum ^= recordSum(key, value) }

func recordSum(key, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value)
}

func (d digest) encode() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, d.count), d.sum)
}

// readDigest returns that of the file; a file that never had a record has none.
func readDigest(meta *bbolt.Bucket) (d digest, err error) {
	value := meta.Get(keyDigest)
	switch len(value) {
	case 0:
	case 8:
		d.count, d.sum = binary.BigEndian.Uint32(value), binary.BigEndian.Uint32(value[4:])
	default:
		err = fmt.Errorf("%w: digest of %d bytes", ErrDamaged, len(value))
	}
	return d, err
}

// change puts a record in the place of what is there, or removes it if the value is nil, and keeps the digest right.
func change(tx *bbolt.Tx, id cni.ID, value []byte) error {
	meta, records, key := tx.Bucket(bucketMeta), tx.Bucket(bucketAttachments), []byte(id.String())
	d, err := readDigest(meta)
	if err != nil {
		return err
	}
	if old := records.Get(key); old != nil {
		d.out(key, old)
	}
	if value == nil {
		return errors.Join(records.Delete(key), meta.Put(keyDigest, d.encode()))
	}
	d.add(key, value)
	return errors.Join(records.Put(key, value), meta.Put(keyDigest, d.encode()))
}

// lay writes down until when addresses rest.
func lay(tx *bbolt.Tx, addrs []netip.Addr, until time.Duration) error {
	if until == 0 {
		return nil
	}
	value := binary.BigEndian.AppendUint64(nil, uint64(until))
	for _, addr := range addrs {
		if err := tx.Bucket(bucketResting).Put(addr.AsSlice(), value); err != nil {
			return err
		}
	}
	return nil
}

// wake forgets that addresses rest.
func wake(tx *bbolt.Tx, addrs []netip.Addr) error {
	for _, addr := range addrs {
		if err := tx.Bucket(bucketResting).Delete(addr.AsSlice()); err != nil {
			return err
		}
	}
	return nil
}

func decodeResting(key, value []byte) (netip.Addr, time.Duration, error) {
	addr, ok := netip.AddrFromSlice(key)
	if !ok || len(value) != 8 {
		return netip.Addr{}, 0, errors.New("a resting address that is none") // what there is may be gigabytes
	}
	return addr, time.Duration(binary.BigEndian.Uint64(value)), nil
}
