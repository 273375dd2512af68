package kube

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const cgroupDir = "/sys/fs/cgroup"

// cgroups finds the cgroups of a name: one with version 2, one for each controller with version 1.
func cgroups(pattern string) (paths []string) {
	for _, dir := range []string{cgroupDir, cgroupDir + "/*"} {
		found, _ := filepath.Glob(filepath.Join(dir, pattern)) // the pattern is right
		paths = append(paths, found...)
	}
	return paths
}

// makeCgroup makes the cgroup below which a kubelet puts its pods.
func makeCgroup(name string) error {
	if _, err := os.Stat(filepath.Join(cgroupDir, "cgroup.controllers")); err == nil {
		for _, c := range []string{"cpuset", "cpu", "io", "memory", "pids", "hugetlb"} {
			// The kubelet names those that it misses.
			_ = os.WriteFile(filepath.Join(cgroupDir, "cgroup.subtree_control"), []byte("+"+c), 0)
		}
		return os.MkdirAll(filepath.Join(cgroupDir, name), 0o755)
	}
	controllers, _ := filepath.Glob(filepath.Join(cgroupDir, "*", "cgroup.procs"))
	if len(controllers) == 0 {
		return fmt.Errorf("%s has neither cgroups of version 2 nor controllers of version 1: mount them", cgroupDir)
	}
	for _, c := range controllers {
		if err := os.Mkdir(filepath.Join(filepath.Dir(c), name), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err // two controllers may be one directory under two names
		}
	}
	return copyCpuset(name)
}

// copyCpuset fills in a cpuset of version 1, which is empty at first and then takes no process.
func copyCpuset(name string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(cgroupDir, "cpuset", file))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(cgroupDir, "cpuset", name, file), value, 0); err != nil {
			return err
		}
	}
	return nil
}
