// Command guard removes what a cluster for tests has made as soon as the process that made it closes the guard's standard
// input, or ends in whatever way: a test binary that is interrupted, killed or out of time runs no clean-up of its own.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/gaggle-cni/gaggle/integration/kube"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: guard PREFIX DIR")
		os.Exit(2)
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // an error is an end as well
	if err := kube.Remove(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "guard:", err)
		os.Exit(1)
	}
}
