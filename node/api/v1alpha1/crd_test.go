package v1alpha1

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write the CustomResourceDefinition")

const crdFile = "../../../deploy/crd/gaggle.dev_nodeconfigs.yaml"

// The CustomResourceDefinition is what the Go types and their comments say. `go test ./node/api/... -update` makes it anew.
func TestDefinition(t *testing.T) {
	g := newGenerator(t)
	var got bytes.Buffer
	got.WriteString("# Made of node/api/v1alpha1/types.go by go test ./node/api/... -update. Do not edit.\n")
	enc := yaml.NewEncoder(&got)
	enc.SetIndent(2)
	if err := enc.Encode(g.definition()); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(crdFile, got.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(crdFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("%s is stale: go test ./node/api/... -update (-file +types):\n%s", crdFile, diff)
	}
}

// A generator knows the comments of the types and of their fields: "Pool", "Pool.CIDR".
type generator struct {
	t        *testing.T
	comments map[string]comment
}

type comment struct {
	text    string
	markers []string // without the plus sign
}

func newGenerator(t *testing.T) generator {
	g := generator{t, make(map[string]comment)}
	file, err := parser.ParseFile(token.NewFileSet(), "types.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, decl := range file.Decls {
		d, ok := decl.(*ast.GenDecl)
		if !ok || d.Tok != token.TYPE {
			continue
		}
		spec, _ := d.Specs[0].(*ast.TypeSpec)
		g.comments[spec.Name.Name] = parse(d.Doc, nil)
		fields, ok := spec.Type.(*ast.StructType)
		if !ok {
			continue
		}
		for _, f := range fields.Fields.List {
			if len(f.Names) == 0 {
				continue // embedded: its fields are the other type's
			}
			g.comments[spec.Name.Name+"."+f.Names[0].Name] = parse(f.Doc, f.Comment)
		}
	}
	return g
}

func parse(groups ...*ast.CommentGroup) (c comment) {
	var lines []string
	for _, group := range groups {
		if group == nil {
			continue
		}
		for _, line := range group.List {
			text := strings.TrimSpace(strings.TrimPrefix(line.Text, "//"))
			if marker, ok := strings.CutPrefix(text, "+"); ok {
				c.markers = append(c.markers, marker)
			} else if text != "" {
				lines = append(lines, text)
			}
		}
	}
	c.text = strings.Join(lines, " ")
	return c
}

type object = map[string]any

func (g generator) definition() object {
	var columns []object
	for _, m := range g.comments["NodeConfig"].markers {
		a := arguments(strings.TrimPrefix(m, "kubebuilder:printcolumn:"))
		columns = append(columns, object{"name": a["name"], "type": a["type"], "jsonPath": a["JSONPath"]})
	}
	group, version, _ := strings.Cut(APIVersion, "/")
	plural := strings.ToLower(Kind) + "s"
	return object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": object{"name": plural + "." + group},
		"spec": object{
			"group": group, "scope": "Cluster",
			"names": object{"kind": Kind, "listKind": Kind + "List", "plural": plural, "singular": strings.ToLower(Kind), "shortNames": []string{"ggl"}},
			"versions": []object{{
				"name": version, "served": true, "storage": true, "additionalPrinterColumns": columns,
				"schema": object{"openAPIV3Schema": g.root()},
			}},
		},
	}
}

// root is the schema of a document. Its metadata are the API server's matter.
func (g generator) root() object {
	s := g.schema(reflect.TypeFor[NodeConfig]())
	properties := s["properties"].(object)
	properties["metadata"] = object{"type": "object"}
	s["required"] = []string{"spec"}
	return s
}

func (g generator) schema(typ reflect.Type) object {
	switch typ.Kind() {
	case reflect.Pointer:
		return g.schema(typ.Elem())
	case reflect.Slice:
		return object{"type": "array", "items": g.schema(typ.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": g.schema(typ.Elem())}
	case reflect.String:
		s := object{"type": "string"}
		g.apply(s, g.comments[typ.Name()])
		return s
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int32:
		return object{"type": "integer", "format": "int32"}
	case reflect.Uint32, reflect.Uint8:
		return object{"type": "integer", "format": "int64", "minimum": 0, "maximum": uint64(1)<<typ.Bits() - 1}
	case reflect.Struct:
		return g.structSchema(typ)
	default:
		g.t.Fatalf("no schema for %s", typ)
		return nil
	}
}

func (g generator) structSchema(typ reflect.Type) object {
	properties := object{}
	required := g.properties(properties, typ)
	s := object{"type": "object", "properties": properties}
	if required != nil {
		s["required"] = required
	}
	g.apply(s, g.comments[typ.Name()])
	return s
}

// properties are those of a structure, with those of embedded ones; which of them are required is returned.
func (g generator) properties(properties object, typ reflect.Type) (required []string) {
	for f := range typ.Fields() {
		if f.Anonymous {
			required = append(required, g.properties(properties, f.Type)...)
			continue
		}
		s, c := g.schema(f.Type), g.comments[typ.Name()+"."+f.Name]
		g.apply(s, c)
		name := f.Tag.Get("json")
		properties[name] = s
		if slices.Contains(c.markers, "kubebuilder:validation:Required") {
			required = append(required, name)
		}
	}
	return required
}

// apply adds what a comment says.
func (g generator) apply(s object, c comment) {
	if c.text != "" {
		s["description"] = c.text
	}
	for _, m := range c.markers {
		target, rule := s, m
		if items, ok := strings.CutPrefix(m, "kubebuilder:validation:items:"); ok {
			target, rule = s["items"].(object), "kubebuilder:validation:"+items
		}
		name, value, _ := strings.Cut(strings.TrimPrefix(rule, "kubebuilder:validation:"), "=")
		switch {
		case name == "Required", strings.HasPrefix(name, "kubebuilder:printcolumn"):
		case strings.HasPrefix(rule, "kubebuilder:validation:XValidation:"):
			a := arguments(strings.TrimPrefix(rule, "kubebuilder:validation:XValidation:"))
			rules, _ := target["x-kubernetes-validations"].([]object)
			target["x-kubernetes-validations"] = append(rules, object{"rule": a["rule"], "message": a["message"]})
		case name == "Enum":
			target["enum"] = strings.Split(value, ";")
		case name == "Pattern":
			target["pattern"] = unquote(g.t, value)
		case name == "listType":
			target["x-kubernetes-list-type"] = value
		case name == "listMapKey":
			target["x-kubernetes-list-map-keys"] = []string{value}
		case slices.Contains([]string{"Minimum", "Maximum", "MinLength", "MaxLength", "MinItems", "MaxItems"}, name):
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				g.t.Fatalf("%s: %v", m, err)
			}
			target[strings.ToLower(name[:1])+name[1:]] = n
		default:
			g.t.Fatalf("unknown marker %s", m)
		}
	}
}

func unquote(t *testing.T, text string) string {
	out, err := strconv.Unquote(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return out
}

// arguments reads name="…",type="…".
func arguments(text string) map[string]string {
	found := make(map[string]string)
	for _, m := range regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`).FindAllStringSubmatch(text, -1) {
		found[m[1]] = m[2]
	}
	if len(found) == 0 {
		panic(fmt.Sprintf("no arguments in %s", text))
	}
	return found
}
