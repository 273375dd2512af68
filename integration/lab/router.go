package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/gaggle-cni/gaggle/docs/routers"
)

// A Router is BGP software in a namespace.
type Router struct {
	Kind string // bird or frr
	NS   NS
	name string // of its files
	lab  *Lab
	p    *Process
}

// Edit changes an example configuration: pairs of old and new text, as for [strings.NewReplacer]. An old text that is not
// there is a mistake.
type Edit []string

func (e Edit) apply(text string) (string, error) {
	for i := 0; i+1 < len(e); i += 2 {
		if !strings.Contains(text, e[i]) {
			return "", fmt.Errorf("the example configuration has no %q", e[i])
		}
		text = strings.ReplaceAll(text, e[i], e[i+1])
	}
	return text, nil
}

// StartRouter starts BIRD or FRR on the lab's router, with the example configuration of docs/routers, and waits until it can
// be asked.
func (l *Lab) StartRouter(ctx context.Context, kind string, edit Edit) (*Router, error) {
	example := routers.BIRD
	if kind == "frr" {
		example = routers.FRR
	}
	text, err := edit.apply(example)
	if err != nil {
		return nil, err
	}
	return l.StartRouterOn(ctx, l.Router, kind, kind, text)
}

// StartRouterOn starts BIRD or FRR in any namespace, with any configuration. The name is that of its files.
func (l *Lab) StartRouterOn(ctx context.Context, ns NS, name, kind, config string) (*Router, error) {
	r := &Router{Kind: kind, NS: ns, name: name, lab: l}
	conf := filepath.Join(l.o.Dir, name+".conf")
	if err := os.WriteFile(conf, []byte(config), 0o644); err != nil {
		return nil, err
	}
	start, ready := r.startBIRD, []string{"show", "status"}
	if kind == "frr" {
		start, ready = r.startFRR, []string{"show bgp summary"}
	}
	if err := start(conf); err != nil {
		return nil, err
	}
	return r, r.p.await(ctx, name, func() bool {
		_, err := r.Ask(ctx, ready...)
		return err == nil
	})
}

func (r *Router) startBIRD(conf string) (err error) {
	r.p, err = r.lab.Start(r.NS, r.name, "bird", "-f", "-c", conf, "-s", r.birdSocket())
	return err
}

func (r *Router) birdSocket() string { return filepath.Join(r.lab.o.Dir, r.name+".ctl") }

// startFRR runs FRR's daemons in a mount namespace with a /run/frr of their own, configuration included, which they read as
// the user frr; so several labs, and an FRR of the
// machine's, do not meet.
func (r *Router) startFRR(conf string) (err error) {
	const script = `mkdir -p /run/frr && mount -t tmpfs tmpfs /run/frr && chown frr:frr /run/frr && install -o frr "$0" /run/frr/bgpd.conf &&
		{ /usr/lib/frr/zebra -f /dev/null -A 127.0.0.1 & } &&
		until [ -S /run/frr/zserv.api ]; do sleep 0.05; done &&
		exec /usr/lib/frr/bgpd -f /run/frr/bgpd.conf -A 127.0.0.1`
	r.p, err = r.lab.Start(r.NS, r.name, "unshare", "--mount", "--propagation", "private", "sh", "-c", script, conf)
	return err
}

// Ask runs a command of the router's own command line: words for birdc, one string for vtysh.
func (r *Router) Ask(ctx context.Context, args ...string) (string, error) {
	if r.Kind == "bird" {
		return output(ctx, append([]string{"birdc", "-s", r.birdSocket()}, args...)...)
	}
	return output(ctx, append([]string{
		"nsenter", fmt.Sprintf("--target=%d", r.p.PID()), "--mount", "--net", "vtysh", "-c",
	}, args...)...)
}

// A KernelRoute is a route of the router's kernel.
type KernelRoute struct {
	Dst      string
	Gateway  netip.Addr
	Protocol string
	Dev      string
	Nexthops []struct{ Gateway netip.Addr }
}

// Hops returns the next hops.
func (r KernelRoute) Hops() (hops []netip.Addr) {
	if r.Gateway.IsValid() {
		return []netip.Addr{r.Gateway}
	}
	for _, h := range r.Nexthops {
		hops = append(hops, h.Gateway)
	}
	return hops
}

// KernelRoute returns the namespace's route to exactly this prefix; ok is false when there is none.
func (n NS) KernelRoute(ctx context.Context, prefix netip.Prefix) (r KernelRoute, ok bool, err error) {
	family := "-4"
	if prefix.Addr().Is6() {
		family = "-6"
	}
	out, err := output(ctx, "ip", "-n", n.Name, family, "-j", "route", "show", "exact", prefix.String())
	if err != nil {
		return r, false, err
	}
	var routes []KernelRoute
	if err := json.Unmarshal([]byte(out), &routes); err != nil {
		return r, false, fmt.Errorf("routes of %s: %w", n.Name, err)
	}
	if len(routes) == 0 {
		return r, false, nil
	}
	return routes[0], true, nil
}

// AwaitRoute waits until the router's kernel has a route to the prefix.
func (l *Lab) AwaitRoute(ctx context.Context, prefix netip.Prefix) (KernelRoute, error) {
	var route KernelRoute
	err := WaitFor(ctx, fmt.Sprintf("the router's route to %s", prefix), func() bool {
		r, ok, err := l.Router.KernelRoute(ctx, prefix)
		route = r
		return err == nil && ok
	})
	return route, err
}
