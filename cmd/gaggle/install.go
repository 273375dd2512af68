package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gaggle-cni/gaggle/cni/wire"
)

// Intervals of the installer.
const (
	readyInterval = 200 * time.Millisecond // between questions to a node process that is not ready yet
	watchInterval = 10 * time.Second       // between looks at files that somebody may have removed
	pluginTimeout = 5 * time.Second        // of one call of a plugin
)

// pluginName is the type of our plugin in a conflist, and so the name of its file.
const pluginName = "gaggle"

// An installer puts plugin and conflist where a container runtime looks for them.
type installer struct {
	c                *cmdline
	runDir           string
	binDir, confDir  string
	name             string // of the conflist
	plugin, conflist string // the sources; of the conflist maybe none
	wait             time.Duration

	said map[string]bool // warnings are given once
}

func (i *installer) register(c *cmdline) {
	i.c, i.said = c, make(map[string]bool)
	c.flags.StringVar(&i.runDir, "run-dir", defaultRunDir, "`DIR` of the node process's sockets and state")
	c.flags.StringVar(&i.binDir, "bin-dir", "/opt/cni/bin", "`DIR` where the runtime looks for plugins")
	c.flags.StringVar(&i.confDir, "conf-dir", "/etc/cni/net.d", "`DIR` where the runtime looks for its network configuration")
	c.flags.StringVar(&i.name, "conf-name", "10-gaggle.conflist", "`NAME` of the conflist; the runtime takes the first in alphabetical order")
}

func runInstall(ctx context.Context, c *cmdline) error {
	var i installer
	i.register(c)
	c.flags.StringVar(&i.plugin, "plugin", "", "`FILE` of the plugin to install; default gaggle-cni beside this program")
	c.flags.StringVar(&i.conflist, "conflist", "", "`FILE` of the conflist to install; default one with this plugin alone")
	c.flags.DurationVar(&i.wait, "wait", time.Minute, "how long to wait for a node process that can serve, a `DURATION`")
	watch := c.flags.Bool("watch", false, "go on, and restore what somebody removes or changes")
	if err := c.parse(); err != nil {
		return err
	}
	if err := i.check(); err != nil {
		return err
	}
	if err := i.install(ctx); err != nil || !*watch {
		return err
	}
	return i.watch(ctx)
}

func (i *installer) check() error {
	if filepath.Base(i.name) != i.name || !isConflist(i.name) {
		return usageError{fmt.Errorf("--conf-name %q: want the name of a file that ends in .conflist", i.name)}
	}
	if i.wait < 0 {
		return usageError{fmt.Errorf("--wait %v: want 0s or more", i.wait)}
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if i.plugin == "" {
		i.plugin = filepath.Join(filepath.Dir(self), "gaggle-cni")
	}
	// A runtime has another working directory.
	for _, dir := range []*string{&i.runDir, &i.binDir} {
		if *dir, err = filepath.Abs(*dir); err != nil {
			return err
		}
	}
	mine, err := os.Stat(self)
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if there, err := os.Stat(filepath.Join(i.binDir, pluginName)); err == nil && os.SameFile(mine, there) {
		return usageError{fmt.Errorf("--bin-dir %s is where this program is, and the plugin has the same name there: move this program elsewhere", i.binDir)}
	}
	return nil
}

// watch installs again and again until the context ends: package managers and reboots wipe directories.
func (i *installer) watch(ctx context.Context) error {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := i.install(ctx); err != nil && ctx.Err() == nil {
			fmt.Fprintf(i.c.stderr, "gaggle install: %v\n", err)
		}
	}
}

// install puts the plugin in place, makes sure that it works, and then the conflist: with it a runtime begins to call.
func (i *installer) install(ctx context.Context) error {
	plugin, err := os.ReadFile(i.plugin)
	if err != nil {
		return fmt.Errorf("read the plugin: %w", err)
	}
	conflist, conf, err := i.readConflist()
	if err != nil {
		return err
	}
	if err := i.putPlugin(ctx, plugin); err != nil {
		return err
	}
	if err := i.checkChain(ctx, conf); err != nil {
		return err
	}
	if err := i.awaitReady(ctx, conf); err != nil {
		return err
	}
	if err := i.put(filepath.Join(i.confDir, i.name), conflist, 0o600); err != nil {
		return err
	}
	return i.warnOfOthers()
}

// putPlugin replaces the plugin by one that works.
func (i *installer) putPlugin(ctx context.Context, plugin []byte) error {
	path := filepath.Join(i.binDir, pluginName)
	changed, err := replaceFile(path, plugin, 0o755, func(path string) error {
		_, err := callPlugin(ctx, path, "VERSION", nil)
		return err
	})
	if err != nil {
		return fmt.Errorf("install the plugin %s: %w", i.plugin, err)
	}
	if changed {
		fmt.Fprintln(i.c.stdout, "installed", path)
	}
	return nil
}

func (i *installer) put(path string, data []byte, mode fs.FileMode) error {
	changed, err := replaceFile(path, data, mode, nil)
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	if changed {
		fmt.Fprintln(i.c.stdout, "installed", path)
	}
	return nil
}

// A conflist as far as it matters here (CNI spec 1.1.0 section 1).
type conflist struct {
	CNIVersion  string   `json:"cniVersion"`
	CNIVersions []string `json:"cniVersions"`
	Name        string   `json:"name"`
	Plugins     []struct {
		Type   string `json:"type"`
		Socket string `json:"socket"`
	} `json:"plugins"`
}

// versions are those in which a runtime may call the chain: it takes the highest of the list that it knows itself, and a
// runtime that does not know the list takes cniVersion.
func (c conflist) versions() []string {
	all := append([]string{c.CNIVersion}, c.CNIVersions...)
	slices.Sort(all)
	return slices.Compact(all)
}

// readConflist reads or makes the conflist.
func (i *installer) readConflist() (data []byte, c conflist, err error) {
	if i.conflist == "" {
		plugin := map[string]any{"type": pluginName, "capabilities": map[string]bool{"io.kubernetes.cri.pod-annotations": true}}
		if i.runDir != defaultRunDir {
			plugin["socket"] = filepath.Join(i.runDir, cniSocket)
		}
		// Version 1.0.0, as containerd before 2.0 refuses a result of 1.1.0.
		data, err = json.MarshalIndent(map[string]any{"cniVersion": "1.0.0", "name": "gaggle", "plugins": []any{plugin}}, "", "  ")
		data = append(data, '\n')
	} else {
		data, err = os.ReadFile(i.conflist)
	}
	if err != nil {
		return nil, c, fmt.Errorf("read the conflist: %w", err)
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, c, fmt.Errorf("%s is no conflist: %w", i.conflist, err)
	}
	var problems []error
	for _, version := range c.versions() {
		if !slices.Contains(wire.SupportedVersions, version) {
			problems = append(problems, fmt.Errorf("cniVersion %q: want one of %s", version, strings.Join(wire.SupportedVersions, ", ")))
		}
	}
	if err := wire.CheckName(c.Name); err != nil {
		problems = append(problems, fmt.Errorf("name %w", err))
	}
	if len(c.Plugins) == 0 || c.Plugins[0].Type != pluginName {
		problems = append(problems, fmt.Errorf("plugins[0].type: want %q, whose addresses and links the others work on", pluginName))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, c, fmt.Errorf("%s:\n%w", i.conflist, err)
	}
	if want, says := filepath.Join(i.runDir, cniSocket), cmp.Or(c.Plugins[0].Socket, wire.DefaultSocket); says != want {
		i.warn(says, "%s has the socket %s, and with --run-dir %s the node process listens on %s", i.conflist, says, i.runDir, want)
	}
	return data, c, nil
}

// checkChain asks every plugin of the chain whether it knows the conflist's versions: a runtime would find out with the first
// pod (CNI spec 1.1.0 section 2, VERSION).
func (i *installer) checkChain(ctx context.Context, c conflist) error {
	var problems []error
	for n, p := range c.Plugins {
		if err := wire.CheckName(p.Type); err != nil {
			problems = append(problems, fmt.Errorf("plugins[%d].type %w", n, err))
			continue
		}
		out, err := callPlugin(ctx, filepath.Join(i.binDir, p.Type), "VERSION", []byte(`{"cniVersion":"`+c.CNIVersion+`"}`))
		if err != nil {
			problems = append(problems, fmt.Errorf("plugins[%d]: %w", n, err))
			continue
		}
		var v struct{ SupportedVersions []string }
		_ = json.Unmarshal(out, &v) // what is no answer names no version
		for _, version := range c.versions() {
			if !slices.Contains(v.SupportedVersions, version) {
				problems = append(problems, fmt.Errorf("plugins[%d]: %s does not know version %s: %s", n, p.Type, version, bytes.TrimSpace(out)))
			}
		}
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("the conflist was not installed, as its chain would fail:\n%w", err)
	}
	return nil
}

// awaitReady asks through the plugin that was installed, so that what a runtime will call is what is tried.
func (i *installer) awaitReady(ctx context.Context, c conflist) error {
	question, err := json.Marshal(map[string]string{
		"cniVersion": wire.SupportedVersions[len(wire.SupportedVersions)-1], "name": c.Name, "type": pluginName, "socket": c.Plugins[0].Socket,
	})
	if err != nil {
		return err
	}
	ticker := time.NewTicker(readyInterval)
	defer ticker.Stop()
	for end := time.After(i.wait); ; {
		_, err := callPlugin(ctx, filepath.Join(i.binDir, pluginName), "STATUS", question) // at least once
		if err == nil {
			return nil
		}
		select {
		case <-end:
			return fmt.Errorf("the conflist was not installed, as the node process cannot serve (waited %v): %w", i.wait, err)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// callPlugin executes a plugin as a runtime does. What it prints when it fails is its error.
func callPlugin(ctx context.Context, path, command string, stdin []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, pluginTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_PATH=" + filepath.Dir(path), "PATH=" + os.Getenv("PATH")}
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.WaitDelay = time.Second // a child of the plugin may hold its output open
	out, err := cmd.Output()
	if err == nil {
		return out, nil
	}
	var told wire.Error
	if json.Unmarshal(out, &told) == nil && told.Msg != "" {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), &told)
	}
	return nil, fmt.Errorf("%s: %w", path, err)
}

// warnOfOthers says so when the runtime will take another configuration.
func (i *installer) warnOfOthers() error {
	entries, err := os.ReadDir(i.confDir) // in alphabetical order, as runtimes take them
	if err != nil {
		return fmt.Errorf("look for other configurations: %w", err)
	}
	for _, e := range entries {
		if e.Name() == i.name {
			break
		}
		if isConf(e.Name()) {
			i.warn(e.Name(), "%s comes before %s, so that the runtime takes it instead; remove it, or choose an earlier --conf-name",
				filepath.Join(i.confDir, e.Name()), i.name)
		}
	}
	return nil
}

// warn says something about a thing, once.
func (i *installer) warn(about, format string, args ...any) {
	if !i.said[about] {
		i.said[about] = true
		fmt.Fprintf(i.c.stderr, "gaggle install: warning: "+format+"\n", args...)
	}
}

func isConflist(name string) bool { return strings.HasSuffix(name, ".conflist") }

// isConf reports whether a runtime would load a file of that name (libcni, ConfFiles).
func isConf(name string) bool {
	return isConflist(name) || strings.HasSuffix(name, ".conf") || strings.HasSuffix(name, ".json")
}

func runUninstall(ctx context.Context, c *cmdline) error {
	var i installer
	i.register(c)
	force := c.flags.Bool("force", false, "remove them although pods are attached, or although that cannot be known")
	if err := c.parse(); err != nil {
		return err
	}
	if err := i.check(); err != nil {
		return err
	}
	if !*force {
		if err := noPods(ctx, i.runDir); err != nil {
			return err
		}
	}
	// The conflist first: without it no runtime calls the plugin.
	for _, path := range []string{filepath.Join(i.confDir, i.name), filepath.Join(i.binDir, pluginName)} {
		switch err := os.Remove(path); {
		case err == nil:
			fmt.Fprintln(c.stdout, "removed", path)
		case !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("uninstall: %w", err)
		}
	}
	return nil
}

// noPods makes sure that no pod needs the plugin for its end: without a conflist a runtime cannot remove pods.
func noPods(ctx context.Context, runDir string) error {
	s, err := askStatus(ctx, runDir)
	if err != nil {
		return fmt.Errorf("nothing was removed, as it is not known whether pods are attached: %w; --force removes all the same", err)
	}
	if n := len(s.Pods); n > 0 {
		return fmt.Errorf("nothing was removed, as %d pods are attached and could not be removed without it: drain the node first, or use --force", n)
	}
	return nil
}
