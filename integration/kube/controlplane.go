package kube

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// kubectlTimeout bounds a call of kubectl, waits included.
const kubectlTimeout = 3 * time.Minute

// startControlPlane starts etcd, the API server, and then those that work on its objects.
func (c *Cluster) startControlPlane(ctx context.Context) error {
	const etcd = "http://127.0.0.1:2379"
	data := filepath.Join(c.dir, "machines", "cp")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	if _, err := c.onControlPlane("etcd", "--data-dir="+data, "--unsafe-no-fsync",
		"--listen-client-urls="+etcd, "--advertise-client-urls="+etcd, "--listen-peer-urls=http://127.0.0.1:2380"); err != nil {
		return err
	}
	api, err := c.onControlPlane(c.programs.kube("kube-apiserver"), "--etcd-servers="+etcd,
		"--bind-address=::", "--secure-port=6443", "--advertise-address="+APIServer,
		"--tls-cert-file="+c.etc("server.crt"), "--tls-private-key-file="+c.etc("server.key"), "--client-ca-file="+c.etc("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+c.etc("accounts.pub"), "--service-account-signing-key-file="+c.etc("accounts.key"),
		"--kubelet-client-certificate="+c.etc("admin.crt"), "--kubelet-client-key="+c.etc("admin.key"),
		"--kubelet-preferred-address-types=InternalIP", "--service-cluster-ip-range="+serviceCIDRs,
		"--authorization-mode=Node,RBAC", "--allow-privileged=true", "--cert-dir="+data)
	if err != nil {
		return err
	}
	if err := api.Await(ctx, "the API server", func() bool {
		_, err := c.Kubectl(ctx, "get", "--raw=/readyz")
		return err == nil
	}); err != nil {
		return err
	}
	// As admin and not with an account for each controller: it starts seconds faster.
	if _, err := c.onControlPlane(c.programs.kube("kube-controller-manager"), "--kubeconfig="+c.Kubeconfig(),
		"--leader-elect=false", "--kube-api-qps=500", "--kube-api-burst=500",
		"--service-account-private-key-file="+c.etc("accounts.key"), "--root-ca-file="+c.etc("ca.crt"),
		"--allocate-node-cidrs", "--cluster-cidr="+podCIDRs, "--node-cidr-mask-size-ipv4=24", "--node-cidr-mask-size-ipv6=64",
		"--service-cluster-ip-range="+serviceCIDRs, "--cert-dir="+data); err != nil {
		return err
	}
	_, err = c.onControlPlane(c.programs.kube("kube-scheduler"), "--kubeconfig="+c.etc("scheduler.kubeconfig"),
		"--leader-elect=false", "--cert-dir="+data)
	return err
}

// onControlPlane starts a program beside the API server. Its log has the program's name.
func (c *Cluster) onControlPlane(program string, args ...string) (*lab.Process, error) {
	return c.lab.Start(c.ControlPlane, filepath.Base(program), append([]string{program}, args...)...)
}

// Kubeconfig is the path of an administrator's kubeconfig. The API server answers on the control plane's host, the nodes and
// the client.
func (c *Cluster) Kubeconfig() string { return c.etc("admin.kubeconfig") }

// Kubectl runs kubectl as administrator and returns what it prints.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.kubectl(ctx, "", args...)
}

// Apply applies manifests.
func (c *Cluster) Apply(ctx context.Context, manifests string) error {
	_, err := c.kubectl(ctx, manifests, "apply", "--filename=-")
	return err
}

// StartKubectl starts a command of kubectl's that goes on, such as port-forward, beside the API server.
func (c *Cluster) StartKubectl(name string, args ...string) (*lab.Process, error) {
	return c.lab.Start(c.ControlPlane, name, c.kubectlCommand(args)...)
}

func (c *Cluster) kubectlCommand(args []string) []string {
	return append([]string{c.programs.kube("kubectl"), "--kubeconfig=" + c.Kubeconfig(), "--cache-dir=" + filepath.Join(c.dir, "machines", "kubectl")}, args...)
}

func (c *Cluster) kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, kubectlTimeout)
	defer cancel()
	full := append([]string{"--net=" + c.ControlPlane.Path()}, c.kubectlCommand(args)...)
	cmd := exec.CommandContext(ctx, "nsenter", full...)
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
