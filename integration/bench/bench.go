package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// A candidate is a way and what it took.
type candidate struct {
	name  string
	way   way
	share int // one round in so many; the slowest would hold up everything

	add, del           []time.Duration // each call, one after the other
	addBurst, delBurst []time.Duration // all calls at once
	addOne, delOne     []time.Duration // each call of those
}

type bench struct {
	lab        *lab.Lab
	node       *lab.Node
	plan       plan
	candidates []*candidate
}

// measure takes turns.
func (b *bench) measure(ctx context.Context) error {
	if err := b.turns(b.plan.rounds, func(c *candidate) error { return b.single(ctx, c) }); err != nil {
		return err
	}
	return b.turns(b.plan.bursts, func(c *candidate) error { return b.burst(ctx, c) })
}

// turns lets each candidate do its share of the rounds.
func (b *bench) turns(rounds int, do func(*candidate) error) error {
	for round := range rounds {
		for _, c := range b.candidates {
			if round%c.share != 0 {
				continue
			}
			if err := do(c); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	return nil
}

func timed(do func() error) (time.Duration, error) {
	start := time.Now()
	err := do()
	return time.Since(start), err
}

func (b *bench) single(ctx context.Context, c *candidate) error {
	ns, err := b.lab.Namespace(ctx, "one")
	if err != nil {
		return err
	}
	added, err := timed(func() error { return c.way.add(ns) })
	if err != nil {
		return err
	}
	deleted, err := timed(func() error { return c.way.del(ns) })
	if err != nil {
		return err
	}
	c.add, c.del = append(c.add, added), append(c.del, deleted)
	return b.lab.RemoveNamespace(ns)
}

func (b *bench) burst(ctx context.Context, c *candidate) error {
	namespaces := make([]lab.NS, b.plan.parallel)
	for i := range namespaces {
		var err error
		if namespaces[i], err = b.lab.Namespace(ctx, fmt.Sprintf("many%d", i)); err != nil {
			return err
		}
	}
	added, each, err := atOnce(namespaces, c.way.add)
	if err != nil {
		return err
	}
	c.addBurst, c.addOne = append(c.addBurst, added), append(c.addOne, each...)
	deleted, each, err := atOnce(namespaces, c.way.del)
	if err != nil {
		return err
	}
	c.delBurst, c.delOne = append(c.delBurst, deleted), append(c.delOne, each...)
	for _, ns := range namespaces {
		if err := b.lab.RemoveNamespace(ns); err != nil {
			return err
		}
	}
	return nil
}

// atOnce makes a call for each namespace at once, and tells how long all of them and each of them took.
func atOnce(namespaces []lab.NS, call func(lab.NS) error) (all time.Duration, each []time.Duration, err error) {
	each = make([]time.Duration, len(namespaces))
	var g errgroup.Group
	all, err = timed(func() error {
		for i, ns := range namespaces {
			g.Go(func() (err error) {
				each[i], err = timed(func() error { return call(ns) })
				return err
			})
		}
		return g.Wait()
	})
	return all, each, err
}

// report prints what was measured and how far it is from what is aimed at.
func (b *bench) report(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "milliseconds\tADD p50\tp99\tDEL p50\tp99\t%d ADDs\teach p50\tp99\t%[1]d DELs\teach p50\tp99\t\n", b.plan.parallel)
	for _, c := range b.candidates {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", c.name,
			ms(c.add, 0.5), ms(c.add, 0.99), ms(c.del, 0.5), ms(c.del, 0.99),
			ms(c.addBurst, 0.5), ms(c.addOne, 0.5), ms(c.addOne, 0.99),
			ms(c.delBurst, 0.5), ms(c.delOne, 0.5), ms(c.delOne, 0.99))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	ours, four, dual, least := b.candidates[0], b.candidates[1], b.candidates[2], b.candidates[3]
	begin, empty := b.candidates[4], b.candidates[5]
	t = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nwhat\tmeasured\taim\t")
	goal := func(what string, value, aim float64, format, sign string) {
		reached := value <= aim
		if sign == "at least" {
			reached = value >= aim
		}
		fmt.Fprintf(t, "%s\t"+format+"\t%s "+format+"\t%s\n", what, value, sign, aim, map[bool]string{true: "reached", false: "missed"}[reached])
	}
	p50 := func(d []time.Duration) float64 { return share(d, 0.5).Seconds() }
	goal("ADD p50, of ptp with IPv4 only", p50(ours.add)/p50(four.add), 0.8, "%.2f", "at most")
	goal("ADD p50 of ptp with both families, of ours", p50(dual.add)/p50(ours.add), 200, "%.0f", "at least")
	goal("ADD p50 beyond netlink alone, ms", 1000*(p50(ours.add)-p50(least.add)), 4, "%.1f", "at most")
	goal(fmt.Sprintf("%d ADDs at once, of ptp with IPv4 only", b.plan.parallel), p50(ours.addBurst)/p50(four.addBurst), 0.7, "%.2f", "at most")
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\nOf the time beyond netlink alone, the start of the plugin takes %.1f ms; that of a Go program that does nothing takes %.1f ms.\n",
		1000*p50(begin.add), 1000*p50(empty.add))
	return err
}

// share returns the quantile of some durations.
func share(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(d))
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}

func ms(d []time.Duration, q float64) string {
	return strconv.FormatFloat(float64(share(d, q).Microseconds())/1000, 'f', 1, 64)
}

// look attaches many pods and tells what the node process needs for them.
func (b *bench) look(ctx context.Context, out io.Writer) error {
	before, err := b.node.Process().Resident()
	if err != nil {
		return err
	}
	for i := range b.plan.pods {
		p, err := b.node.Pod(ctx, fmt.Sprintf("p%d", i))
		if err != nil {
			return err
		}
		if _, err := p.Add(ctx); err != nil {
			return err
		}
	}
	used, err := b.cpu()
	if err != nil {
		return err
	}
	idle := time.Duration(b.plan.idle) * time.Second
	select {
	case <-time.After(idle):
	case <-ctx.Done():
		return ctx.Err()
	}
	now, err := b.cpu()
	if err != nil {
		return err
	}
	after, err := b.node.Process().Resident()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\nnode process: %d KiB resident without pods, %d KiB with %d (aim: 61440 at most); %.2f %% of a core over %v without calls (aim: 0.5 at most)\n",
		before, after, b.plan.pods, 100*(now-used).Seconds()/idle.Seconds(), idle)
	return nil
}

// cpu returns the time that the process has computed (proc_pid_stat(5), utime and stime).
func (b *bench) cpu() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", b.node.Process().PID()))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const utime, stime, ticks = 14 - 3, 15 - 3, 100 // USER_HZ is 100 everywhere
	user, err := strconv.Atoi(fields[utime])
	if err != nil {
		return 0, err
	}
	system, err := strconv.Atoi(fields[stime])
	return time.Duration(user+system) * time.Second / ticks, err
}
