package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// files are a program and a text, with modes and times as an umask and a checkout may leave them.
func files(modified time.Time, program fs.FileMode) fstest.MapFS {
	return fstest.MapFS{
		"gaggle":      {Data: []byte("program"), Mode: program, ModTime: modified},
		"doc/LICENSE": {Data: []byte("text"), Mode: 0o640, ModTime: modified},
	}
}

func build(t *testing.T, im image, platforms map[string]fs.FS, order ...string) []byte {
	t.Helper()
	for _, p := range order {
		if err := im.addPlatform(p, platforms[p]); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	if err := im.write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func untar(t *testing.T, r io.Reader) (contents map[string]string, headers []*tar.Header) {
	t.Helper()
	contents = make(map[string]string)
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return contents, headers
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		headers = append(headers, h)
		contents[h.Name] = string(data)
	}
}

func decode(t *testing.T, data string, into any) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
}

// The same files make the same bytes, whenever and under whatever umask they were made.
func TestReproducible(t *testing.T) {
	im := image{name: "localhost/gaggle:1", entrypoint: []string{"/gaggle"}, labels: map[string]string{"b": "2", "a": "1", "c": "3"}}
	one := build(t, im, map[string]fs.FS{"linux/amd64": files(time.Unix(1, 0), 0o755)}, "linux/amd64")
	two := build(t, im, map[string]fs.FS{"linux/amd64": files(time.Unix(2e9, 0), 0o700)}, "linux/amd64")
	if !bytes.Equal(one, two) {
		t.Error("the archives differ")
	}
}

// Every blob has the name of its content, every reference leads to a blob, and each platform's layer holds its files.
func TestLayout(t *testing.T) {
	im := image{name: "localhost:5000/gaggle:v1", entrypoint: []string{"/gaggle"}, command: []string{"node"}}
	archive := build(t, im, map[string]fs.FS{
		"linux/amd64":  files(epoch, 0o755),
		"linux/arm/v7": fstest.MapFS{"gaggle": {Data: []byte("arm"), Mode: 0o755}},
	}, "linux/amd64", "linux/arm/v7")
	got, _ := untar(t, bytes.NewReader(archive))
	for path, data := range got {
		if sum, ok := strings.CutPrefix(path, "blobs/sha256/"); ok && sum != "" && digest([]byte(data)) != "sha256:"+sum {
			t.Errorf("%s has the digest %s", path, digest([]byte(data)))
		}
	}
	var top, list index
	decode(t, got["index.json"], &top)
	want := map[string]string{nameAnnotation: "localhost:5000/gaggle:v1", tagAnnotation: "v1"}
	if diff := cmp.Diff(want, top.Manifests[0].Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	decode(t, got[blobPath(top.Manifests[0].Digest)], &list)
	if len(list.Manifests) != 2 {
		t.Fatalf("got %d platforms, want 2", len(list.Manifests))
	}
	arm := ociPlatform{OS: "linux", Architecture: "arm", Variant: "v7"}
	if got := *list.Manifests[1].Platform; got != arm {
		t.Errorf("platform %v, want %v", got, arm)
	}
	var m manifest
	decode(t, got[blobPath(list.Manifests[0].Digest)], &m)
	var c config
	decode(t, got[blobPath(m.Config.Digest)], &c)
	if diff := cmp.Diff(runtimeConfig{Entrypoint: []string{"/gaggle"}, Cmd: []string{"node"}}, c.Config); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	checkLayer(t, got[blobPath(m.Layers[0].Digest)], c.RootFS.DiffIDs[0])
	var docker []dockerManifest
	decode(t, got["manifest.json"], &docker)
	wantDocker := []dockerManifest{{
		Config: blobPath(m.Config.Digest), RepoTags: []string{"localhost:5000/gaggle:v1"}, Layers: []string{blobPath(m.Layers[0].Digest)},
	}}
	if diff := cmp.Diff(wantDocker, docker); diff != "" {
		t.Errorf("manifest.json (-want +got):\n%s", diff)
	}
}

func checkLayer(t *testing.T, layer, diffID string) {
	t.Helper()
	z, err := gzip.NewReader(strings.NewReader(layer))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if got := digest(plain); got != diffID {
		t.Errorf("layer has the digest %s, want %s", got, diffID)
	}
	contents, headers := untar(t, bytes.NewReader(plain))
	if diff := cmp.Diff(map[string]string{"doc/": "", "doc/LICENSE": "text", "gaggle": "program"}, contents); diff != "" {
		t.Errorf("layer (-want +got):\n%s", diff)
	}
	modes := map[string]int64{"doc/": 0o755, "doc/LICENSE": 0o644, "gaggle": 0o755}
	for _, h := range headers {
		if h.Mode != modes[h.Name] || h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(epoch) {
			t.Errorf("%s: mode %o, owner %d:%d, time %v", h.Name, h.Mode, h.Uid, h.Gid, h.ModTime)
		}
	}
}

func TestRun(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "gaggle"), []byte("program"), 0o755); err != nil {
		t.Fatal(err)
	}
	empty, out := t.TempDir(), filepath.Join(t.TempDir(), "image.tar")
	for name, test := range map[string]struct {
		args []string
		want string // in the error; none if empty
	}{
		"good":        {[]string{"-o=" + out, "-name=localhost/gaggle:1", "-label=a=b", "linux/amd64=" + dir}, ""},
		"no platform": {[]string{"-o=" + out, "-name=localhost/gaggle:1"}, "at least one PLATFORM=DIR"},
		"no dir":      {[]string{"-o=" + out, "-name=x:1", "linux/amd64"}, "want PLATFORM=DIR"},
		"platform":    {[]string{"-o=" + out, "-name=x:1", "amd64=" + dir}, "want OS/ARCHITECTURE"},
		"label":       {[]string{"-label=a"}, "want KEY=VALUE"},
		"empty":       {[]string{"-o=" + out, "-name=x:1", "linux/amd64=" + empty}, "there are none"},
		"not there":   {[]string{"-o=" + out, "-name=x:1", "linux/amd64=" + empty + "/x"}, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			_ = os.Remove(out)
			err := run(test.args, io.Discard)
			if test.want == "" {
				if err != nil {
					t.Errorf("run() = %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("run() = %v, want %q", err, test.want)
			}
			if _, err := os.Stat(out); err == nil {
				t.Error("there is an archive all the same")
			}
		})
	}
}
