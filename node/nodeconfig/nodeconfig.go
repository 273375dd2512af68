// Package nodeconfig turns the text of a NodeConfig into the node.Config that the core works with. It reports every problem
// at once, each with its line and path, and fills in every default, so that nothing inside has to be checked again. It does
// no I/O beyond what it is given.
package nodeconfig

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gaggle-cni/gaggle/node"
	"github.com/gaggle-cni/gaggle/node/api/v1alpha1"
)

// A Problem is one thing that is wrong with a document.
type Problem struct {
	Doc  string // the name of the NodeConfig, where several can be meant
	Path string // "spec.bgp.peers[1].holdTime"
	Line int    // 0 if not known
	Text string // what is wrong, and what would be right
}

// Problems are everything that is wrong with a document, in the order of its lines.
type Problems []Problem

// Error lists the problems, a line each.
func (p Problems) Error() string {
	var b strings.Builder
	for i, problem := range p {
		if i > 0 {
			b.WriteByte('\n')
		}
		if problem.Doc != "" {
			fmt.Fprintf(&b, "NodeConfig %s: ", problem.Doc)
		}
		if problem.Line > 0 {
			fmt.Fprintf(&b, "line %d: ", problem.Line)
		}
		if problem.Path != "" {
			fmt.Fprintf(&b, "%s: ", problem.Path)
		}
		b.WriteString(problem.Text)
	}
	return b.String()
}

// Options are what a document does not say.
type Options struct {
	Node     string                            // the node's name
	ReadFile func(name string) ([]byte, error) // for passwords
	Cluster  *Cluster                          // nil without Kubernetes
}

// Parse reads one NodeConfig document, YAML or JSON, for the given node. Its errors are [Problems] unless the text is no
// YAML at all.
func Parse(data []byte, o Options) (node.Config, error) {
	r, err := Resolve(data, o)
	return r.Config, err
}

// Resolve is Parse, and tells what was left out.
func Resolve(data []byte, o Options) (Result, error) {
	tree, err := document(data)
	if err != nil {
		return Result{}, err
	}
	d := newDecoder(nil)
	var doc v1alpha1.NodeConfig
	d.decode("", tree, reflect.ValueOf(&doc).Elem())
	return convert(d, doc, o)
}

// A Result is what came of a document.
type Result struct {
	Config node.Config
	// Warnings are what was left out, such as a peer whose password is not there. The rest is as good as without them.
	Warnings Problems
}

// convert reports what the decoder has noted together with its own findings.
func convert(d *decoder, doc v1alpha1.NodeConfig, o Options) (Result, error) {
	c := &converter{decoder: d, o: o}
	for _, p := range d.problems {
		c.bad = append(c.bad, place{doc: p.Doc, path: p.Path})
	}
	config := c.convert(doc)
	if len(d.problems) > 0 {
		slices.SortStableFunc(d.problems, func(a, b Problem) int { return cmp.Or(strings.Compare(a.Doc, b.Doc), a.Line-b.Line) })
		return Result{}, d.problems
	}
	if c.noPodCIDRs {
		return Result{}, ErrNoPodCIDRs
	}
	return Result{Config: config, Warnings: c.warnings}, nil
}

// document returns the one document in the text.
func document(data []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var tree, more yaml.Node
	switch err := dec.Decode(&tree); {
	case errors.Is(err, io.EOF):
		return nil, Problems{{Text: "is empty; want a " + v1alpha1.Kind}}
	case err != nil:
		return nil, fmt.Errorf("read YAML: %w", err)
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, Problems{{Text: "has more than one document; want one " + v1alpha1.Kind}}
	}
	if tree.Kind != yaml.DocumentNode || len(tree.Content) != 1 {
		return nil, Problems{{Text: "is empty; want a " + v1alpha1.Kind}}
	}
	return tree.Content[0], nil
}
