package main

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// H01, H02, H03, H11: a file is whole at every moment, has just the mode that is wanted, and is not touched if it is right.
func TestReplaceFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	path := filepath.Join(dir, "f")
	put := func(text string, mode os.FileMode, want bool) os.FileInfo {
		t.Helper()
		changed, err := replaceFile(path, []byte(text), mode, nil)
		if err != nil || changed != want {
			t.Errorf("replaceFile = %v, %v; want %v", changed, err, want)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode() != mode {
			t.Fatalf("%v, %v; want mode %v", info.Mode(), err, mode)
		}
		if data, err := os.ReadFile(path); err != nil || string(data) != text {
			t.Errorf("holds %q, %v; want %q", data, err, text)
		}
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 1 {
			t.Errorf("left %v, %v", entries, err)
		}
		return info
	}
	first := put("one", 0o600, true)
	if again := put("one", 0o600, false); !os.SameFile(first, again) || !again.ModTime().Equal(first.ModTime()) {
		t.Error("what was right was written anew")
	}
	if second := put("two", 0o600, true); os.SameFile(first, second) {
		t.Error("the file was changed in place")
	}
	put("two", 0o755, true)
	if err := os.Chmod(path, 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	put("two", 0o755, true)

	// A link is replaced, not followed.
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte("two"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, path); err != nil {
		t.Fatal(err)
	}
	put("three", 0o755, true)
	if data, err := os.ReadFile(other); err != nil || string(data) != "two" {
		t.Errorf("the link's target holds %q, %v", data, err)
	}
}

// B-044: a reader finds one content or the other, at every moment.
func TestReplaceFileIsNeverHalf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	contents := [][]byte{bytes.Repeat([]byte("a"), 1<<20), bytes.Repeat([]byte("b"), 1<<20)}
	if _, err := replaceFile(path, contents[0], 0o600, nil); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			data, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(data, contents[0]) && !bytes.Equal(data, contents[1]) {
				t.Errorf("a reader finds %d bytes, %v", len(data), err)
				return
			}
		}
	})
	for i, end := 0, time.Now().Add(time.Second); time.Now().Before(end); i++ {
		if _, err := replaceFile(path, contents[i%2], 0o600, nil); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	reader.Wait()
}
