package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"text/tabwriter"

	"github.com/gaggle-cni/gaggle/node"
)

// runConfig shows the effective NodeConfig. What is not written in any document has its default, see docs/reference.md.
func runConfig(ctx context.Context, c *cmdline) error {
	runDir, asJSON, err := c.question()
	if err != nil {
		return err
	}
	var d node.Document
	if err := ask(ctx, runDir, "/config", &d); err != nil {
		return err
	}
	if asJSON {
		if err := printJSON(c.stdout, d); err != nil {
			return err
		}
	} else {
		fmt.Fprint(c.stdout, d.Text)
		if len(d.Origins) > 0 {
			fmt.Fprint(c.stdout, "\n# where each value is from\n")
			tw := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
			for _, path := range slices.Sorted(maps.Keys(d.Origins)) {
				fmt.Fprintf(tw, "# %s\t%s\n", path, d.Origins[path])
			}
			if err := tw.Flush(); err != nil {
				return err
			}
		}
	}
	if d.Error != "" {
		fmt.Fprintf(c.stderr, "gaggle config: the newest configuration is not in force: %s\n", d.Error)
		return errProblems
	}
	return nil
}
