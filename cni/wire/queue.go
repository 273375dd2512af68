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
	"slices"
	"strings"
	"time"
)

// QueueDir is the directory, beside the socket, of DELs that came while the node process was away.
const QueueDir = "deletes"

// MaxQueue bounds the queue; a node has far fewer containers.
const MaxQueue = 4096

// ErrQueueFull means that the queue has no room: the runtime has to try again.
var ErrQueueFull = fmt.Errorf("%d deletions wait already", MaxQueue)

// queueSuffix is that of the entries.
const queueSuffix = ".json"

// newPrefix is that of files that are still being written.
const newPrefix = ".new-"

// unfinishedLimit is how old such a file can be: its plugin has been killed long since.
const unfinishedLimit = 10 * time.Minute

// A Deletion is a DEL that is kept: what names the attachment, and nothing that a later version might refuse.
type Deletion struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
}

// Enqueue keeps a DEL durably and returns its file. A repeat replaces it.
func Enqueue(dir string, r Request) (path string, err error) {
	var conf struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal(r.Config, &conf); err != nil {
		return "", fmt.Errorf("network configuration: %w", err)
	}
	if err := CheckName(conf.Name); err != nil {
		return "", fmt.Errorf("network configuration: name %w", err)
	}
	d := Deletion{conf.Name, r.ContainerID, r.IfName}
	data, err := json.Marshal(d)
	if err != nil {
		return "", fmt.Errorf("encode deletion: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make queue of deletions: %w", err)
	}
	path = QueuePath(dir, d)
	waiting, err := Queued(dir)
	if err != nil {
		return "", err
	}
	if len(waiting) >= MaxQueue && !slices.Contains(waiting, path) {
		return "", ErrQueueFull
	}
	return path, writeDurably(path, data)
}

// QueuePath is the file of a deletion.
func QueuePath(dir string, d Deletion) string {
	sum := sha256.Sum256([]byte(d.Network + "/" + d.ContainerID + "/" + d.IfName))
	return filepath.Join(dir, hex.EncodeToString(sum[:16])+queueSuffix)
}

// writeDurably leaves a whole file under the path or none, also over a crash.
func writeDurably(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), newPrefix+"*")
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

// TidyQueue removes what plugins that were killed did not finish to write.
func TidyQueue(dir string) {
	unfinished, _ := filepath.Glob(filepath.Join(dir, newPrefix+"*")) // what cannot be listed is not removed
	for _, path := range unfinished {
		if info, err := os.Stat(path); err == nil && time.Since(info.ModTime()) > unfinishedLimit {
			_ = os.Remove(path) // the next time
		}
	}
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
