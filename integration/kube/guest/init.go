package main

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// overlaid are what a node can change without the machine noticing; below are the machine's own.
var overlaid = []string{"etc", "opt", "var/lib"}

// bound are those in which overlays would not do: the kubelet mounts volumes there, containerd makes overlays itself.
var bound = []string{"var/lib/kubelet", "var/lib/containerd", "var/log"}

// copied are settings of the whole machine that the kubelet insists on writing: it gets copies.
var copied = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// prepare makes the file systems of the machine NAME, whose files are in dir. It runs as the first process of new mount, PID,
// UTS and IPC namespaces. The file ready in dir says that it is done.
func prepare(name, dir string) error {
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"cut mounts off from the machine's", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") }},
		{"mount /proc", func() error { return unix.Mount("proc", "/proc", "proc", 0, "") }},
		{"mount overlays", func() error { return overlays(dir) }},
		{"mount directories", func() error { return bind(dir) }},
		{"mount /run", mountRun},
		{"mount /sys", func() error { return mountSys(dir) }},
		{"copy settings", copySettings},
		{"set the host name", func() error { return unix.Sethostname([]byte(name)) }},
		// Pods may ask for volumes whose mounts the node sees, and the other way round.
		{"share mounts within the node", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "") }},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return os.WriteFile(filepath.Join(dir, "ready"), nil, 0o644)
}

func overlays(dir string) error {
	for _, d := range overlaid {
		upper, work := filepath.Join(dir, d, "upper"), filepath.Join(dir, d, "work")
		if err := makeDirs(upper, work); err != nil {
			return err
		}
		options := fmt.Sprintf("lowerdir=/%s,upperdir=%s,workdir=%s", d, upper, work)
		if err := unix.Mount("overlay", "/"+d, "overlay", 0, options); err != nil {
			return fmt.Errorf("/%s with %s: %w; is that directory itself on an overlay? Set TMPDIR to another file system", d, options, err)
		}
	}
	return makeDirs("/opt/cni/bin", "/etc/cni/net.d")
}

func bind(dir string) error {
	for _, d := range bound {
		own := filepath.Join(dir, "bound", d)
		if err := makeDirs(own, "/"+d); err != nil {
			return err
		}
		if err := unix.Mount(own, "/"+d, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("/%s: %w", d, err)
		}
	}
	return nil
}

func mountRun() error {
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	return makeDirs("/run/lock", "/run/bird", "/run/settings")
}

// mountSys shows the network namespace's own devices, and carries the mounts of cgroups over.
func mountSys(dir string) error {
	const cgroups = "/sys/fs/cgroup"
	aside := filepath.Join(dir, "cgroup")
	if err := makeDirs(aside); err != nil {
		return err
	}
	if err := unix.Mount(cgroups, aside, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return err
	}
	if err := unix.Mount(aside, cgroups, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	return unix.Unmount(aside, unix.MNT_DETACH)
}

func copySettings() error {
	for _, name := range copied {
		own, there := filepath.Join("/run/settings", filepath.Base(name)), filepath.Join("/proc/sys", name)
		value, err := os.ReadFile(there)
		if err != nil {
			return err
		}
		if err := os.WriteFile(own, value, 0o644); err != nil {
			return err
		}
		if err := unix.Mount(own, there, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("%s: %w", there, err)
		}
	}
	return nil
}

func makeDirs(paths ...string) error {
	for _, path := range paths {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
	}
	return nil
}
