package deploy

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write the plain manifest")

const head = `# Made of deploy/helm/gaggle by go test ./deploy -update. Do not edit.
---
apiVersion: v1
kind: Namespace
metadata:
  name: gaggle-system
  labels: {pod-security.kubernetes.io/enforce: privileged} # the host's network and directories
`

// helm runs the chart through the real thing, which .ci/helm.mod names; it is no dependency of ours.
func helm(t *testing.T, args ...string) string {
	t.Helper()
	args = append([]string{"tool", "-modfile=.ci/helm.mod", "helm"}, args...)
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = ".."
	var out, trouble bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &trouble
	if err := cmd.Run(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, trouble.String())
	}
	return out.String()
}

func template(t *testing.T, args ...string) string {
	t.Helper()
	args = append([]string{"template", "gaggle", "deploy/helm/gaggle", "--namespace", "gaggle-system", "--include-crds", "--kube-version=1.36.0"}, args...)
	return helm(t, args...)
}

type object = map[string]any

// objects reads a manifest by kind; there is one object of each.
func objects(t *testing.T, text string) map[string]object {
	t.Helper()
	all := make(map[string]object)
	for dec := yaml.NewDecoder(strings.NewReader(text)); ; {
		var obj object
		switch err := dec.Decode(&obj); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatal(err)
		case obj != nil:
			kind, _ := obj["kind"].(string)
			if all[kind] != nil {
				t.Fatalf("two objects of kind %s", kind)
			}
			all[kind] = obj
		}
	}
}

// The plain manifest has the same objects as the chart with its defaults, and their namespace.
func TestManifestIsTheChart(t *testing.T) {
	text := head + template(t)
	if *update {
		if err := os.WriteFile("gaggle.yaml", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile("gaggle.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(objects(t, text), objects(t, string(data))); diff != "" {
		t.Errorf("gaggle.yaml is stale: go test ./deploy -update (-chart +gaggle.yaml):\n%s", diff)
	}
}

// The manifest gives away no right and no privilege beyond those that are argued for.
func TestPrivileges(t *testing.T) {
	data, err := os.ReadFile("gaggle.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for _, word := range []string{"privileged: true", "hostPID", "NET_RAW", "SYS_PTRACE", "DAC_OVERRIDE", "verbs: [\"*\"]", "hostIPC", "'*'", "\"*\""} {
		if strings.Contains(text, word) {
			t.Errorf("gaggle.yaml has %s", word)
		}
	}
	writes := 0
	for _, rule := range objects(t, text)["ClusterRole"]["rules"].([]any) {
		for _, verb := range rule.(object)["verbs"].([]any) {
			if slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, verb.(string)) {
				writes++
			}
		}
	}
	if writes != 3 {
		t.Errorf("%d rights to write, want 3: events create and patch, nodes/status patch", writes)
	}
	if n := strings.Count(text, "readOnlyRootFilesystem: true"); n != 2 {
		t.Errorf("%d containers with a read-only root file system, want 2", n)
	}
}

// Values change what they say, and bad ones are refused.
func TestValues(t *testing.T) {
	tests := []struct{ name, set, want string }{
		{"API server", "apiServer.host=192.0.2.1,apiServer.port=6443", `{name: KUBERNETES_SERVICE_PORT, value: "6443"}`},
		{"digest", "image.digest=sha256:" + strings.Repeat("a", 64), "gaggle@sha256:aaaa"},
		{"selectors", "rbac.namespaceSelectors=true", "resources: [namespaces], verbs: [list, watch]"},
		{"secrets", "rbac.secretNames={tor-a}", `resourceNames: ["tor-a"]`},
		{"metrics for all", "metrics.host=::", `value: "[::]:9471"`},
		{"probe of metrics for all", "metrics.host=::", `host: "127.0.0.1"`},
		{"run directory", "runDir=/run/other", "mountPath: /run/other"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := template(t, "--set", tt.set); !strings.Contains(got, tt.want) {
				t.Errorf("--set %s: no %s in\n%s", tt.set, tt.want, got)
			}
		})
	}
	for _, set := range []string{"colour=red", "metrics.port=0", "log.level=loud", "runDir=run", "image.digest=md5:1"} {
		cmd := exec.CommandContext(t.Context(), "go", "tool", "-modfile=.ci/helm.mod", "helm", "template", "gaggle", "deploy/helm/gaggle", "--kube-version=1.36.0", "--set", set)
		cmd.Dir = ".."
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "values.schema.json") && !strings.Contains(string(out), "meet the specifications") {
			t.Errorf("--set %s: %v\n%s", set, err, out)
		}
	}
}

// The chart has the definition that is made of the Go types, not a copy.
func TestChartHasTheDefinition(t *testing.T) {
	target, err := filepath.EvalSymlinks("helm/gaggle/crds/gaggle.dev_nodeconfigs.yaml")
	if err != nil || target != filepath.Join("crd", "gaggle.dev_nodeconfigs.yaml") {
		t.Errorf("%s, %v", target, err)
	}
}
