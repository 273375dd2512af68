package lab

import (
	"fmt"
	"os/exec"
	"strings"
)

// Build builds programs into a directory: args are those of go build, packages included, from the module's root.
func Build(root, dir string, args ...string) error {
	cmd := exec.Command("go", append([]string{"build", "-o=" + dir + "/"}, args...)...) // a later -o takes its place
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
