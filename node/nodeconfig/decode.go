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
	lines    map[string]int // by path
}

// later are keys that the format will have and this version does not.
var later = map[string]bool{
	"drainTime": true, "interface": true, "gateway": true, "bfd": true, "secretRef": true,
}

func (d *decoder) decode(path string, n *yaml.Node, v reflect.Value) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	d.lines[path] = n.Line
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
	fields := make(map[string]int)
	for i := range v.NumField() {
		fields[v.Type().Field(i).Tag.Get("json")] = i
	}
	d.eachKey(path, n, func(key, sub string, value *yaml.Node) {
		i, ok := fields[key]
		switch {
		case ok:
			d.decode(sub, value, v.Field(i))
		case later[sub] || later[key]:
			d.problem(sub, "this version does not support it")
		default:
			d.problem(sub, "unknown; known here: %s", strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
		}
	})
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
		if seen[key] {
			d.lines[sub] = n.Content[i].Line
			d.problem(sub, "is there twice")
			continue
		}
		seen[key] = true
		d.lines[sub] = n.Content[i].Line
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
	d.problems = append(d.problems, Problem{Path: path, Line: d.line(path), Text: fmt.Sprintf(format, args...)})
}

// line is where a path is, or where the nearest thing around it begins if it is not there.
func (d *decoder) line(path string) int {
	for path != "" {
		if line, ok := d.lines[path]; ok {
			return line
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return 0
}
