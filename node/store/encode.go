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
		return netip.Addr{}, 0, fmt.Errorf("resting address %x: %x", key, value)
	}
	return addr, time.Duration(binary.BigEndian.Uint64(value)), nil
}
