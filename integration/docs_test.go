package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gaggle-cni/gaggle/node"
	"github.com/gaggle-cni/gaggle/node/api/v1alpha1"
	"github.com/gaggle-cni/gaggle/node/nodeconfig"
)

func readText(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", path))
	must(t, err)
	return string(data)
}

// jsonNames returns the names of all fields of a type, however deep.
func jsonNames(typ reflect.Type) (names []string) {
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return jsonNames(typ.Elem())
	case reflect.Struct:
		if !strings.HasPrefix(typ.PkgPath(), module) {
			return nil
		}
		for f := range typ.Fields() {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
				names = append(names, name)
			}
			names = append(names, jsonNames(f.Type)...)
		}
	default: // a leaf
	}
	return names
}

// docs/reference.md names every flag, field, annotation, code and metric.
func TestReferenceIsComplete(t *testing.T) {
	reference := readText(t, "docs/reference.md")
	words := make(map[string]bool)
	for _, w := range regexp.MustCompile(`[A-Za-z0-9_./-]+`).FindAllString(reference, -1) {
		words[w] = true
		for part := range strings.SplitSeq(w, ".") {
			words[part] = true
		}
	}
	need := func(kind string, names ...string) {
		t.Helper()
		for _, name := range names {
			if !words[name] {
				t.Errorf("docs/reference.md does not have %s %q", kind, name)
			}
		}
	}
	need("field", jsonNames(reflect.TypeFor[v1alpha1.NodeConfig]())...)
	need("status", jsonNames(reflect.TypeFor[node.Status]())...)

	program := filepath.Join(bin, "gaggle")
	commands := regexp.MustCompile(`(?m)^  ([a-z]+) `).FindAllStringSubmatch(command(t, program, "help"), -1)
	if len(commands) < 5 {
		t.Fatalf("commands: %v", commands)
	}
	for _, c := range commands {
		need("command", c[1])
		for _, f := range regexp.MustCompile(`(?m)^  (-[a-z-]+) `).FindAllStringSubmatch(command(t, program, c[1], "--help"), -1) {
			need("flag", f[1])
		}
	}
	for _, a := range regexp.MustCompile(`= Domain \+ "([^"]+)"`).FindAllStringSubmatch(readText(t, "node/annotations.go"), -1) {
		need("annotation", node.Domain+a[1])
	}
	for _, c := range regexp.MustCompile(`(?m)^\tCode\w+ +(?:uint )?= (\d+)`).FindAllStringSubmatch(readText(t, "cni/wire/wire.go"), -1) {
		if !strings.Contains(reference, fmt.Sprintf("\n| %s | ", c[1])) {
			t.Errorf("docs/reference.md does not have error code %s", c[1])
		}
	}
	descs := make(chan *prometheus.Desc, 100)
	node.NewMetrics(nil).Describe(descs)
	close(descs)
	for d := range descs {
		need("metric", regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())[1])
	}
}

// Every NodeConfig that is shown is one.
func TestShownConfigurationsAreGood(t *testing.T) {
	texts := map[string]string{"deploy/standalone/node.yaml": readText(t, "deploy/standalone/node.yaml")}
	for _, path := range markdown(t) {
		for i, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(readText(t, path), -1) {
			texts[fmt.Sprintf("%s, block %d", path, i)] = m[1]
		}
	}
	if len(texts) < 2 {
		t.Fatalf("found %d configurations", len(texts))
	}
	for name, text := range texts {
		if _, err := nodeconfig.Parse([]byte(text), nodeconfig.Options{Node: "n", ReadFile: os.ReadFile}); err != nil {
			t.Errorf("%s:\n%v", name, err)
		}
	}
}

// Every relative link leads somewhere.
func TestLinks(t *testing.T) {
	for _, path := range markdown(t) {
		for _, m := range regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`).FindAllStringSubmatch(readText(t, path), -1) {
			if _, err := os.Stat(filepath.Join("..", filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
}

func markdown(t *testing.T) (paths []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		found, err := filepath.Glob(filepath.Join("..", pattern))
		must(t, err)
		for _, f := range found {
			rel, err := filepath.Rel("..", f)
			must(t, err)
			paths = append(paths, rel)
		}
	}
	if len(paths) < 4 {
		t.Fatalf("found %v", paths)
	}
	return paths
}
