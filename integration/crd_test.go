package integration

import (
	"bytes"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/gaggle-cni/gaggle/node/api/v1alpha1"
)

// object is YAML that is made, with its keys in order.
type object = map[string]any

const crdFile = "../deploy/kubernetes/crd.yaml"

// rules are what a field's type does not say. What takes more than a schema to tell is told by the node process, in an Event, and
// the last good configuration stays in force.
var rules = map[string]object{
	"spec.pools":                  byName,
	"spec.pools[].announce":       oneOf("Aggregate", "Hosts", "None"),
	"spec.pools[].source":         oneOf("PodCIDRs"),
	"spec.pools[]":                cel("!(has(self.cidr) && has(self.source))", "cidr and source exclude each other"),
	"spec.defaults.families[]":    oneOf("IPv6", "IPv4"),
	"spec.defaults.mtu":           {"minimum": 0, "maximum": 65535},
	"spec.grants[].uses[]":        oneOf("Addresses", "Anycast"),
	"spec.grants[].prefixes":      {"minItems": 1},
	"spec.grants[].uses":          {"minItems": 1},
	"spec.grants[]":               cel("has(self.namespaces) || has(self.namespaceSelector)", "name the namespaces, or select them"),
	"spec.bgp":                    {"required": []string{"asn"}},
	"spec.bgp.asn":                {"minimum": 1, "maximum": 4294967294},
	"spec.bgp.listenPort":         {"minimum": 0, "maximum": 65535},
	"spec.bgp.peers":              byName,
	"spec.bgp.peers[]":            {"required": []string{"name", "address", "asn"}},
	"spec.bgp.peers[].asn":        {"minimum": 1, "maximum": 4294967294},
	"spec.bgp.peers[].multihop":   {"minimum": 0, "maximum": 255},
	"spec.bgp.peers[].password":   cel("has(self.file) != has(self.secretRef)", "name a file or a Secret, and not both"),
	"spec.bgp.peers[].families[]": oneOf("IPv6", "IPv4"),
}

var byName = object{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []string{"name"}}

func oneOf(values ...string) object { return object{"enum": values} }

func cel(rule, message string) object {
	return object{"x-kubernetes-validations": []object{{"rule": rule, "message": message}}}
}

// The CustomResourceDefinition is made from the types; -update writes it.
func TestCustomResourceDefinition(t *testing.T) {
	used := make(map[string]bool)
	spec := schema("spec", reflect.TypeFor[v1alpha1.NodeConfigSpec](), used)
	for path := range rules {
		if !used[path] {
			t.Errorf("the rule of %s is of no field", path)
		}
	}
	spec["description"] = "What the nodes that it selects do. docs/reference.md describes each field."
	column := func(name, kind, path string) object { return object{"name": name, "type": kind, "jsonPath": path} }
	crd := object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": object{"name": "nodeconfigs.gaggle.dev"},
		"spec": object{
			"group": "gaggle.dev", "scope": "Cluster",
			"names": object{"kind": v1alpha1.Kind, "listKind": v1alpha1.Kind + "List", "plural": "nodeconfigs", "singular": "nodeconfig"},
			"versions": []object{{
				"name": strings.TrimPrefix(v1alpha1.APIVersion, "gaggle.dev/"), "served": true, "storage": true,
				"schema": object{"openAPIV3Schema": object{
					"description": "Configures the nodes that it selects; several merge, see docs/reference.md.",
					"type":        "object", "required": []string{"spec"},
					"properties": object{
						"apiVersion": object{"type": "string"}, "kind": object{"type": "string"}, "metadata": object{"type": "object"}, "spec": spec,
					},
				}},
				"additionalPrinterColumns": []object{
					column("Priority", "integer", ".spec.priority"), column("ASN", "integer", ".spec.bgp.asn"),
					column("Peers", "string", ".spec.bgp.peers[*].name"), column("Age", "date", ".metadata.creationTimestamp"),
				},
			}},
		},
	}
	var out bytes.Buffer
	out.WriteString("# Made from node/api/v1alpha1 by: go test ./integration -run TestCustomResourceDefinition -update\n")
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	must(t, enc.Encode(crd))
	if *update {
		must(t, os.WriteFile(crdFile, out.Bytes(), 0o644))
	}
	have, err := os.ReadFile(crdFile)
	must(t, err)
	if diff := cmp.Diff(out.String(), string(have)); diff != "" {
		t.Errorf("%s (-made +there); -update writes it:\n%s", crdFile, diff)
	}
}

// schema is the structural schema of a type (https://kubernetes.io/docs: CustomResourceDefinition, Specifying a structural schema).
func schema(path string, t reflect.Type, used map[string]bool) object {
	s := object{}
	switch t.Kind() {
	case reflect.Pointer:
		return schema(path, t.Elem(), used)
	case reflect.Struct:
		properties := object{}
		fields(path, t, properties, used)
		s["type"], s["properties"] = "object", properties
	case reflect.Slice:
		items := schema(path+"[]", t.Elem(), used)
		s["type"], s["items"] = "array", items
		if item, ok := rules[path]; ok && item["x-kubernetes-list-type"] == "map" && items["required"] == nil {
			items["required"] = []string{"name"}
		}
	case reflect.Map:
		s["type"], s["additionalProperties"] = "object", object{"type": "string"}
	case reflect.String:
		s["type"] = "string"
	case reflect.Bool:
		s["type"] = "boolean"
	case reflect.Int32:
		s["type"], s["format"] = "integer", "int32"
	default: // unsigned ones, whose range is wider than that of int32
		s["type"], s["format"], s["minimum"] = "integer", "int64", 0
	}
	for key, value := range rules[path] {
		s[key] = value
	}
	used[path] = true
	return s
}

func fields(path string, t reflect.Type, properties object, used map[string]bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			fields(path, f.Type, properties, used)
			continue
		}
		name := f.Tag.Get("json")
		properties[name] = schema(path+"."+name, f.Type, used)
	}
}
