package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func deletion(id string) Request {
	return Request{
		Protocol: Version, Command: "DEL", ContainerID: id, IfName: "eth0", Netns: "/n", Args: "K8S_POD_NAME=p;IgnoreUnknown=1",
		Config: json.RawMessage(`{"cniVersion":"0.4.0","name":"net","type":"gaggle","prevResult":{"ips":[]},"secret":"x"}`),
	}
}

func TestEnqueue(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run", QueueDir) // no node process has ever run
	for _, id := range []string{"a", "b", "a"} {
		path, err := Enqueue(dir, deletion(id))
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var d Deletion
		if err := json.Unmarshal(data, &d); err != nil {
			t.Fatal(err)
		}
		if want := (Deletion{"net", id, "eth0"}); d != want || strings.Contains(string(data), "secret") {
			t.Errorf("kept %s, want %+v alone", data, want)
		}
	}
	paths, err := Queued(dir)
	if err != nil || len(paths) != 2 {
		t.Errorf("Queued() = %v, %v; want two", paths, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("the queue holds %v, %v; want nothing else", entries, err)
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, paths[0]: 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("mode of %s: %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
}

func TestQueueOfNobody(t *testing.T) {
	if paths, err := Queued(filepath.Join(t.TempDir(), "none")); err != nil || len(paths) != 0 {
		t.Errorf("Queued() = %v, %v; want nothing", paths, err)
	}
}

// The queue has a bound, and says when it is reached. Nothing that waits is lost for it.
func TestQueueIsBounded(t *testing.T) {
	dir := t.TempDir()
	for i := range MaxQueue {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d%s", i, queueSuffix)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Enqueue(dir, deletion("a")); !errors.Is(err, ErrQueueFull) {
		t.Errorf("Enqueue() = %v, want %v", err, ErrQueueFull)
	}
	// What waits already may be said again.
	if err := os.Remove(filepath.Join(dir, "0"+queueSuffix)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := Enqueue(dir, deletion("a")); err != nil {
			t.Error(err)
		}
	}
	if paths, err := Queued(dir); err != nil || len(paths) != MaxQueue {
		t.Errorf("%d wait, %v; want %d", len(paths), err, MaxQueue)
	}
}

func TestEnqueueRefuses(t *testing.T) {
	dir := t.TempDir()
	for _, config := range []string{``, `{`, `{"cniVersion":"1.0.0"}`, `{"name":"../x"}`, `{"name":5}`} {
		r := deletion("a")
		r.Config = json.RawMessage(config)
		if _, err := Enqueue(dir, r); err == nil || !strings.Contains(err.Error(), "network configuration") {
			t.Errorf("Enqueue of %q = %v, want what is wrong with the configuration", config, err)
		}
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Enqueue(file, deletion("a")); err == nil {
		t.Error("Enqueue into a file succeeded")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left %v, %v", entries, err)
	}
}
