package kube

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// stateTimeout bounds what is asked after a failure.
const stateTimeout = 30 * time.Second

// writeState writes to the logs how things stand, for whoever looks for the cause of a failure.
func (c *Cluster) writeState() {
	if c.lab == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stateTimeout)
	defer cancel()
	var b strings.Builder
	add := func(what, out string, err error) {
		fmt.Fprintf(&b, "# %s\n%s\n", what, out)
		if err != nil {
			fmt.Fprintf(&b, "%v\n", err)
		}
	}
	for _, args := range []string{"get nodes,pods -A -o wide", "describe nodes,pods", "get events -A"} {
		out, err := c.Kubectl(ctx, append(strings.Fields(args), "--request-timeout=5s")...)
		add("kubectl "+args, out, err)
	}
	for _, t := range c.ToRs {
		ask := []string{"show", "protocols"}
		if t.Kind == "frr" {
			ask = []string{"show bgp summary"}
		}
		out, err := t.Ask(ctx, ask...)
		add(t.NS.Name, out, err)
	}
	for _, ns := range c.lab.Namespaces() {
		for _, args := range []string{"-4 route", "-6 route"} {
			out, err := ns.Exec(ctx, append([]string{"ip"}, strings.Fields(args)...)...)
			add(ns.Name+": ip "+args, out, err)
		}
	}
	// What cannot be written is only missed.
	_ = os.WriteFile(filepath.Join(c.logs(), "state.txt"), []byte(b.String()), 0o644)
}
