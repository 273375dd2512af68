package lab

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Build builds programs into a directory: args are those of go build, packages included, from the module's root.
func Build(root, dir string, args ...string) error { return build(root, dir, nil, args) }

// BuildStatic is Build for programs that are to run without the machine's libraries.
func BuildStatic(root, dir string, args ...string) error {
	return build(root, dir, []string{"CGO_ENABLED=0"}, args)
}

func build(root, dir string, env, args []string) error {
	cmd := exec.Command("go", append([]string{"build", "-o=" + dir + "/"}, args...)...) // a later -o takes its place
	cmd.Dir = root
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
