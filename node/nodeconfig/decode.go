package nodeconfig

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gaggle-cni/gaggle/node/api/v1alpha1"
)

// A decoder fills Go values from a YAML tree and notes everything that is wrong on the way, with its path and line. The
// YAML library's own strict mode stops at the first wrong type and knows no paths.
type decoder struct {
	problems Problems
	places   map[string]place // by path
	placeOf  func(*yaml.Node) place
}

// A place is where something was written.
type place struct {
	doc  string // the document's name, where there are several
	path string
	line int // 0 if it means nothing
}

func newDecoder(placeOf func(*yaml.Node) place) *decoder {
	if placeOf == nil {
		placeOf = func(n *yaml.Node) place { return place{line: n.Line} }
	}
	return &decoder{places: make(map[string]place), placeOf: placeOf}
}

// later are keys that the format will have and this version does not.
var later = map[string]bool{
	"interface": true, "gateway": true, "bfd": true,
}

// objectMeta are the keys that the API server adds to metadata; a document that was read from it is accepted as it is.
var objectMeta = map[string]bool{
	"uid": true, "resourceVersion": true, "generation": true, "creationTimestamp": true, "deletionTimestamp": true,
	"deletionGracePeriodSeconds": true, "managedFields": true, "ownerReferences": true, "finalizers": true, "generateName": true,
}

func (d *decoder) decode(path string, n *yaml.Node, v reflect.Value) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	d.places[path] = d.placeOf(n)
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return // as if it were not there
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.decode(path, n, v.Elem())
	case reflect.Struct:
		d.decodeStruct(path, n, v)
	case reflect.Map:
		d.decodeMap(path, n, v)
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			d.wrong(path, n, "a list")
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		for i, item := range n.Content {
			d.decode(fmt.Sprintf("%s[%d]", path, i), item, v.Index(i))
		}
	default:
		d.decodeScalar(path, n, v)
	}
}

func (d *decoder) decodeStruct(path string, n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.wrong(path, n, "a mapping")
		return
	}
	fields := make(map[string]reflect.Value)
	collect(fields, v)
	d.eachKey(path, n, func(key, sub string, value *yaml.Node) {
		field, ok := fields[key]
		switch {
		case ok:
			d.decode(sub, value, field)
		case path == "metadata" && objectMeta[key]:
		case later[sub] || later[key]:
			d.problem(sub, "this version does not support it")
		default:
			d.problem(sub, "unknown; known here: %s", strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
		}
	})
}

// collect finds a structure's fields by their keys; those of an embedded one count as its own.
func collect(fields map[string]reflect.Value, v reflect.Value) {
	for i := range v.NumField() {
		if v.Type().Field(i).Anonymous {
			collect(fields, v.Field(i))
			continue
		}
		fields[v.Type().Field(i).Tag.Get("json")] = v.Field(i)
	}
}

func (d *decoder) decodeMap(path string, n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.wrong(path, n, "a mapping")
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	d.eachKey(path, n, func(key, sub string, value *yaml.Node) {
		item := reflect.New(v.Type().Elem()).Elem()
		d.decode(sub, value, item)
		v.SetMapIndex(reflect.ValueOf(key), item)
	})
}

// eachKey visits the keys of a mapping and complains of repeated ones.
func (d *decoder) eachKey(path string, n *yaml.Node, visit func(key, sub string, value *yaml.Node)) {
	seen := make(map[string]bool)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i].Value
		sub := key
		if path != "" {
			sub = path + "." + key
		}
		d.places[sub] = d.placeOf(n.Content[i])
		if seen[key] {
			d.problem(sub, "is there twice")
			continue
		}
		seen[key] = true
		visit(key, sub, n.Content[i+1])
	}
}

func (d *decoder) decodeScalar(path string, n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.ScalarNode {
		d.wrong(path, n, "a single value")
		return
	}
	switch v.Kind() {
	case reflect.String:
		if v.Type() == reflect.TypeFor[v1alpha1.Duration]() && n.Tag == "!!int" {
			v.SetString(n.Value) // the converter knows what is right
			return
		}
		if n.Tag != "!!str" {
			d.problem(path, "%s: want text; put it in quotes", n.Value)
			return
		}
		v.SetString(n.Value)
	case reflect.Bool:
		b, err := strconv.ParseBool(n.Value)
		if n.Tag != "!!bool" || err != nil {
			d.problem(path, "%q: want true or false", n.Value)
			return
		}
		v.SetBool(b)
	case reflect.Int32:
		i, err := strconv.ParseInt(n.Value, 10, 32)
		if n.Tag != "!!int" || err != nil {
			d.problem(path, "%q: want a number", n.Value)
			return
		}
		v.SetInt(i)
	case reflect.Uint32, reflect.Uint8:
		u, err := strconv.ParseUint(n.Value, 10, v.Type().Bits())
		if n.Tag != "!!int" || err != nil {
			d.problem(path, "%q: want a number from 0 to %d", n.Value, uint64(1)<<v.Type().Bits()-1)
			return
		}
		v.SetUint(u)
	default:
		panic("nodeconfig: field of kind " + v.Kind().String())
	}
}

func (d *decoder) wrong(path string, n *yaml.Node, want string) {
	what := map[yaml.Kind]string{yaml.MappingNode: "a mapping", yaml.SequenceNode: "a list", yaml.ScalarNode: "a single value"}[n.Kind]
	d.problem(path, "is %s: want %s", what, want)
}

func (d *decoder) problem(path, format string, args ...any) {
	d.problems = append(d.problems, d.at(path, format, args...))
}

func (d *decoder) at(path, format string, args ...any) Problem {
	where := d.place(path)
	return Problem{Doc: where.doc, Path: where.path, Line: where.line, Text: fmt.Sprintf(format, args...)}
}

// place is where a path is, or where the nearest thing around it begins if it is not there.
func (d *decoder) place(path string) place {
	for around := path; around != ""; around = around[:max(strings.LastIndexAny(around, ".["), 0)] {
		where, ok := d.places[around]
		if !ok {
			continue
		}
		if where.path == "" { // there is one document, and its paths are these
			where.path = path
		} else {
			where.path += path[len(around):]
		}
		return where
	}
	return place{path: path}
}
