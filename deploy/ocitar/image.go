package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"
)

// Media types of the OCI image specification, version 1.1.
const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// Annotations by which containerd and others find out how an image is called.
const (
	nameAnnotation = "io.containerd.image.name"
	tagAnnotation  = "org.opencontainers.image.ref.name"
)

// epoch is the time of everything in an image, so that the time of its making is not in it.
var epoch = time.Unix(0, 0).UTC()

// An image is one name for the same programs on several platforms.
type image struct {
	name                string
	entrypoint, command []string
	labels              map[string]string
	platforms           []platform
}

// A platform is a part of an image.
type platform struct {
	os, arch, variant string
	layer             []byte // compressed
	diffID            string // digest of the layer before it was compressed
}

// A descriptor refers to a blob.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *ociPlatform      `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type ociPlatform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Variant      string `json:"variant,omitempty"`
}

type config struct {
	ociPlatform
	Created string        `json:"created"`
	Config  runtimeConfig `json:"config"`
	RootFS  rootFS        `json:"rootfs"`
}

type runtimeConfig struct {
	Entrypoint []string          `json:"Entrypoint,omitempty"`
	Cmd        []string          `json:"Cmd,omitempty"`
	Labels     map[string]string `json:"Labels,omitempty"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

// dockerManifest is how `docker save` describes an image.
type dockerManifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func (im *image) addLabel(text string) error {
	key, value, ok := strings.Cut(text, "=")
	if !ok || key == "" {
		return fmt.Errorf("want KEY=VALUE")
	}
	if im.labels == nil {
		im.labels = make(map[string]string)
	}
	im.labels[key] = value
	return nil
}

// addPlatform takes the files of one platform, such as linux/arm64 or linux/arm/v7.
func (im *image) addPlatform(name string, files fs.FS) error {
	parts := strings.Split(name, "/")
	if len(parts) != 2 && len(parts) != 3 || slices.Contains(parts, "") {
		return fmt.Errorf("platform %q: want OS/ARCHITECTURE", name)
	}
	p := platform{os: parts[0], arch: parts[1], variant: strings.Join(parts[2:], "")}
	var plain bytes.Buffer
	if err := writeLayer(&plain, files); err != nil {
		return fmt.Errorf("files for %s: %w", name, err)
	}
	p.diffID = digest(plain.Bytes())
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(plain.Bytes()); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	p.layer = packed.Bytes()
	im.platforms = append(im.platforms, p)
	return nil
}

// writeLayer writes the files, in the order of their names, as root's and without a time.
func writeLayer(w io.Writer, files fs.FS) error {
	t := tar.NewWriter(w)
	count := 0
	err := fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		header := tar.Header{Name: path, Typeflag: tar.TypeReg, Mode: 0o644, ModTime: epoch, Format: tar.FormatUSTAR}
		if d.IsDir() {
			header.Name, header.Typeflag, header.Mode = path+"/", tar.TypeDir, 0o755
			return t.WriteHeader(&header)
		}
		count++
		return writeLayerFile(t, files, path, header)
	})
	if err != nil {
		return err
	}
	if count == 0 {
		return fmt.Errorf("there are none")
	}
	return t.Close()
}

func writeLayerFile(t *tar.Writer, files fs.FS, path string, header tar.Header) error {
	info, err := fs.Stat(files, path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s: want files and directories only", path)
	}
	// Whether it can be executed is what matters; the rest of the mode depends on the umask.
	if info.Mode()&0o111 != 0 {
		header.Mode = 0o755
	}
	data, err := fs.ReadFile(files, path)
	if err != nil {
		return err
	}
	header.Size = int64(len(data))
	if err := t.WriteHeader(&header); err != nil {
		return err
	}
	_, err = t.Write(data)
	return err
}

// write writes the archive.
func (im *image) write(w io.Writer) error {
	a := archive{files: make(map[string][]byte)}
	list := index{SchemaVersion: 2, MediaType: indexType}
	var docker []dockerManifest
	for _, p := range im.platforms {
		d, m := a.addPlatform(im, p)
		list.Manifests = append(list.Manifests, d)
		if docker == nil { // it knows no platforms
			docker = []dockerManifest{{
				Config: blobPath(m.Config.Digest), RepoTags: []string{im.name}, Layers: []string{blobPath(m.Layers[0].Digest)},
			}}
		}
	}
	top := a.addJSON(indexType, list)
	_, tag, _ := strings.Cut(im.name[strings.LastIndex(im.name, "/")+1:], ":")
	top.Annotations = map[string]string{nameAnnotation: im.name, tagAnnotation: tag}
	a.files["index.json"] = encode(index{SchemaVersion: 2, MediaType: indexType, Manifests: []descriptor{top}})
	a.files["manifest.json"] = encode(docker)
	a.files["oci-layout"] = []byte(`{"imageLayoutVersion":"1.0.0"}`)
	return a.write(w)
}

// An archive is the files of an image layout by their paths.
type archive struct{ files map[string][]byte }

func (a *archive) addPlatform(im *image, p platform) (descriptor, manifest) {
	about := ociPlatform{Architecture: p.arch, OS: p.os, Variant: p.variant}
	m := manifest{SchemaVersion: 2, MediaType: manifestType}
	m.Config = a.addJSON(configType, config{
		ociPlatform: about, Created: epoch.Format(time.RFC3339),
		Config: runtimeConfig{Entrypoint: im.entrypoint, Cmd: im.command, Labels: im.labels},
		RootFS: rootFS{Type: "layers", DiffIDs: []string{p.diffID}},
	})
	m.Layers = []descriptor{a.add(layerType, p.layer)}
	d := a.addJSON(manifestType, m)
	d.Platform = &about
	return d, m
}

func (a *archive) add(mediaType string, data []byte) descriptor {
	d := descriptor{MediaType: mediaType, Digest: digest(data), Size: len(data)}
	a.files[blobPath(d.Digest)] = data
	return d
}

func (a *archive) addJSON(mediaType string, v any) descriptor { return a.add(mediaType, encode(v)) }

func (a *archive) write(w io.Writer) error {
	t := tar.NewWriter(w)
	for _, dir := range []string{"blobs/", "blobs/sha256/"} {
		if err := t.WriteHeader(&tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755, ModTime: epoch, Format: tar.FormatUSTAR}); err != nil {
			return err
		}
	}
	for _, path := range slices.Sorted(maps.Keys(a.files)) {
		data := a.files[path]
		header := tar.Header{Name: path, Size: int64(len(data)), Mode: 0o644, ModTime: epoch, Format: tar.FormatUSTAR}
		if err := t.WriteHeader(&header); err != nil {
			return err
		}
		if _, err := t.Write(data); err != nil {
			return err
		}
	}
	return t.Close()
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func blobPath(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }

// encode returns the JSON of one of the types above, which all have one.
func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic("ocitar: " + err.Error())
	}
	return data
}
