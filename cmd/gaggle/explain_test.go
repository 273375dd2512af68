package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is said of an identity and what is said of one of its addresses agree, without a node process.
func TestExplain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node.yaml")
	config := `apiVersion: gaggle.dev/v1alpha1
kind: NodeConfig
spec:
  pools: [{name: six, cidr: "2001:db8:44:1::/64"}, {name: four, cidr: 10.1.0.0/24}]
  defaults: {ipAlgo: "namespace,app"}
  bgp: {asn: 64512, peers: [{name: tor, address: 192.0.2.1, asn: 64500, password: {file: /nowhere}}]}
`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	explain := func(args ...string) (code int, stdout, stderr string) {
		var out, errs strings.Builder
		code = run(t.Context(), append([]string{"explain", "--config", file}, args...), func(string) (string, bool) { return "", false }, &out, &errs)
		return code, out.String(), errs.String()
	}
	reference, err := os.ReadFile("../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(reference), "$ gaggle explain --config node.yaml ")
	args, example, _ := strings.Cut(example, "\n")
	example, _, _ = strings.Cut(example, "```")
	example = strings.ReplaceAll(example, "pods6", "six  ")
	if code, out, errs := explain(strings.Fields(args)...); strings.Join(strings.Fields(out), " ") != strings.Join(strings.Fields(example), " ") {
		t.Errorf("the example of the reference gives %d, %q, %q", code, out, errs)
	}
	code, out, errs := explain("--namespace", "shop", "--app", "web")
	if code != 0 || !strings.Contains(out, "six") || !strings.Contains(out, " shop\n") || !strings.Contains(out, " web\n") {
		t.Fatalf("explain = %d, %q, %q", code, out, errs)
	}
	_, rest, _ := strings.Cut(out, "Prefix")
	prefix, _, _ := strings.Cut(strings.TrimSpace(rest), "::/96\n")
	for _, tt := range []struct {
		args string
		code int
		want string
	}{
		{prefix + ":1234:5678 --namespace shop --app web", 0, " shop\n"},
		{prefix + ":1234:5678 --namespace other --app web", 0, " web\n"},
		{"--ip-algo namespace/8 " + prefix + ":1234:5678 --namespace shop", 0, "namespace/8"},
		{"10.1.0.9", 0, "four"},
		{prefix + ":1234:5678 -o json", 0, `"field": "namespace/16"`},
		{"192.0.2.9", 1, "of no pool"},
		{"shop/web", 1, "neither an address nor a pod"},
		{"", 2, "name an address, a pod"},
		{"--namespace shop", 2, "the pod's app is not known"},
		{"--namespace shop --ip-algo x", 2, "want fields of"},
		{"10.1.0.9 10.1.0.8", 2, `unexpected argument "10.1.0.8"`},
		{"10.1.0.9 -o xml", 2, "want text or json"},
		{prefix + ":1234:5678 --ip-algo namespace/60", 2, "8 are for the instance"},
		{"--help", 0, "Usage: gaggle explain [ADDRESS | NAMESPACE/POD] [FLAGS]"},
	} {
		code, out, errs := explain(strings.Fields(tt.args)...)
		if code != tt.code || !strings.Contains(out+errs, tt.want) {
			t.Errorf("explain %s = %d, %q, %q, want %d with %q", tt.args, code, out, errs, tt.code, tt.want)
		}
	}
}
