package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// A way attaches and detaches containers, each of which is a namespace. Its methods may be called concurrently.
type way interface {
	add(ns lab.NS) error
	del(ns lab.NS) error
}

// A plugin is a CNI plugin with its configuration.
type plugin struct {
	node   lab.NS
	path   string
	config []byte
}

func gaggle(n *lab.Node, path string) plugin {
	return newPlugin(n.NS, path, map[string]any{
		"cniVersion": "1.0.0", "name": "gaggle", "type": "gaggle", "socket": n.Socket(),
	})
}

// ptp is the reference plugin of the same kind, with host-local for its addresses.
func ptp(node lab.NS, dir string, subnets ...string) plugin {
	var ranges [][]map[string]string
	for _, s := range subnets {
		ranges = append(ranges, []map[string]string{{"subnet": s}})
	}
	return newPlugin(node, filepath.Join(lab.ReferencePlugins, "ptp"), map[string]any{
		"cniVersion": "1.0.0", "name": fmt.Sprintf("ptp%d", len(subnets)), "type": "ptp",
		"ipam": map[string]any{"type": "host-local", "dataDir": filepath.Join(dir, "host-local"), "ranges": ranges},
	})
}

func newPlugin(node lab.NS, path string, conf map[string]any) plugin {
	config, err := json.Marshal(conf)
	if err != nil {
		panic("bench: " + err.Error()) // maps of strings can be encoded
	}
	return plugin{node, path, config}
}

func (p plugin) add(ns lab.NS) error { return p.call("ADD", ns) }
func (p plugin) del(ns lab.NS) error { return p.call("DEL", ns) }

// A start is that of a plugin and nothing more: it says which versions it serves.
type start struct{ plugin }

func (s start) add(ns lab.NS) error { return s.call("VERSION", ns) }
func (s start) del(ns lab.NS) error { return s.call("VERSION", ns) }

// call starts the plugin in the node's namespace, as a runtime in it does.
func (p plugin) call(command string, ns lab.NS) error {
	return p.node.Do(func() error {
		cmd := exec.Command(p.path)
		cmd.Env = []string{
			"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=" + command, "CNI_CONTAINERID=" + ns.Name, "CNI_NETNS=" + ns.Path(),
			"CNI_IFNAME=eth0", "CNI_PATH=" + lab.ReferencePlugins,
			"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=bench;K8S_POD_NAME=" + ns.Name,
		}
		cmd.Stdin = bytes.NewReader(p.config)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s %s: %w: %s", filepath.Base(p.path), command, err, out)
		}
		return nil
	})
}
