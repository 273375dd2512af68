package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// A Node is a machine that runs the node process.
type Node struct {
	Name   string
	Number int // from 1
	NS     NS
	RunDir string
	// Wrap is put before the node process's command line, as in setpriv's.
	Wrap []string

	lab     *Lab
	process *Process
}

// A Peering says how a node speaks to the router.
type Peering struct {
	Over4, Over6       bool   // sessions over IPv4 and IPv6
	NodeASN, RouterASN uint32 // 0: those of addresses.go
	Families           string // of the pods, as in "[IPv6]"; empty for both
	Pool4, Pool6       string // empty: those of addresses.go
}

// Config writes a NodeConfig for the node.
func (n *Node) Config(p Peering) string {
	if p.NodeASN == 0 {
		p.NodeASN = NodeASN
	}
	if p.RouterASN == 0 {
		p.RouterASN = RouterASN
	}
	if p.Families == "" {
		p.Families = "[IPv6, IPv4]"
	}
	if p.Pool4 == "" {
		p.Pool4 = Pool4(n.Number)
	}
	if p.Pool6 == "" {
		p.Pool6 = Pool6(n.Number)
	}
	text := fmt.Sprintf(`apiVersion: gaggle.dev/v1alpha1
kind: NodeConfig
metadata: {name: %s}
spec:
  pools:
  - {name: pods6, cidr: "%s"}
  - {name: pods4, cidr: %s}
  defaults: {families: %s}
  bgp:
    asn: %d
    peers:
`, n.Name, p.Pool6, p.Pool4, p.Families, p.NodeASN)
	if p.Over4 {
		text += fmt.Sprintf("    - {name: router-4, address: %s, asn: %d, holdTime: 9s}\n", Router4, p.RouterASN)
	}
	if p.Over6 {
		text += fmt.Sprintf("    - {name: router-6, address: \"%s\", asn: %d, holdTime: 9s}\n", Router6, p.RouterASN)
	}
	return text
}

// Start runs the node process with a configuration and waits until it serves.
func (n *Node) Start(ctx context.Context, config string) error {
	path := filepath.Join(n.lab.o.Dir, n.Name+".yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		return err
	}
	return n.Restart(ctx)
}

// Restart runs the node process with the configuration it had.
func (n *Node) Restart(ctx context.Context) (err error) {
	socket := n.Socket()
	_ = os.Remove(socket) // so that its presence means that this process serves
	n.process, err = n.lab.Start(n.NS, n.Name, append(slices.Clone(n.Wrap), filepath.Join(n.lab.o.Bin, "gaggle"), "node", "--standalone",
		"--config", filepath.Join(n.lab.o.Dir, n.Name+".yaml"), "--node-name", n.Name, "--run-dir", n.RunDir)...)
	if err != nil {
		return err
	}
	return n.process.await(ctx, n.Name, func() bool {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
}

// Process is the node process.
func (n *Node) Process() *Process { return n.process }

// Socket is where the plugin finds the node process.
func (n *Node) Socket() string { return filepath.Join(n.RunDir, "cni.sock") }

// Gaggle runs a command of the operator's against the node process.
func (n *Node) Gaggle(ctx context.Context, args ...string) (string, error) {
	return n.NS.Exec(ctx, append([]string{filepath.Join(n.lab.o.Bin, "gaggle")}, append(args, "--run-dir", n.RunDir)...)...)
}

// Status asks the node process, as the operator's commands do.
func (n *Node) Status(ctx context.Context, into any) error {
	client := http.Client{Timeout: commandTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(n.RunDir, "admin.sock"))
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://node/status", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(into)
}

// A Pod is a sandbox: a namespace and the names a runtime gives it.
type Pod struct {
	Name string
	NS   NS
	node *Node

	ContainerID, IfName string
}

// Pod makes a sandbox on the node. It is not attached yet.
func (n *Node) Pod(ctx context.Context, name string) (*Pod, error) {
	ns, err := n.lab.Namespace(ctx, n.Name+"-"+name)
	if err != nil {
		return nil, err
	}
	return &Pod{Name: name, NS: ns, node: n, ContainerID: "ctr-" + ns.Name, IfName: "eth0"}, nil
}

// A Result is what the plugin printed for an ADD.
type Result struct {
	CNIVersion string
	Interfaces []struct{ Name, MAC, Sandbox string }
	IPs        []struct {
		Address netip.Prefix
		Gateway netip.Addr
	}
	Took time.Duration `json:"-"`
}

// Addr returns the address of a family; the zero Addr if there is none.
func (r Result) Addr(six bool) netip.Addr {
	for _, ip := range r.IPs {
		if ip.Address.Addr().Is6() == six {
			return ip.Address.Addr()
		}
	}
	return netip.Addr{}
}

// A CNIError is what the plugin printed for a call that failed.
type CNIError struct {
	CNIVersion   string
	Code         uint
	Msg, Details string
	Stdout       []byte `json:"-"`
}

// Error returns code, message and details.
func (e *CNIError) Error() string {
	return fmt.Sprintf("CNI error %d: %s; %s", e.Code, e.Msg, e.Details)
}

// Add attaches the pod as a container runtime does: it executes the plugin.
func (p *Pod) Add(ctx context.Context) (r Result, err error) {
	start := time.Now()
	out, err := p.Call(ctx, "ADD", "1.0.0")
	if err != nil {
		return r, err
	}
	r.Took = time.Since(start)
	if err := json.Unmarshal(out, &r); err != nil {
		return r, fmt.Errorf("result of ADD: %w: %s", err, out)
	}
	return r, nil
}

// Del detaches the pod.
func (p *Pod) Del(ctx context.Context) error {
	out, err := p.Call(ctx, "DEL", "1.0.0")
	if err == nil && len(out) > 0 {
		return fmt.Errorf("DEL printed %q, want nothing", out)
	}
	return err
}

// Remove detaches the pod and removes its namespace.
func (p *Pod) Remove(ctx context.Context) error {
	return errors.Join(p.Del(ctx), p.node.lab.RemoveNamespace(p.NS))
}

// Call executes the plugin with any command and version of the specification, and returns what it printed. An error that
// the plugin printed is a [*CNIError].
func (p *Pod) Call(ctx context.Context, command, version string) ([]byte, error) {
	return p.CallWith(ctx, command, version, nil)
}

// CallWith is Call with more in the network configuration.
func (p *Pod) CallWith(ctx context.Context, command, version string, more map[string]any) ([]byte, error) {
	return p.call(ctx, command, version, more, map[string]string{
		"CNI_CONTAINERID": p.ContainerID, "CNI_NETNS": p.NS.Path(), "CNI_IFNAME": p.IfName, "CNI_PATH": p.node.lab.o.Bin,
		"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + p.Name +
			";K8S_POD_INFRA_CONTAINER_ID=" + p.ContainerID + ";K8S_POD_UID=uid-" + p.ContainerID,
	})
}

// CallEnv is Call with these variables beside CNI_COMMAND, and no others.
func (p *Pod) CallEnv(ctx context.Context, command, version string, env map[string]string) ([]byte, error) {
	return p.call(ctx, command, version, nil, env)
}

func (p *Pod) call(ctx context.Context, command, version string, more map[string]any, env map[string]string) ([]byte, error) {
	conf := map[string]any{"cniVersion": version, "name": "gaggle", "type": "gaggle", "socket": p.node.Socket()}
	maps.Copy(conf, more)
	config, err := json.Marshal(conf)
	if err != nil {
		return nil, err
	}
	full := p.node.NS.command(filepath.Join(p.node.lab.o.Bin, "gaggle-cni"))
	cmd := exec.CommandContext(ctx, full[0], full[1:]...)
	cmd.Env = []string{"CNI_COMMAND=" + command}
	for key, value := range env {
		cmd.Env = append(cmd.Env, key+"="+value)
	}
	cmd.Stdin = bytes.NewReader(config)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		e := &CNIError{Stdout: stdout.Bytes()}
		if json.Unmarshal(stdout.Bytes(), e) != nil {
			return nil, fmt.Errorf("%s: %w: stdout %q, stderr %q", command, err, stdout.Bytes(), stderr.Bytes())
		}
		return nil, e
	}
	return stdout.Bytes(), nil
}
