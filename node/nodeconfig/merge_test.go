package nodeconfig

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/node"
	"github.com/gaggle-cni/gaggle/node/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files")

// doc returns a NodeConfig with this spec.
func doc(name, spec string) string {
	return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: %s}\nspec:\n  %s\n", v1alpha1.APIVersion, v1alpha1.Kind, name, spec)
}

func read(t *testing.T, name, spec string) Document {
	t.Helper()
	d, err := Read([]byte(doc(name, spec)))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func names(docs []Document) (names []string) {
	for _, d := range docs {
		names = append(names, d.Name)
	}
	return names
}

func TestSelect(t *testing.T) {
	docs := []Document{
		read(t, "all", "priority: 0"),
		read(t, "b", `{priority: 5, nodeSelector: {matchLabels: {rack: "1"}}}`),
		read(t, "a", `{priority: 5, nodeSelector: {matchExpressions: [{key: rack, operator: In, values: ["1", "2"]}]}}`),
		read(t, "low", "priority: -1"),
		read(t, "edge", "{priority: 9, nodeSelector: {matchExpressions: [{key: edge, operator: Exists}]}}"),
		read(t, "not-edge", "{priority: 8, nodeSelector: {matchExpressions: [{key: edge, operator: DoesNotExist}]}}"),
		read(t, "not-2", `{priority: 7, nodeSelector: {matchExpressions: [{key: rack, operator: NotIn, values: ["2"]}]}}`),
		read(t, "nobody", `{nodeSelector: {matchLabels: {rack: "1"}, matchExpressions: [{key: rack, operator: NotIn, values: ["1"]}]}}`),
		read(t, "empty", "nodeSelector: {}"),
	}
	tests := []struct {
		name   string
		labels map[string]string
		want   []string
	}{
		{"no labels", nil, []string{"not-edge", "not-2", "all", "empty", "low"}},
		{"a label", map[string]string{"rack": "1"}, []string{"not-edge", "not-2", "a", "b", "all", "empty", "low"}},
		{"another value", map[string]string{"rack": "2"}, []string{"not-edge", "a", "all", "empty", "low"}},
		{"an empty value", map[string]string{"edge": "", "rack": ""}, []string{"edge", "not-2", "all", "empty", "low"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, names(Select(docs, tt.labels))); diff != "" {
				t.Errorf("Select() (-want +got):\n%s", diff)
			}
		})
	}
}

// Each directory in testdata/merge has documents, in the order in which they count, and what comes of them.
func TestMerge(t *testing.T) {
	dirs, err := filepath.Glob("testdata/merge/*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no test data: %v", err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			files, _ := filepath.Glob(dir + "/*.yaml")
			var docs []Document
			for _, file := range files {
				data, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				d, err := Read(data)
				if err != nil {
					t.Fatalf("%s: %v", file, err)
				}
				docs = append(docs, d)
			}
			m := Merge(Select(docs, nil))
			var got strings.Builder
			got.Write(m.Text())
			origins := m.Origins()
			for _, path := range slices.Sorted(maps.Keys(origins)) {
				fmt.Fprintf(&got, "# %s: %s\n", path, origins[path])
			}
			golden(t, dir+"/merged.golden", got.String())
		})
	}
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// The effective document is a document: parsing its text gives the same configuration.
func TestMergedTextIsTheDocument(t *testing.T) {
	m := Merge([]Document{read(t, "one", `defaults: {ipAlgo: "namespace", mtu: 1400}`), read(t, "two", strings.ReplaceAll(`
  pools: [{name: "1", cidr: "2001:db8::/64"}]
  defaults: {ipAlgo: "app", coolDown: 90s}
  bgp: {asn: 64512, peers: [{name: "true", address: 192.0.2.1, asn: 64500, holdTime: 9s}]}`, "\n", "\n"))})
	want, err := m.Convert(testOptions())
	if err != nil {
		t.Fatal(err)
	}
	got, err := Resolve(m.Text(), testOptions())
	if err != nil {
		t.Fatalf("%v in\n%s", err, m.Text())
	}
	if diff := cmp.Diff(want, got, cmpNetip...); diff != "" {
		t.Errorf("(-want +got):\n%s\n%s", diff, m.Text())
	}
}

// The API server's own metadata is no mistake, nor is JSON.
func TestReadFromTheAPI(t *testing.T) {
	d, err := Read([]byte(`{"apiVersion":"gaggle.dev/v1alpha1","kind":"NodeConfig","metadata":{"name":"a","uid":"1","generation":2,
		"managedFields":[{"manager":"kubectl","fieldsV1":{"f:spec":{}}}],"creationTimestamp":"2026-01-01T00:00:00Z"},"spec":{"priority":3}}`))
	if err != nil || d.Name != "a" || d.Priority != 3 {
		t.Errorf("Read() = %+v, %v", d, err)
	}
}

func TestReadRefuses(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"other kind", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", "NodeConfig a: kind:"},
		{"no name", doc(`""`, "priority: 1"), "metadata.name: is missing"},
		{"bad selector", doc("a", "nodeSelector: {matchExpressions: [{key: a, operator: is, values: [b]}]}"), "NodeConfig a: spec.nodeSelector.matchExpressions[0].operator"},
		{"selector without values", doc("a", "nodeSelector: {matchExpressions: [{key: a, operator: In}]}"), "needs values"},
		{"selector with values", doc("a", "nodeSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}"), "takes no values"},
		{"selector without key", doc("a", "nodeSelector: {matchExpressions: [{operator: Exists}]}"), "is missing"},
		{"unknown key of the selector", doc("a", "nodeSelector: {matchLabel: {a: b}}"), "spec.nodeSelector.matchLabel: unknown"},
		{"bad priority", doc("a", "priority: high"), "spec.priority"},
		{"endless", doc("a", "bgp: &b {peers: [*b]}"), "values"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Read([]byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Read() = %v, want …%s…", err, tt.want)
			}
		})
	}
}

// A problem names the document, and the path in it, not that in the effective one.
func TestProblemsNameTheirDocument(t *testing.T) {
	m := Merge([]Document{
		read(t, "high", "bgp: {peers: [{name: b, address: 192.0.2.2, asn: 64500}]}"),
		read(t, "low", "{pools: [{name: p, cidr: 10.0.0.0/24}], colour: red, bgp: {asn: 64512, peers: [{name: a, asn: 64500, holdTime: 1s}, {name: b, holdTime: 2s}]}}"),
	})
	_, err := m.Convert(testOptions())
	want := []string{
		"NodeConfig low: spec.bgp.peers[0].address: is missing; want the router's address",
		"NodeConfig low: spec.bgp.peers[0].holdTime: 1s: want 3s to 18h12m15s",
		"NodeConfig low: spec.bgp.peers[1].holdTime: 2s: want 3s to 18h12m15s",
		"NodeConfig low: spec.colour: unknown; known here: bgp, defaults, grants, nodeSelector, pools, priority, serviceCIDRs",
	}
	if err == nil {
		t.Fatal("no error")
	}
	got := strings.Split(err.Error(), "\n")
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func clusterOptions(c Cluster) Options {
	o := testOptions()
	o.Cluster = &c
	return o
}

var podCIDRs = []netip.Prefix{netip.MustParsePrefix("2001:db8:1::/64"), netip.MustParsePrefix("10.1.0.0/24")}

func TestPoolsOfTheCluster(t *testing.T) {
	six, four := node.Pool{Name: "pods", Prefix: podCIDRs[0]}, node.Pool{Name: "pods", Prefix: podCIDRs[1]}
	tests := []struct {
		name, spec string
		want       []node.Pool
	}{
		{"by default", "priority: 1", []node.Pool{six, four}},
		{"empty list", "pools: []", []node.Pool{six, four}},
		{"named", "pools: [{name: pods, source: PodCIDRs}]", []node.Pool{six, four}},
		{"neither source nor cidr", "pools: [{name: pods}]", []node.Pool{six, four}},
		{
			"beside another", "pools: [{name: pods}, {name: dmz, cidr: 10.9.0.0/24}]",
			[]node.Pool{six, four, {Name: "dmz", Prefix: netip.MustParsePrefix("10.9.0.0/24")}},
		},
		{
			"reserved, on this node and on another", "pools: [{name: pods, reserved: [10.1.0.5, 10.2.0.5]}]",
			[]node.Pool{six, {Name: "pods", Prefix: podCIDRs[1], Reserved: []netip.Prefix{netip.MustParsePrefix("10.1.0.5/32")}}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := Merge([]Document{read(t, "a", tt.spec)}).Convert(clusterOptions(Cluster{PodCIDRs: podCIDRs}))
			if err != nil {
				t.Fatal(err)
			}
			for i := range r.Config.Pools {
				if len(r.Config.Pools[i].Reserved) == 0 {
					r.Config.Pools[i].Reserved = nil
				}
			}
			if diff := cmp.Diff(tt.want, r.Config.Pools, cmpNetip...); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Without any document a node of a cluster has the cluster's pools and no BGP.
func TestNoDocument(t *testing.T) {
	r, err := Merge(nil).Convert(clusterOptions(Cluster{PodCIDRs: podCIDRs}))
	if err != nil || len(r.Config.Pools) != 2 || r.Config.BGP != nil {
		t.Errorf("Convert() = %+v, %v", r, err)
	}
}

func TestPodCIDRsThatAreNotThere(t *testing.T) {
	for _, spec := range []string{"priority: 1", "pools: [{name: a, cidr: 10.9.0.0/24}, {name: pods}]"} {
		if _, err := Merge([]Document{read(t, "a", spec)}).Convert(clusterOptions(Cluster{})); !errors.Is(err, ErrNoPodCIDRs) {
			t.Errorf("%s: Convert() = %v, want ErrNoPodCIDRs", spec, err)
		}
	}
	if _, err := Merge([]Document{read(t, "a", "pools: [{name: a, cidr: 10.9.0.0/24}]")}).Convert(clusterOptions(Cluster{})); err != nil {
		t.Errorf("no pool of the cluster's: %v", err)
	}
}

// What is wrong in the cluster only, besides [mistakes].
func TestClusterProblems(t *testing.T) {
	tests := []struct{ name, spec, want string }{
		{"source", "pools: [{name: a, source: NodeCIDRs}]", `spec.pools[0].source: "NodeCIDRs": want PodCIDRs`},
		{"source and cidr", "pools: [{name: a, source: PodCIDRs, cidr: 10.9.0.0/24}]", "choose one"},
		{"pool within that of the cluster", "pools: [{name: pods}, {name: a, cidr: 10.1.0.0/28}]", `spec.pools[1].cidr: 10.1.0.0/28: overlaps 10.1.0.0/24 of pool "pods"`},
		{"the cluster's twice", "pools: [{name: pods, source: PodCIDRs}, {name: a, source: PodCIDRs}]", "spec.pools[1].source: 2001:db8:1::/64: overlaps"},
		{"namespace selector", "grants: [{namespaceSelector: {matchExpressions: [{key: a, operator: x}]}, prefixes: [203.0.113.0/28], uses: [Anycast]}]", "spec.grants[0].namespaceSelector.matchExpressions[0].operator"},
		{"two passwords", peer("name: a, asn: 2, address: 192.0.2.1, password: {file: /secret, secretRef: {name: a, key: b}}"), "choose one"},
		{"secret without key", peer("name: a, asn: 2, address: 192.0.2.1, password: {secretRef: {name: a}}"), "want the name of a Secret and a key"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Merge([]Document{read(t, "a", tt.spec)}).Convert(clusterOptions(Cluster{PodCIDRs: podCIDRs}))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Convert() = %v, want …%s…", err, tt.want)
			}
		})
	}
	small := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/30")}
	if _, err := Merge(nil).Convert(clusterOptions(Cluster{PodCIDRs: small})); err == nil || !strings.Contains(err.Error(), "assigned to the node") {
		t.Errorf("a pod CIDR that is too small: %v", err)
	}
}

func TestNamespacesBySelector(t *testing.T) {
	m := Merge([]Document{read(t, "a", `grants: [{namespaces: [edge], namespaceSelector: {matchLabels: {x: "1"}}, prefixes: [203.0.113.0/28], uses: [Anycast]}]`)})
	refs := m.References()
	if len(refs.Namespaces) != 1 {
		t.Fatalf("References() = %+v", refs)
	}
	selected := map[string][]string{refs.Namespaces[0].String(): {"edge", "web"}}
	r, err := m.Convert(clusterOptions(Cluster{PodCIDRs: podCIDRs, Namespaces: selected}))
	if err != nil || !slices.Equal(r.Config.Grants[0].Namespaces, []string{"edge", "web"}) {
		t.Errorf("Convert() = %+v, %v", r.Config.Grants, err)
	}
	r, err = m.Convert(clusterOptions(Cluster{PodCIDRs: podCIDRs}))
	if err != nil || !slices.Equal(r.Config.Grants[0].Namespaces, []string{"edge"}) {
		t.Errorf("with nothing selected: %+v, %v", r.Config.Grants, err)
	}
}

// A peer whose password is not there has no session; everything else is as it was.
func TestSecrets(t *testing.T) {
	m := Merge([]Document{read(t, "rack", `bgp:
    asn: 64512
    peers:
    - {name: a, address: 192.0.2.1, asn: 64500, password: {secretRef: {name: tor, key: a}}}
    - {name: b, address: 192.0.2.2, asn: 64500, password: {secretRef: {name: tor, key: b}}}
    - {name: c, address: 192.0.2.3, asn: 64500}`)})
	if diff := cmp.Diff([]SecretRef{{"tor", "a"}, {"tor", "b"}}, m.References().Secrets); diff != "" {
		t.Errorf("References() (-want +got):\n%s", diff)
	}
	a, b := bgp.PeerID{Addr: netip.MustParseAddr("192.0.2.1")}, bgp.PeerID{Addr: netip.MustParseAddr("192.0.2.2")}
	tests := []struct {
		name    string
		secrets map[string]Secret
		peers   int
		warning string
	}{
		{"all there", map[string]Secret{"tor/a": {Value: "x\n"}, "tor/b": {Value: "y"}}, 3, ""},
		{"one not read", map[string]Secret{"tor/a": {Value: "x"}}, 2, "NodeConfig rack: spec.bgp.peers[1].password.secretRef: Secret tor has not been read yet"},
		{"one missing", map[string]Secret{"tor/a": {Value: "x"}, "tor/b": {Problem: "there is no Secret tor"}}, 2, "there is no Secret tor"},
		{"one too long", map[string]Secret{"tor/a": {Value: "x"}, "tor/b": {Value: strings.Repeat("z", 81)}}, 2, "81 characters"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := m.Convert(clusterOptions(Cluster{PodCIDRs: podCIDRs, Secrets: tt.secrets}))
			if err != nil {
				t.Fatal(err)
			}
			if got := len(r.Config.BGP.Peers); got != tt.peers || r.Config.BGP.Peers[a].Password != "x" {
				t.Errorf("peers = %+v, want %d", r.Config.BGP.Peers, tt.peers)
			}
			if _, there := r.Config.BGP.Peers[b]; there != (tt.warning == "") {
				t.Errorf("peer b is there: %v", there)
			}
			if tt.warning == "" && len(r.Warnings) > 0 || tt.warning != "" && !strings.Contains(r.Warnings.Error(), tt.warning) {
				t.Errorf("Warnings = %v, want …%s…", r.Warnings, tt.warning)
			}
		})
	}
}

// What is stored gives the same configuration; what is printed has no password.
func TestClusterIsStoredNotPrinted(t *testing.T) {
	c := Cluster{PodCIDRs: podCIDRs, Namespaces: map[string][]string{"a=b": {"x"}}, Secrets: map[string]Secret{"tor/a": {Value: "s3cret"}}}
	data, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var got Cluster
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(c, got, cmpNetip...); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	s := c.Secrets["tor/a"]
	if text := fmt.Sprintf("%v %+v %#v %v", c, c, c, s.LogValue()); strings.Contains(text, "s3cret") {
		t.Error(text)
	}
}

func FuzzMerge(f *testing.F) {
	f.Add([]byte(full), []byte(doc("a", "priority: 1")))
	f.Add([]byte(doc("a", "{pools: [{name: a}, {name: a}], grants: [{}], bgp: {peers: [{name: x, asn: 1}]}}")),
		[]byte(doc("b", "{pools: [{name: a, cidr: 10.0.0.0/8}], grants: [{}], bgp: {peers: [{name: x, asn: 2}]}}")))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		var docs []Document
		for _, data := range [][]byte{a, b} {
			if d, err := Read(data); err == nil {
				docs = append(docs, d)
			}
		}
		m := Merge(Select(docs, map[string]string{"rack": "1"}))
		got, err := m.Convert(clusterOptions(Cluster{PodCIDRs: podCIDRs}))
		again, errAgain := Resolve(m.Text(), clusterOptions(Cluster{PodCIDRs: podCIDRs}))
		if (err == nil) != (errAgain == nil) {
			t.Fatalf("%v, but read again: %v in\n%s", err, errAgain, m.Text())
		}
		for i := range got.Warnings {
			got.Warnings[i].Doc, got.Warnings[i].Line, again.Warnings[i].Line = "", 0, 0
			got.Warnings[i].Path, again.Warnings[i].Path = "", "" // each is of its own document
		}
		if diff := cmp.Diff(got, again, cmpNetip...); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
