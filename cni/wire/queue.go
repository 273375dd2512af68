package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// QueueDir is the directory, beside the socket, of DELs that came while the node process was away.
const QueueDir = "deletes"

// MaxQueue bounds the queue; a node has far fewer containers.
const MaxQueue = 4096

// ErrQueueFull means that the queue has no room: the runtime has to try again.
var ErrQueueFull = fmt.Errorf("%d deletions wait already", MaxQueue)

// queueSuffix tells entries from files that are still being written.
const queueSuffix = ".json"

// Enqueue keeps a DEL durably and returns its file. Only what names the attachment is kept; a repeat replaces it.
func Enqueue(dir string, r Request) (path string, err error) {
	var conf struct {
		CNIVersion string `json:"cniVersion"`
		Name       string `json:"name"`
	}
	if err := json.Unmarshal(r.Config, &conf); err != nil {
		return "", fmt.Errorf("network configuration: %w", err)
	}
	if err := CheckName(conf.Name); err != nil {
		return "", fmt.Errorf("network configuration: name %w", err)
	}
	if r.Config, err = json.Marshal(conf); err != nil {
		return "", fmt.Errorf("encode network configuration: %w", err)
	}
	data, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encode deletion: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make queue of deletions: %w", err)
	}
	waiting, err := Queued(dir)
	if err != nil {
		return "", err
	}
	if len(waiting) >= MaxQueue {
		return "", ErrQueueFull
	}
	sum := sha256.Sum256([]byte(conf.Name + "/" + r.ContainerID + "/" + r.IfName))
	path = filepath.Join(dir, hex.EncodeToString(sum[:16])+queueSuffix)
	return path, writeDurably(path, data)
}

// writeDurably leaves a whole file under the path or none, also over a crash.
func writeDurably(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("keep deletion: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("keep deletion: %w", err)
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("keep deletion: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("keep deletion: %w", err)
	}
	return nil
}

// Queued lists the files of the DELs that wait, in no particular order. A queue that was never made is empty.
func Queued(dir string) (paths []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read queue of deletions: %w", err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), queueSuffix) && !strings.HasPrefix(e.Name(), ".") {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths, nil
}
