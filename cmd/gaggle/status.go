package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/gaggle-cni/gaggle/node"
)

// askTimeout bounds a question to the node process.
const askTimeout = 10 * time.Second

// A view shows a part of the status.
type view struct {
	// part selects what -o json prints.
	part func(node.Status) any
	text func(w *tabwriter.Writer, s node.Status)
	// problems, if not nil, are why the command fails although it has shown everything.
	problems func(node.Status) []string
}

// show asks the node process and prints a part of what it says.
func (c *cmdline) show(ctx context.Context, v view) error {
	runDir, asJSON, err := c.question()
	if err != nil {
		return err
	}
	s, err := askStatus(ctx, runDir)
	if err != nil {
		return err
	}
	if err := v.print(c.stdout, s, asJSON); err != nil {
		return err
	}
	if v.problems != nil && len(v.problems(s)) > 0 {
		return errProblems
	}
	return nil
}

// question reads the flags of a command that only asks the node process.
func (c *cmdline) question() (runDir string, asJSON bool, err error) {
	dir := c.flags.String("run-dir", defaultRunDir, "`DIR` of the node process's sockets and state")
	output := c.flags.String("o", "text", "output `FORMAT`: text or json")
	if err := c.parse(); err != nil {
		return "", false, err
	}
	return *dir, *output == "json", checkOutput(*output)
}

func (v view) print(out io.Writer, s node.Status, asJSON bool) error {
	if asJSON {
		return printJSON(out, v.part(s))
	}
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	v.text(tw, s)
	return tw.Flush()
}

// checkOutput refuses a format that -o does not know.
func checkOutput(format string) error {
	if format != "text" && format != "json" {
		return usageError{fmt.Errorf("-o %q: want text or json", format)}
	}
	return nil
}

func printJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// askStatus reads the status from the admin socket.
func askStatus(ctx context.Context, runDir string) (s node.Status, err error) {
	return s, ask(ctx, runDir, "/status", &s)
}

// ask reads an answer of the node process.
func ask(ctx context.Context, runDir, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	socket := filepath.Join(runDir, adminSocket)
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://node"+path, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no node process serves %s: is gaggle node running here, with this --run-dir?", socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s is for root only: try sudo", socket)
	case err != nil:
		return fmt.Errorf("ask the node process: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("ask the node process: %s", resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("read the node process's answer: %w", err)
	}
	return nil
}

func runStatus(ctx context.Context, c *cmdline) error {
	return c.show(ctx, view{
		part:     func(s node.Status) any { return s },
		problems: node.Status.Problems,
		text: func(w *tabwriter.Writer, s node.Status) {
			established := 0
			for _, p := range s.Peers {
				if p.Established() {
					established++
				}
			}
			fmt.Fprintf(w, "Node\t%s\n", s.Node)
			fmt.Fprintf(w, "Version\t%s, up %s\n", s.Version, age(s.Time, s.Started))
			if s.BGP != nil {
				fmt.Fprintf(w, "BGP\tAS %d, router id %s\n", s.BGP.ASN, s.BGP.RouterID)
				fmt.Fprintf(w, "Peers\t%d of %d established\n", established, len(s.Peers))
			} else {
				fmt.Fprintf(w, "BGP\toff\n")
			}
			if k := s.Kubernetes; k != nil {
				fmt.Fprintf(w, "NodeConfigs\t%s\n", cmp.Or(strings.Join(k.NodeConfigs, ", "), "none"))
			}
			fmt.Fprintf(w, "Pods\t%d\n", len(s.Pods))
			for _, p := range s.Pools {
				fmt.Fprintf(w, "Pool %s\t%s, %d used\n", p.Name, p.Prefix, p.Used)
			}
			fmt.Fprintf(w, "Last pass\t%s ago, took %s\n", age(s.Time, s.Pass.Time), s.Pass.Took)
			problems := s.Problems()
			if len(problems) == 0 {
				fmt.Fprintf(w, "Network\tas it must be\n")
			}
			for _, e := range problems {
				fmt.Fprintf(w, "Problem\t%s\n", e)
			}
		},
	})
}

// A list is what the other commands print as JSON.
func list(s node.Status, key string, items any) any {
	return map[string]any{"node": s.Node, "time": s.Time, key: items}
}

func runPods(ctx context.Context, c *cmdline) error {
	return c.show(ctx, view{
		part: func(s node.Status) any { return list(s, "pods", s.Pods) },
		text: func(w *tabwriter.Writer, s node.Status) {
			fmt.Fprintln(w, "NAMESPACE\tPOD\tINTERFACE\tADDRESSES\tHOST INTERFACE\tSTATE\tAGE")
			for _, p := range s.Pods {
				var addrs []string
				for _, a := range p.Bound() {
					addrs = append(addrs, a.String())
				}
				name := p.Name
				if name == "" {
					name = "(" + short(p.ContainerID) + ")"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", dash(p.Namespace), name, p.IfName, strings.Join(addrs, ","),
					p.HostIf, p.State, age(s.Time, p.Created))
			}
		},
	})
}

func runAnnouncements(ctx context.Context, c *cmdline) error {
	return c.show(ctx, view{
		part: func(s node.Status) any { return list(s, "announcements", s.Announcements) },
		text: func(w *tabwriter.Writer, s node.Status) {
			fmt.Fprintln(w, "PREFIX\tKIND\tCOMMUNITIES\tSTATE")
			for _, a := range s.Announcements {
				state := "announced to " + sessions(a.Sessions)
				if a.Withheld != "" {
					state = "withheld: " + a.Withheld
				}
				communities := strings.Join(append(a.Communities, a.LargeCommunities...), " ")
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", a.Prefix, a.Kind, dash(communities), state)
			}
		},
	})
}

func runPeers(ctx context.Context, c *cmdline) error {
	return c.show(ctx, view{
		part: func(s node.Status) any { return list(s, "peers", s.Peers) },
		text: func(w *tabwriter.Writer, s node.Status) {
			fmt.Fprintln(w, "PEER\tADDRESS\tAS\tSTATE\tSINCE\tSENT\tRECEIVED\tACCEPTED\tRESTART\tLAST ERROR")
			for _, p := range s.Peers {
				restart := "no"
				if p.GracefulRestart {
					restart = "graceful"
				}
				fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%d\t%d\t%d\t%s\t%s\n", p.Name, p.Address, p.ASN, p.State,
					age(s.Time, p.Since), p.Advertised, p.Received, p.Accepted, restart, dash(p.LastError))
			}
		},
	})
}

func runRoutes(ctx context.Context, c *cmdline) error {
	return c.show(ctx, view{
		part: func(s node.Status) any { return list(s, "routes", s.Routes) },
		text: func(w *tabwriter.Writer, s node.Status) {
			fmt.Fprintln(w, "PREFIX\tKIND\tVIA\tSOURCE\tSTATE")
			for _, r := range s.Routes {
				via := r.Link
				if len(r.NextHop) > 0 {
					via = strings.Join(r.NextHop, ",")
				}
				state := "installed"
				if r.Error != "" {
					state = r.Error
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.Prefix, r.Kind, dash(via), dash(r.Source), state)
			}
		},
	})
}

func sessions(n int) string {
	switch n {
	case 0:
		return "no session"
	case 1:
		return "1 session"
	}
	return fmt.Sprintf("%d sessions", n)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func short(id string) string { return id[:min(len(id), 12)] }

// age says how long ago t was, in one unit that fits.
func age(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	d := now.Sub(t)
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
