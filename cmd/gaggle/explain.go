package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/gaggle-cni/gaggle/ipam"
	"github.com/gaggle-cni/gaggle/node"
	"github.com/gaggle-cni/gaggle/node/nodeconfig"
)

// An explanation is what is known of one address, or of all the addresses of an identity. Its JSON is documented in
// docs/reference.md.
type explanation struct {
	Address netip.Addr      `json:"address,omitzero"`
	Pool    string          `json:"pool,omitempty"`
	Prefix  netip.Prefix    `json:"prefix"`        // of the pool, or with an identity the part in which its pods are
	Pod     *node.PodStatus `json:"pod,omitempty"` // that has it now
	Use     string          `json:"use,omitempty"` // primary, extra or anycast
	Fields  []fieldValue    `json:"fields,omitempty"`
}

type fieldValue struct {
	Field string `json:"field"`          // with its width
	Bits  string `json:"bits"`           // hexadecimal
	Text  string `json:"text,omitempty"` // what it was made from, if that is among what is known or was given
}

// explainFlags say where pools come from, and whom to look for.
type explainFlags struct {
	runDir, config, algo, output string
	id                           ipam.Identity
}

func runExplain(ctx context.Context, c *cmdline) error {
	var f explainFlags
	c.operandName, c.maxOperands = "[ADDRESS | NAMESPACE/POD]", 1
	c.flags.StringVar(&f.runDir, "run-dir", defaultRunDir, "`DIR` of the node process's sockets and state")
	c.flags.StringVar(&f.config, "config", "", "`FILE` with the NodeConfig, to explain without a node process")
	c.flags.StringVar(&f.algo, "ip-algo", "", "`FIELDS` such as namespace/16,app/16, instead of those of the pod or the NodeConfig")
	c.flags.StringVar(&f.id.Namespace, "namespace", "", "the pods' `NAMESPACE`")
	c.flags.StringVar(&f.id.App, "app", "", "the `NAME` of their workload")
	c.flags.StringVar(&f.id.Image, "image", "", "their first container's `IMAGE`")
	c.flags.StringVar(&f.id.Pod, "pod", "", "the pod's `NAME`")
	c.flags.StringVar(&f.id.Node, "node", "", "the node's `NAME`")
	c.flags.StringVar(&f.output, "o", "text", "output `FORMAT`: text or json")
	if err := c.parse(); err != nil {
		return err
	}
	if err := checkOutput(f.output); err != nil {
		return err
	}
	s, err := f.facts(ctx)
	if err != nil {
		return err
	}
	explained, err := f.explain(s, c.operands)
	if err != nil {
		return err
	}
	if f.output == "json" {
		return printJSON(c.stdout, explained)
	}
	tw := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	for i, e := range explained {
		if i > 0 {
			fmt.Fprintln(tw)
		}
		e.print(tw)
	}
	return tw.Flush()
}

// facts come from a file, without pods, or from the node process.
func (f explainFlags) facts(ctx context.Context) (node.Status, error) {
	if f.config == "" {
		return askStatus(ctx, f.runDir)
	}
	data, err := os.ReadFile(f.config)
	if err != nil {
		return node.Status{}, usageError{fmt.Errorf("--config: %w", err)}
	}
	// Passwords are of no interest here, and may be out of reach.
	secret := func(string) ([]byte, error) { return []byte("x"), nil }
	config, err := nodeconfig.Parse(data, nodeconfig.Options{Node: f.id.Node, ReadFile: secret})
	if err != nil {
		return node.Status{}, usageError{fmt.Errorf("%s is no usable NodeConfig:\n%w", f.config, err)}
	}
	s := node.Status{IPAlgo: config.IPAlgo.String()}
	for _, p := range config.Pools {
		s.Pools = append(s.Pools, node.PoolStatus{Name: p.Name, Prefix: p.Prefix})
	}
	return s, nil
}

func (f explainFlags) explain(s node.Status, operands []string) ([]explanation, error) {
	if len(operands) == 0 {
		return f.identity(s)
	}
	if addr, err := netip.ParseAddr(operands[0]); err == nil {
		e, err := f.address(s, addr.Unmap())
		return []explanation{e}, err
	}
	var found []explanation
	for _, p := range s.Pods {
		if p.Namespace+"/"+p.Name != operands[0] {
			continue
		}
		for _, addr := range p.Bound() {
			e, err := f.address(s, addr)
			if err != nil {
				return nil, err
			}
			e.have(p)
			found = append(found, e)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%q: neither an address nor a pod of this node, as NAMESPACE/POD; gaggle pods lists them", operands[0])
	}
	return found, nil
}

// identity tells where the pods of an identity are.
func (f explainFlags) identity(s node.Status) (found []explanation, err error) {
	text := cmp.Or(f.algo, s.IPAlgo)
	if f.id == (ipam.Identity{}) || text == "" {
		return nil, usageError{errors.New("name an address, a pod, or with --namespace, --app and so on whose addresses to look for, composed as --ip-algo or the NodeConfig says")}
	}
	algo, err := ipam.ParseAlgo(text)
	if err != nil {
		return nil, usageError{fmt.Errorf("--ip-algo: %w", err)}
	}
	for _, p := range s.Pools {
		if p.Prefix.Addr().Is4() {
			continue
		}
		part, err := algo.Prefix(p.Prefix, f.id)
		if err != nil {
			return nil, usageError{fmt.Errorf("pool %q: %w", p.Name, err)}
		}
		e := explanation{Pool: p.Name, Prefix: part}
		e.decode(algo, p.Prefix, part.Addr(), f.id)
		found = append(found, e)
	}
	if len(found) == 0 {
		return nil, errors.New("there is no pool of IPv6")
	}
	return found, nil
}

// address tells what is known of an address.
func (f explainFlags) address(s node.Status, addr netip.Addr) (explanation, error) {
	e := explanation{Address: addr}
	for _, p := range s.Pods {
		if slices.Contains(p.Bound(), addr) {
			e.have(p)
		}
	}
	i := slices.IndexFunc(s.Pools, func(p node.PoolStatus) bool { return p.Prefix.Contains(addr) })
	if i < 0 {
		if e.Pod == nil {
			return e, fmt.Errorf("%s: of no pool of this node, and no pod has it", addr)
		}
		return e, nil
	}
	e.Pool, e.Prefix = s.Pools[i].Name, s.Pools[i].Prefix
	text, id := s.IPAlgo, f.id
	if e.Pod != nil {
		text = e.Pod.IPAlgo
		id = node.Identity(s.Node, node.Pod{
			Key: node.PodKey{Namespace: e.Pod.Namespace, Name: e.Pod.Name}, App: e.Pod.App, Image: e.Pod.Image,
		})
	}
	text = cmp.Or(f.algo, text)
	if text == "" || addr.Is4() {
		return e, nil
	}
	algo, err := ipam.ParseAlgo(text)
	if err == nil {
		err = algo.Fits(e.Prefix)
	}
	if err != nil {
		return e, usageError{fmt.Errorf("--ip-algo: %w", err)}
	}
	e.decode(algo, e.Prefix, addr, id)
	return e, nil
}

// have notes which pod has the address, and as what.
func (e *explanation) have(p node.PodStatus) {
	e.Pod, e.Use = &p, "primary"
	if slices.Contains(p.Extra, e.Address) {
		e.Use = "extra"
	}
	if slices.Contains(p.Anycast, e.Address) {
		e.Use = "anycast"
	}
}

// decode reads the fields, and names those that the identity has made. The algorithm fits.
func (e *explanation) decode(algo ipam.Algo, pool netip.Prefix, addr netip.Addr, id ipam.Identity) {
	values, _ := algo.Decode(pool, addr)
	for _, v := range values {
		field := fieldValue{Field: v.Field.String(), Bits: v.String()}
		if text := id.Text(v.Name); text != "" && v.Is(text) {
			field.Text = text
		}
		e.Fields = append(e.Fields, field)
	}
}

func (e explanation) print(w *tabwriter.Writer) {
	if e.Address.IsValid() {
		fmt.Fprintf(w, "Address\t%s\n", e.Address)
	}
	if e.Pool != "" {
		fmt.Fprintf(w, "Pool\t%s\n", e.Pool)
		fmt.Fprintf(w, "Prefix\t%s\n", e.Prefix)
	}
	switch {
	case e.Pod != nil && e.Pod.Name != "":
		fmt.Fprintf(w, "Pod\t%s/%s, container %s, %s\n", e.Pod.Namespace, e.Pod.Name, short(e.Pod.ContainerID), e.Use)
	case e.Pod != nil:
		fmt.Fprintf(w, "Container\t%s, %s\n", short(e.Pod.ContainerID), e.Use)
	case e.Address.IsValid():
		fmt.Fprintf(w, "Pod\tnone\n")
	}
	for _, f := range e.Fields {
		fmt.Fprintf(w, "%s\t%s\n", f.Field, strings.TrimSpace(f.Bits+" "+f.Text))
	}
}
