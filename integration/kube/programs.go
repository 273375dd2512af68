package kube

import (
	"context"
	"crypto/sha256"
	_ "embed" // for the module files
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// The modules that the programs are built from. `go get` in a copy of one, renamed to go.mod and go.sum, changes a version.
var (
	//go:embed modules/kubernetes.mod
	kubernetesMod []byte
	//go:embed modules/kubernetes.sum
	kubernetesSum []byte
	//go:embed modules/containerd.mod
	containerdMod []byte
	//go:embed modules/containerd.sum
	containerdSum []byte
)

// cacheDir is the environment variable for where built programs are kept.
const cacheDir = "GAGGLE_KUBE_CACHE"

// A source is a module whose tools are what is to be built.
type source struct {
	module   string // of which the version is taken
	mod, sum []byte
	version  string // the variable to link the version into
}

func kubernetesSource() source {
	return source{"k8s.io/kubernetes", kubernetesMod, kubernetesSum, "k8s.io/component-base/version.gitVersion"}
}

func containerdSource() source {
	return source{
		"github.com/containerd/containerd/v2", containerdMod, containerdSum,
		"github.com/containerd/containerd/v2/version.Version",
	}
}

// programs are the directories where a cluster's programs are.
type programs struct {
	kubernetes string
	containerd string // empty: the distribution's
	guard      string
}

// kube returns the path of one of Kubernetes' programs.
func (p programs) kube(name string) string { return filepath.Join(p.kubernetes, name) }

// findPrograms finds what was built before, or builds it.
func findPrograms(ctx context.Context, containerd int, logf func(string, ...any)) (p programs, err error) {
	if p.kubernetes, err = kubernetesSource().cached(ctx, logf); err != nil {
		return p, err
	}
	if containerd == 2 {
		p.containerd, err = containerdSource().cached(ctx, logf)
	}
	return p, err
}

// buildGuest builds our own programs of the cluster into dir.
func (p *programs) buildGuest(dir string) error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	if err := lab.Build(root, dir, "./integration/kube/guard"); err != nil {
		return err
	}
	p.guard = filepath.Join(dir, "guard")
	return lab.BuildStatic(root, dir, "./integration/kube/guest", "./deploy/ocitar")
}

// moduleRoot is where our go.mod is.
func moduleRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find go.mod: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}

// cached returns the directory with the module's programs, which it builds if they are not there.
func (s source) cached(ctx context.Context, logf func(string, ...any)) (bin string, err error) {
	cache := os.Getenv(cacheDir)
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find the cache directory, or set %s: %w", cacheDir, err)
		}
		cache = filepath.Join(user, "gaggle-kube")
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(ctx, filepath.Join(cache, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	dir := filepath.Join(cache, s.key())
	bin = filepath.Join(dir, "bin")
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	logf("building %s %s, once, which may take a quarter of an hour", s.module, s.release())
	// What is cut off midway is not there under its name.
	aside := dir + ".building"
	if err := errors.Join(os.RemoveAll(aside), os.RemoveAll(dir)); err != nil {
		return "", err
	}
	if err := s.build(ctx, aside); err != nil {
		return "", err
	}
	return bin, os.Rename(aside, dir)
}

// build builds the module's tools into dir/bin.
func (s source) build(ctx context.Context, dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		return err
	}
	for name, data := range map[string][]byte{"go.mod": s.mod, "go.sum": s.sum} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w "+s.linkFlags(), "-o=bin/", "tool")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", s.module, err, out)
	}
	return nil
}

// linkFlags give the programs their version. Kubernetes' clients look at the minor version of the server apart.
func (s source) linkFlags() string {
	pkg, _, _ := strings.Cut(s.version, ".git")
	flags := "-X " + s.version + "=" + s.release()
	if pkg != s.version {
		parts := strings.SplitN(strings.TrimPrefix(s.release(), "v"), ".", 3)
		flags += " -X " + pkg + ".gitMajor=" + parts[0] + " -X " + pkg + ".gitMinor=" + parts[1]
	}
	return flags
}

// release is the version of the main module, as in v1.36.3.
func (s source) release() string {
	match := regexp.MustCompile(`(?m)^(?:require|\t)\s*` + regexp.QuoteMeta(s.module) + `\s+(v\S+)`).FindSubmatch(s.mod)
	if match == nil {
		panic("kube: no version of " + s.module)
	}
	return string(match[1])
}

// key names what the programs depend on.
func (s source) key() string {
	sum := sha256.New()
	sum.Write(s.mod)
	sum.Write(s.sum)
	return strings.Join([]string{
		strings.Split(s.module, "/")[1], s.release(), runtime.GOARCH, runtime.Version(), hex.EncodeToString(sum.Sum(nil)[:4]),
	}, "-")
}

// lock keeps other processes from building the same, which it waits for.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	err = lab.WaitFor(ctx, "another build, which holds "+path, func() bool {
		return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
	})
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { f.Close() }, nil
}
