package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// Bounds of the story's waits.
const (
	routeTimeout = 20 * time.Second
	pingTimeout  = 3 * time.Second
	silence      = 500 * time.Millisecond // after which an address counts as not answering
)

// A story shows the network step by step.
type story struct {
	bin, dir, prefix string
	out              io.Writer

	lab    *lab.Lab
	router *lab.Process
	step   int
	pods   []pod
}

// A pod is an attached pod.
type pod struct {
	*lab.Pod
	node   *lab.Node
	result lab.Result
}

func (s *story) say(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

// title begins a step.
func (s *story) title(format string, args ...any) {
	s.step++
	s.say("\n%d. "+format, append([]any{s.step}, args...)...)
}

// tell is the whole story.
func (s *story) tell(ctx context.Context) error {
	for _, part := range []func(context.Context) error{
		s.network, s.sessions, s.attach, s.table, s.pings, s.crash, s.end,
	} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *story) network(context.Context) error {
	s.title("A small network on this machine, in network namespaces (%s-*).", s.prefix)
	s.say(`
   client ────────────── router ───────────────┬── node1
   %-21s AS %-18d │   %s, %s
   %-21s %-21s │
   %-21s %-21s └── node2
   %-21s %-21s     %s, %s
`, lab.Client4, lab.RouterASN, lab.Node4(1), lab.Node6(1), lab.Client6, lab.Router4, "", lab.Router6, "", "", lab.Node4(2), lab.Node6(2))
	s.say("   The nodes know nothing but a default route to the router. Neither the router nor the client knows of any pod.")
	return nil
}

func (s *story) sessions(ctx context.Context) (err error) {
	s.title("The router starts GoBGP, each node starts `gaggle node` (AS %d) with a pool of addresses a family.", lab.NodeASN)
	s.router, err = s.lab.Start(s.lab.Router, "router", filepath.Join(s.bin, "demo"), "-router", "-dir", filepath.Join(s.dir, "router"))
	if err != nil {
		return err
	}
	for _, n := range s.lab.Nodes {
		// One session over each family, each with the prefixes of both.
		if err := n.Start(ctx, n.Config(lab.Peering{Over4: n.Number == 1, Over6: n.Number == 2})); err != nil {
			return err
		}
		for _, pool := range []string{lab.Pool4(n.Number), lab.Pool6(n.Number)} {
			if err := s.await(ctx, pool); err != nil {
				return err
			}
		}
		out, err := n.Gaggle(ctx, "peers")
		if err != nil {
			return err
		}
		s.quote("gaggle peers    # on "+n.Name, out)
	}
	return nil
}

// await waits until the router has a route.
func (s *story) await(ctx context.Context, prefix string) error {
	ctx, cancel := context.WithTimeout(ctx, routeTimeout)
	defer cancel()
	if _, err := s.lab.AwaitRoute(ctx, netip.MustParsePrefix(prefix)); err != nil {
		return fmt.Errorf("%w; the router says:\n%s", err, s.router.Tail(20))
	}
	return nil
}

func (s *story) attach(ctx context.Context) error {
	s.title("Two pods on each node. As a container runtime does, we execute the CNI plugin with ADD.")
	s.say("")
	for _, n := range s.lab.Nodes {
		for _, name := range []string{"a", "b"} {
			p, err := n.Pod(ctx, name)
			if err != nil {
				return err
			}
			r, err := p.Add(ctx)
			if err != nil {
				return fmt.Errorf("ADD of pod %s on %s: %w", name, n.Name, err)
			}
			s.pods = append(s.pods, pod{p, n, r})
			s.say("   pod %s on %s: %-15s %-38s in %s", name, n.Name, r.Addr(false), r.Addr(true), r.Took.Round(100*time.Microsecond))
		}
	}
	out, err := s.pods[0].NS.Exec(ctx, "ip", "-brief", "addr")
	if err != nil {
		return err
	}
	s.quote("ip -brief addr    # in pod a on node1", out)
	return nil
}

func (s *story) table(ctx context.Context) error {
	s.title("What the router knows now: it learned each pool by BGP and has put it into its kernel.")
	for _, family := range []string{"-4", "-6"} {
		out, err := s.lab.Router.Exec(ctx, "ip", family, "route", "show", "proto", "bgp")
		if err != nil {
			return err
		}
		s.quote("ip "+family+" route show proto bgp    # on the router", out)
	}
	return nil
}

func (s *story) pings(ctx context.Context) error {
	s.title("Who can talk to whom. Nothing is translated and nothing is tunnelled: both ends see each other's own address.")
	s.say("")
	a1, a2 := s.pods[0], s.pods[2]
	for _, six := range []bool{false, true} {
		client := lab.Client4
		if six {
			client = lab.Client6
		}
		for _, p := range []struct {
			what string
			from lab.NS
			to   netip.Addr
		}{
			{"client → pod a on node1", s.lab.Client, a1.result.Addr(six)},
			{"client → pod a on node2", s.lab.Client, a2.result.Addr(six)},
			{"pod a on node1 → pod b on node1", a1.NS, s.pods[1].result.Addr(six)},
			{"pod a on node1 → pod a on node2", a1.NS, a2.result.Addr(six)},
			{"pod a on node2 → client", a2.NS, netip.MustParseAddr(client)},
		} {
			if err := s.ping(ctx, p.what, p.from, p.to); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *story) ping(ctx context.Context, what string, from lab.NS, to netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	took, err := lab.Ping(ctx, from, to)
	if err != nil {
		return fmt.Errorf("ping %s: %w", what, err)
	}
	s.say("   %-32s %-38s answers in %s", what, to, took.Round(10*time.Microsecond))
	return nil
}

// crash shows that traffic does not depend on the node process.
func (s *story) crash(ctx context.Context) error {
	n, p := s.lab.Nodes[0], s.pods[0]
	s.title("The node process of node1 is killed with SIGKILL and started again.")
	s.say("")
	stop, err := lab.Probe(s.lab.Client, p.result.Addr(true))
	if err != nil {
		return err
	}
	n.Process().Kill()
	if err := s.ping(ctx, "client → pod a, process dead", s.lab.Client, p.result.Addr(false)); err != nil {
		return err
	}
	if err := n.Restart(ctx); err != nil {
		return err
	}
	// The router has forgotten nothing (RFC 4724) when the session is back.
	established := func() bool {
		out, err := n.Gaggle(ctx, "peers")
		return err == nil && strings.Contains(out, "Established")
	}
	wait, cancel := context.WithTimeout(ctx, routeTimeout)
	defer cancel()
	if err := lab.WaitFor(wait, "the session of node1", established); err != nil {
		return err
	}
	loss, err := stop()
	if err != nil {
		return err
	}
	if loss.Lost > 0 {
		return fmt.Errorf("%d of %d pings were lost over the restart", loss.Lost, loss.Sent)
	}
	s.say("   All the while the client pinged it 50 times a second: %d sent, none lost.", loss.Sent)
	out, err := n.Gaggle(ctx, "pods")
	if err != nil {
		return err
	}
	s.quote("gaggle pods    # on node1: what it had not forgotten", out)
	return nil
}

// end shows that nothing of a deleted pod stays.
func (s *story) end(ctx context.Context) error {
	p := s.pods[0]
	s.title("Pod a on node1 ends: the runtime calls the plugin with DEL.")
	if err := p.Remove(ctx); err != nil {
		return err
	}
	s.pods = s.pods[1:]
	for _, six := range []bool{false, true} {
		addr := p.result.Addr(six)
		quiet, cancel := context.WithTimeout(ctx, silence)
		_, err := lab.Ping(quiet, s.lab.Client, addr)
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil {
			return fmt.Errorf("%s still answers", addr)
		}
		prefix := netip.PrefixFrom(addr, addr.BitLen())
		if _, ok, err := p.node.NS.KernelRoute(ctx, prefix); err != nil || ok {
			return fmt.Errorf("node1 still has a route to %s: %w", prefix, err)
		}
	}
	s.say("\n   Its addresses answer no more; links, routes and neighbours are gone from node1. Its neighbour goes on:")
	return s.ping(ctx, "client → pod b on node1", s.lab.Client, s.pods[0].result.Addr(true))
}

// quote shows a command and what it printed.
func (s *story) quote(command, out string) {
	s.say("\n   $ %s", command)
	for line := range strings.Lines(out) {
		s.say("   %s", strings.TrimRight(line, " \n"))
	}
}

// lastWords shows the ends of the logs.
func (s *story) lastWords() {
	if s.router != nil {
		s.say("\nThe router's last words:\n%s", s.router.Tail(10))
	}
	for _, n := range s.lab.Nodes {
		if n.Process() != nil {
			s.say("\n%s's last words:\n%s", n.Name, n.Process().Tail(10))
		}
	}
}

// lookAround tells how to go on with a network that was kept.
func (s *story) lookAround() {
	node1 := s.lab.Nodes[0]
	gaggle := filepath.Join(s.bin, "gaggle")
	s.say("\nEverything is still there. Look around, as root:\n")
	for _, line := range []string{
		"ip netns list",
		fmt.Sprintf("ip netns exec %s %s status --run-dir %s", node1.NS.Name, gaggle, node1.RunDir),
		fmt.Sprintf("ip netns exec %s %s announcements --run-dir %s", node1.NS.Name, gaggle, node1.RunDir),
		fmt.Sprintf("ip netns exec %s ip -6 route", node1.NS.Name),
		fmt.Sprintf("gobgp --target unix://%s neighbor        # Debian: gobgpd", filepath.Join(node1.RunDir, "gobgp.sock")),
		fmt.Sprintf("gobgp --target unix://%s global rib      # the router", filepath.Join(s.dir, "router/gobgp.sock")),
	} {
		s.say("   %s", line)
	}
	if len(s.pods) > 0 {
		s.say("   ip netns exec %s ping %s", s.lab.Client.Name, s.pods[0].result.Addr(true))
	}
	s.say("\nConfiguration and logs are in %s. This removes it all:\n\n   %s -remove", s.dir, filepath.Join(s.bin, "demo"))
}
