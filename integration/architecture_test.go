package integration

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/gaggle-cni/gaggle"

// A goPackage is what `go list` says of a package.
type goPackage struct {
	ImportPath, Doc        string
	GoFiles, Imports, Deps []string
}

func goList(t *testing.T, args ...string) (packages []goPackage) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json"}, args...)...).Output()
	must(t, err)
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages
		}
		must(t, err)
		packages = append(packages, p)
	}
}

// Each driver is imported by one package, so that replacing it touches that package alone.
func TestDriversHaveOneHome(t *testing.T) {
	homes := map[string][]string{
		"github.com/osrg/gobgp/":            {"bgp/gobgp"},
		"github.com/vishvananda/netlink":    {"node/datapath", "integration/netnstest", "integration/lab", "integration/bench"},
		"go.etcd.io/bbolt":                  {"node/store"},
		"k8s.io/":                           {"node/kube"},
		"go.yaml.in/yaml":                   {"node/nodeconfig"},
		"github.com/containernetworking/":   {"cni"},
		"github.com/prometheus/":            {"node"},
		"google.golang.org/grpc":            {"bgp/gobgp"},
		"google.golang.org/protobuf":        {"bgp/gobgp"},
		"github.com/vishvananda/netns":      {"node/datapath", "integration/netnstest", "integration/lab", "integration/bench"},
		"sigs.k8s.io/":                      {"node/kube"},
		"github.com/go-logr/":               {"node/kube"}, // what client-go logs to
		module + "/node/api/":               {"node/nodeconfig", "node/kube"},
		"log$":                              nil, // log/slog
		"github.com/pkg/errors":             nil,
		"github.com/stretchr/testify":       nil,
		"sigs.k8s.io/controller-runtime":    nil,
		"github.com/spf13/":                 nil,
		module + "/integration/netnstest":   nil, // tests only
		module + "/node/nodetest":           nil, // tests only
		"github.com/google/go-cmp":          nil, // tests only
		"github.com/rogpeppe/go-internal":   nil, // tests only
		"github.com/containernetworking/pl": nil, // programs, not a library
	}
	for _, p := range goList(t, "../...") {
		home := strings.TrimPrefix(p.ImportPath, module+"/")
		for _, imported := range p.Imports {
			for driver, allowed := range homes {
				if (imported+"$" == driver || strings.HasPrefix(imported, driver)) && !slices.Contains(allowed, home) {
					t.Errorf("%s imports %s; only %v may", home, imported, allowed)
				}
			}
		}
	}
}

// What a package must not depend on, however indirectly. A rule names a package and those below it; "anything else" are
// modules of others, golang.org/x/sys apart. B26, B-002.
func TestDependencies(t *testing.T) {
	const anythingElse = "anything else"
	ours := func(names ...string) (paths []string) {
		for _, n := range names {
			paths = append(paths, module+"/"+n)
		}
		return paths
	}
	drivers := []string{"github.com/osrg", "github.com/vishvananda", "go.etcd.io", "k8s.io", "google.golang.org/grpc"}
	adapters := ours("node/store", "node/datapath", "node/kube", "node/nodeconfig", "bgp/gobgp")
	tests := map[string][]string{
		// Each call of a runtime starts this program: it must start fast.
		"cmd/gaggle-cni":  append(ours("node", "bgp", "ipam"), anythingElse, "net/http", "crypto/tls"),
		"cni/wire":        append(ours("node", "bgp", "ipam"), anythingElse, "net/http"),
		"cni":             slices.Concat(ours("node", "bgp", "ipam"), drivers),
		"ipam":            append(ours("node", "bgp", "cni"), anythingElse),
		"bgp":             append(ours("node", "cni", "ipam"), anythingElse),
		"bgp/gobgp":       append(ours("node", "cni", "ipam"), "go.etcd.io", "k8s.io"),
		"node":            slices.Concat(adapters, drivers),
		"node/store":      slices.Concat(adapters, []string{"github.com/osrg", "github.com/vishvananda", "k8s.io"}),
		"node/datapath":   slices.Concat(adapters, []string{"github.com/osrg", "go.etcd.io", "k8s.io"}),
		"node/nodeconfig": slices.Concat(adapters, drivers),
		// No generated clientset: it would bring every type that Kubernetes has.
		"node/kube": append(ours("node/store", "node/datapath", "bgp/gobgp"), "github.com/osrg", "github.com/vishvananda", "go.etcd.io", "k8s.io/client-go/kubernetes"),
	}
	for name, rules := range tests {
		for _, p := range goList(t, "../"+name) {
			for _, dep := range p.Deps {
				domain, _, _ := strings.Cut(dep, "/")
				foreign := strings.Contains(domain, ".") && !strings.HasPrefix(dep, module) && !strings.HasPrefix(dep, "golang.org/x/sys")
				for _, rule := range rules {
					if dep == rule || strings.HasPrefix(dep, rule+"/") || rule == anythingElse && foreign {
						t.Errorf("%s depends on %s", name, dep)
					}
				}
			}
		}
	}
}

// Each package says in one sentence what it is for.
func TestPackageDocs(t *testing.T) {
	for _, p := range goList(t, "../...") {
		if p.Doc == "" && len(p.GoFiles) > 0 {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}

// No module is replaced: what is built is what others review.
func TestNoReplace(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json").Output()
	must(t, err)
	var mod struct{ Replace []any }
	must(t, json.Unmarshal(out, &mod))
	if len(mod.Replace) > 0 {
		t.Errorf("go.mod replaces modules: %v", mod.Replace)
	}
}
