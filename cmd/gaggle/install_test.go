package main

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// readyPlugin works, and notes at each STATUS whether the conflist is there already.
const readyPlugin = `#!/bin/sh
dir=$(dirname "$0")
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}';;
STATUS) if [ -e "$dir/../net.d/10-gaggle.conflist" ]; then echo there; else echo absent; fi >> "$dir/../seen";;
esac
`

// newInstaller installs into directories of the test's.
func newInstaller(t *testing.T) (i *installer, dir string) {
	t.Helper()
	dir = t.TempDir()
	plugin := filepath.Join(dir, "plugin")
	if err := os.WriteFile(plugin, []byte(readyPlugin), 0o755); err != nil {
		t.Fatal(err)
	}
	i = &installer{}
	i.register(&cmdline{flags: flag.NewFlagSet("install", flag.ContinueOnError), stdout: io.Discard, stderr: io.Discard})
	i.plugin, i.binDir, i.confDir, i.runDir = plugin, filepath.Join(dir, "bin"), filepath.Join(dir, "net.d"), filepath.Join(dir, "run")
	return i, dir
}

// H01, B-010: when the conflist appears, the plugin is there and works.
func TestInstallOrder(t *testing.T) {
	i, dir := newInstaller(t)
	for range 2 {
		if err := i.install(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	seen, err := os.ReadFile(filepath.Join(dir, "seen"))
	if want := "absent\nthere\n"; err != nil || string(seen) != want {
		t.Errorf("at each STATUS through the installed plugin the conflist was %q, %v; want %q", seen, err, want)
	}
}

// H07, H08, B-013, B-134: whatever becomes of the files or of their directories, the next look, which --watch takes every few
// seconds, has them back.
func TestInstallRestores(t *testing.T) {
	i, dir := newInstaller(t)
	if err := i.install(t.Context()); err != nil {
		t.Fatal(err)
	}
	plugin, conflist := filepath.Join(i.binDir, "gaggle"), filepath.Join(i.confDir, i.name)
	want := map[string][]byte{}
	for _, path := range []string{plugin, conflist} {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want[path] = data
	}
	aside := filepath.Join(dir, "aside")
	for _, tt := range []struct {
		name string
		harm func() error
	}{
		{"plugin removed", func() error { return os.Remove(plugin) }},
		{"conflist removed", func() error { return os.Remove(conflist) }},
		{"conflist changed", func() error { return os.WriteFile(conflist, []byte("{}"), 0o600) }},
		{"conflist cut off", func() error { return os.Truncate(conflist, 7) }},
		{"plugin cut off", func() error { return os.Truncate(plugin, 7) }},
		{"plugin not executable", func() error { return os.Chmod(plugin, 0o644) }},
		{"plugin set-uid", func() error { return os.Chmod(plugin, 0o755|os.ModeSetuid) }},
		{"plugins' directory emptied", func() error {
			if err := os.RemoveAll(i.binDir); err != nil {
				return err
			}
			return os.Mkdir(i.binDir, 0o755)
		}},
		{"directories removed", func() error {
			if err := os.RemoveAll(i.binDir); err != nil {
				return err
			}
			return os.RemoveAll(i.confDir)
		}},
		{"directory moved away and made anew", func() error {
			if err := os.Rename(i.confDir, aside); err != nil {
				return err
			}
			return os.Mkdir(i.confDir, 0o755)
		}},
		{"directory replaced by a link", func() error {
			if err := os.RemoveAll(i.confDir); err != nil {
				return err
			}
			if err := os.RemoveAll(aside); err != nil {
				return err
			}
			if err := os.Mkdir(aside, 0o755); err != nil {
				return err
			}
			return os.Symlink(aside, i.confDir)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.harm(); err != nil {
				t.Fatal(err)
			}
			if err := i.install(t.Context()); err != nil {
				t.Fatal(err)
			}
			for path, mode := range map[string]os.FileMode{plugin: 0o755, conflist: 0o600} {
				info, err := os.Lstat(path)
				if err != nil || info.Mode() != mode {
					t.Fatalf("%s: %v, %v; want mode %v", path, info, err, mode)
				}
				if data, err := os.ReadFile(path); err != nil || !bytes.Equal(data, want[path]) {
					t.Errorf("%s holds %q, %v", path, data, err)
				}
			}
		})
	}
}

// H02, B-044, B-045: what a runtime that watches the directory is told: a file of another name appears, and is renamed within
// the directory. Nothing is ever written under the name that counts.
func TestReplaceFileIsSeen(t *testing.T) {
	dir := t.TempDir()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_ALL_EVENTS); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"one", "two", "two"} {
		if _, err := replaceFile(filepath.Join(dir, "10-gaggle.conflist"), []byte(text), 0o600, nil); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, e := range inotifyEvents(t, fd) {
		name := e.name
		if strings.HasPrefix(name, ".10-gaggle.conflist.new-") {
			name = "another name"
		}
		for mask, what := range map[uint32]string{
			unix.IN_CREATE: "create", unix.IN_MODIFY: "write", unix.IN_MOVED_FROM: "rename from", unix.IN_MOVED_TO: "rename to", unix.IN_DELETE: "remove",
		} {
			if e.mask&mask != 0 {
				got = append(got, what+" "+name)
			}
		}
	}
	once := []string{"create another name", "write another name", "rename from another name", "rename to 10-gaggle.conflist"}
	if want := slices.Concat(once, once); !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
}

type inotifyEvent struct {
	mask uint32
	name string
}

func inotifyEvents(t *testing.T, fd int) (events []inotifyEvent) {
	t.Helper()
	buf := make([]byte, 64<<10)
	n, err := unix.Read(fd, buf)
	if err != nil {
		t.Fatal(err)
	}
	for buf = buf[:n]; len(buf) > 0; {
		raw := (*unix.InotifyEvent)(unsafe.Pointer(&buf[0]))
		name := buf[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+raw.Len]
		events = append(events, inotifyEvent{raw.Mask, string(bytes.TrimRight(name, "\x00"))})
		buf = buf[unix.SizeofInotifyEvent+raw.Len:]
	}
	return events
}
