package nodeconfig

import (
	"bytes"
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gaggle-cni/gaggle/node/api/v1alpha1"
)

// A Document is one NodeConfig of several, before it is merged with others.
type Document struct {
	Name     string
	Priority int32

	selector *Selector
	tree     *yaml.Node
}

// Read reads a document as far as it must be understood to tell which nodes it is for. The rest is looked at by
// [Merged.Convert], on those nodes alone.
func Read(data []byte) (Document, error) {
	tree, err := document(data)
	if err != nil {
		return Document{}, err
	}
	d := newDecoder(nil)
	var doc v1alpha1.NodeConfig
	d.decode("", tree, reflect.ValueOf(&doc).Elem())
	c := &converter{decoder: d}
	c.identity(doc)
	out := Document{Name: doc.Metadata.Name, Priority: doc.Spec.Priority}
	budget := maxValues
	if out.tree = resolved(tree, &budget); budget < 0 {
		return Document{}, Problems{{Doc: out.Name, Text: fmt.Sprintf("has more than %d values", maxValues)}}
	}
	if out.Name == "" {
		c.problem("metadata.name", "is missing; documents are told apart by it")
	}
	if s := doc.Spec.NodeSelector; s != nil {
		c.selector("spec.nodeSelector", s)
		out.selector = &Selector{*s}
	}
	problems := slices.DeleteFunc(c.problems, func(p Problem) bool {
		return strings.HasPrefix(p.Path, "spec.") && !strings.HasPrefix(p.Path, "spec.nodeSelector") && p.Path != "spec.priority"
	})
	if len(problems) > 0 {
		for i := range problems {
			problems[i].Doc, problems[i].Line = out.Name, 0
		}
		return Document{}, problems
	}
	return out, nil
}

// Select returns the documents for a node with these labels, the one that counts most first: by priority, the higher first,
// and by name where that is equal.
func Select(docs []Document, labels map[string]string) []Document {
	selected := slices.DeleteFunc(slices.Clone(docs), func(d Document) bool {
		return d.selector != nil && !d.selector.Matches(labels)
	})
	slices.SortStableFunc(selected, func(a, b Document) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), strings.Compare(a.Name, b.Name))
	})
	return selected
}

// A Merged is the effective document of a node: the values of several, the first one's counting most. It is immutable.
type Merged struct {
	Names []string // of the documents, the one that counts most first

	tree    *yaml.Node
	decoder decoder // what decoding the tree has found
	doc     v1alpha1.NodeConfig
}

// How documents merge beyond mappings, which merge key by key. Other lists, and single values, are the first document's that
// has them.
var (
	// mergedByName are lists whose entries merge with those of the same name.
	mergedByName = map[string]bool{"spec.pools": true, "spec.bgp.peers": true}
	// joined are lists whose entries have no name.
	joined = map[string]bool{"spec.grants": true}
	// alternatives are keys of which a mapping has one: whoever sets one takes the others away.
	alternatives = [][]string{{"cidr", "source"}, {"file", "secretRef"}}
	// notMerged have done their work when documents are merged.
	notMerged = map[string]bool{"apiVersion": true, "kind": true, "metadata": true, "spec.nodeSelector": true, "spec.priority": true}
)

// maxValues bounds a document: by aliases, a short text can stand for a very long one, or for one without an end.
const maxValues = 100_000

// A merger merges trees, and knows where each node of a tree is from.
type merger map[*yaml.Node]place

// Merge merges documents in the order of [Select]. Without any the result is the document that says nothing.
func Merge(docs []Document) Merged {
	m := make(merger)
	// What is never merged is left out on the way down from an empty document.
	tree := mapping("spec", &yaml.Node{Kind: yaml.MappingNode})
	var merged Merged
	for _, d := range docs {
		merged.Names = append(merged.Names, d.Name)
		m.note(d.tree, place{doc: d.Name})
		tree = m.merge("", tree, d.tree)
	}
	head := mapping("apiVersion", text(v1alpha1.APIVersion), "kind", text(v1alpha1.Kind))
	tree.Content = slices.Concat(head.Content, tree.Content)
	merged.tree = tree
	merged.decoder = *newDecoder(func(n *yaml.Node) place { return m[n] })
	merged.decoder.decode("", tree, reflect.ValueOf(&merged.doc).Elem())
	return merged
}

// note writes down where everything is from.
func (m merger) note(n *yaml.Node, at place) {
	m[n] = at
	walk(n, at.path, func(path string, key, value *yaml.Node) {
		at := place{doc: at.doc, path: path}
		if key != nil {
			m[key] = at
		}
		m.note(value, at)
	})
}

// walk visits what is directly in a mapping or a list. Entries of a list have no key.
func walk(n *yaml.Node, path string, visit func(path string, key, value *yaml.Node)) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			visit(strings.TrimPrefix(path+"."+n.Content[i].Value, "."), n.Content[i], n.Content[i+1])
		}
	case yaml.SequenceNode:
		for i, item := range n.Content {
			visit(fmt.Sprintf("%s[%d]", path, i), nil, item)
		}
	default: // has nothing in it
	}
}

// merge returns what is in both, high counting more. It changes neither.
func (m merger) merge(path string, high, low *yaml.Node) *yaml.Node {
	switch {
	case isNull(high):
		return low
	case isNull(low) || high.Kind != low.Kind:
		return high
	case high.Kind == yaml.MappingNode:
		return m.made(high, m.mergeMappings(path, high, low))
	case high.Kind == yaml.SequenceNode && joined[path]:
		return m.made(high, slices.Concat(high.Content, low.Content))
	case high.Kind == yaml.SequenceNode && mergedByName[path]:
		return m.made(high, m.mergeLists(path, high, low))
	}
	return high
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

func (m merger) made(like *yaml.Node, content []*yaml.Node) *yaml.Node {
	n := &yaml.Node{Kind: like.Kind, Tag: like.Tag, Content: content}
	m[n] = m[like]
	return n
}

func (m merger) mergeMappings(path string, high, low *yaml.Node) (content []*yaml.Node) {
	var gone []string // alternatives that high has decided against
	for _, keys := range alternatives {
		if slices.ContainsFunc(keys, func(key string) bool { return value(high, key) != nil }) {
			gone = append(gone, keys...)
		}
	}
	walk(high, path, func(path string, key, v *yaml.Node) {
		if other := value(low, key.Value); other != nil && v == value(high, key.Value) {
			v = m.merge(path, v, other)
		}
		content = append(content, key, v)
	})
	walk(low, path, func(path string, key, v *yaml.Node) {
		if value(high, key.Value) == nil && !slices.Contains(gone, key.Value) && !notMerged[path] {
			content = append(content, key, v)
		}
	})
	return content
}

// mergeLists merges entries of the same name. Those of high stand first.
func (m merger) mergeLists(path string, high, low *yaml.Node) (content []*yaml.Node) {
	named := func(list []*yaml.Node, name string) int {
		return slices.IndexFunc(list, func(n *yaml.Node) bool { return name != "" && nameOf(n) == name })
	}
	for i, item := range high.Content {
		name := nameOf(item)
		if j := named(low.Content, name); j >= 0 && i == named(high.Content, name) {
			item = m.merge(path+"[]", item, low.Content[j])
		}
		content = append(content, item)
	}
	for j, item := range low.Content {
		if name := nameOf(item); named(high.Content, name) < 0 || j != named(low.Content, name) {
			content = append(content, item)
		}
	}
	return content
}

func nameOf(n *yaml.Node) string {
	if v := value(n, "name"); v != nil {
		return v.Value
	}
	return ""
}

// value returns the first value of a key; nil if there is none.
func value(n *yaml.Node, key string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// resolved returns a tree without aliases, comments and styles, so that it can be taken apart and printed. It ends when the
// budget is below zero.
func resolved(n *yaml.Node, budget *int) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	clean := &yaml.Node{Kind: n.Kind, Tag: n.Tag, Value: n.Value}
	for _, item := range n.Content {
		if *budget--; *budget < 0 {
			break
		}
		clean.Content = append(clean.Content, resolved(item, budget))
	}
	return clean
}

func mapping(pairs ...any) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for i := 0; i < len(pairs); i += 2 {
		n.Content = append(n.Content, text(pairs[i].(string)), pairs[i+1].(*yaml.Node))
	}
	return n
}

func text(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s} }

// Text returns the document as YAML.
func (m Merged) Text() []byte {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(m.tree); err != nil { // a buffer takes everything, and the tree has been read from YAML
		panic("nodeconfig: " + err.Error())
	}
	return b.Bytes()
}

// Origins returns the name of the document that each value of the effective one comes from, by the value's path.
func (m Merged) Origins() map[string]string {
	origins := make(map[string]string)
	var visit func(path string, key, value *yaml.Node)
	visit = func(path string, _, value *yaml.Node) {
		if from := m.decoder.placeOf(value).doc; len(value.Content) == 0 && from != "" {
			origins[path] = from
		}
		walk(value, path, visit)
	}
	visit("", nil, m.tree)
	return origins
}

// References returns what the document needs from a cluster.
func (m Merged) References() References { return references(m.doc) }

// Convert turns the document into a configuration. It is a function of its inputs alone. Its error is [Problems] or
// [ErrNoPodCIDRs].
func (m Merged) Convert(o Options) (Result, error) {
	d := m.decoder
	d.problems = slices.Clone(d.problems)
	return convert(&d, m.doc, o)
}
