package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/gaggle-cni/gaggle/node"
)

// fits refuses a configuration that would cut this node off, before anything is changed. Once a process of this boot has
// made the pools' routes, what did not fit then is not new, and what has come to not fit since (a subnet, say) must not keep
// a working node from its sessions and calls: it is in the log and the status.
func (p *process) fits(ctx context.Context, c node.Config) error {
	w, err := node.Survey(ctx, c, p.dp)
	if err != nil {
		return err
	}
	misfits := w.Misfits()
	if len(misfits) == 0 {
		return nil
	}
	links, err := p.dp.LinkNames(ctx)
	if err != nil {
		return err
	}
	made, err := p.dp.Routes().List(ctx)
	if err != nil {
		return err
	}
	var wrong, missing []error
	for _, m := range misfits {
		switch {
		case m.Pool == "" && len(made) == 0:
			missing = append(missing, fmt.Errorf("--node-ip: %w; it has %s", m, describe(links)))
		case m.Pool != "" && made[m.Prefix].Kind != node.RouteAggregate:
			wrong = append(wrong, fmt.Errorf("spec.pools: %w%s", m, on(links[m.Own.Addr()])))
		}
	}
	if len(wrong) > 0 {
		return usageError{fmt.Errorf("%s does not fit this node:\n%w\n"+
			"The node could not reach what is there. Choose a prefix that is used for nothing else; an address that another "+
			"network plugin has left behind can be removed", cmp.Or(p.flags.config, "the configuration"), errors.Join(append(wrong, missing...)...))}
	}
	return errors.Join(missing...) // not the usage's error: the address may be on its way
}

func on(link string) string {
	if link == "" {
		return ""
	}
	return " on " + link
}

// describe lists the node's addresses.
func describe(links map[netip.Addr]string) string {
	if len(links) == 0 {
		return "none"
	}
	texts := make([]string, 0, len(links))
	for _, addr := range slices.SortedFunc(maps.Keys(links), netip.Addr.Compare) {
		texts = append(texts, addr.String()+on(links[addr]))
	}
	return strings.Join(texts, ", ")
}
