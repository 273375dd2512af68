package datapath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netns"
)

// Prepare sets what the whole node needs, and nothing beyond that:
//
//   - accept_ra=2 where it is 1: such a link obeys router advertisements only as long as it does not forward. Without this
//     the next step would take the node's own default route away.
//   - forwarding, in both families: pods' packets pass through the node.
//   - fib_multipath_hash_policy=1: equal paths are chosen by the flow's ports too, so that one client's flows spread.
func (d *Datapath) Prepare(ctx context.Context) error {
	return inNamespace(d.ns, func() error {
		if err := d.keepRouterAdvertisements(ctx); err != nil {
			return err
		}
		for _, key := range []string{
			"net/ipv6/conf/all/forwarding", "net/ipv4/ip_forward",
			"net/ipv4/fib_multipath_hash_policy", "net/ipv6/fib_multipath_hash_policy",
		} {
			if err := d.setLogged(ctx, key, "1"); err != nil {
				return err
			}
		}
		return nil
	})
}

func (d *Datapath) keepRouterAdvertisements(ctx context.Context) error {
	dir := filepath.Join(d.o.Sysctl, "net/ipv6/conf")
	links, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("the kernel has no IPv6: boot without ipv6.disable=1")
	}
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	for _, link := range links {
		// "all" has no effect here, and what "default" would give to links of the future are mostly pods'.
		if name := link.Name(); name == "all" || name == "default" || name == "lo" {
			continue
		}
		key := "net/ipv6/conf/" + link.Name() + "/accept_ra"
		value, err := d.get(key)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the link went meanwhile
		}
		if err != nil {
			return err
		}
		if value != "1" {
			continue
		}
		if err := d.setLogged(ctx, key, "2"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (d *Datapath) setLogged(ctx context.Context, key, value string) error {
	changed, err := d.set(key, value)
	if changed {
		d.o.Log.InfoContext(ctx, "set sysctl", "key", strings.ReplaceAll(key, "/", "."), "value", value)
	}
	return err
}

func (d *Datapath) get(key string) (string, error) {
	data, err := os.ReadFile(filepath.Join(d.o.Sysctl, key))
	if err != nil {
		return "", fmt.Errorf("read sysctl: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// set writes a setting unless it is right already: a container may see the kernel's settings read-only.
func (d *Datapath) set(key, value string) (changed bool, err error) {
	have, err := d.get(key)
	if err != nil || have == value {
		return false, err
	}
	if err := d.o.Before("sysctl"); err != nil {
		return false, err
	}
	if err := os.WriteFile(filepath.Join(d.o.Sysctl, key), []byte(value), 0o644); err != nil {
		return false, fmt.Errorf("set sysctl %s from %s to %s: %w; in a container, mount the host's /proc/sys at another path, writable, and name that with --sysctl-dir",
			strings.ReplaceAll(key, "/", "."), have, value, err)
	}
	return true, nil
}

// A setting of one link. A name of a link may hold a dot, so that keys are paths.
type setting struct{ family, link, key, value string }

// isSet reports whether settings are as they must be, in the namespace of the calling thread. One that this kernel does not
// have, or that cannot be read, is for [Datapath.setLinks] to judge.
func (d *Datapath) isSet(settings []setting) bool {
	for _, s := range settings {
		value, err := d.get("net/" + s.family + "/conf/" + s.link + "/" + s.key)
		if err == nil && value != s.value {
			return false
		}
	}
	return true
}

// setLinks applies settings in a network namespace. A setting that this kernel does not have is left out.
func (d *Datapath) setLinks(ns netns.NsHandle, settings []setting) error {
	return inNamespace(ns, func() error {
		for _, s := range settings {
			_, err := d.set("net/"+s.family+"/conf/"+s.link+"/"+s.key, s.value)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return nil
	})
}
