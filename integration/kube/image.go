package kube

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// GuestImage is the image that all nodes have: an HTTP server ("serve :8080") that says who called, and a client for it
// ("/guest get URL"). Without arguments it waits, as in the sandboxes, whose image it is too.
const GuestImage = "localhost/guest:1"

// guestArchive makes the archive of the guest's image.
func (c *Cluster) guestArchive(ctx context.Context) (path string, err error) {
	root := filepath.Join(c.dir, "images", "guest")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", err
	}
	if err := os.Link(c.Guest(), filepath.Join(root, "guest")); err != nil {
		return "", err
	}
	return c.Image(ctx, GuestImage, "/guest", "linux/"+runtime.GOARCH+"="+root)
}

// Image makes an image with deploy/ocitar and returns the path of its archive, for [Cluster.Import]. The platforms are given with
// the directories of their files, as in linux/amd64=DIR.
func (c *Cluster) Image(ctx context.Context, name, entrypoint string, platforms ...string) (path string, err error) {
	path = filepath.Join(c.dir, "images", strings.NewReplacer("/", "-", ":", "-").Replace(name)+".tar")
	args := append([]string{"-o=" + path, "-name=" + name, "-entrypoint=" + entrypoint}, platforms...)
	if out, err := exec.CommandContext(ctx, filepath.Join(c.dir, "bin", "ocitar"), args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("make image %s: %w: %s", name, err, out)
	}
	return path, nil
}

// Import loads an archive of images into all nodes. Pods find them with imagePullPolicy IfNotPresent or Never.
func (c *Cluster) Import(ctx context.Context, archive string) error {
	return c.eachNode(func(n *Node) error { return n.importImage(ctx, archive) })
}

func (n *Node) importImage(ctx context.Context, archive string) error {
	_, err := n.Exec(ctx, n.containerd("ctr", "--namespace=k8s.io", "images", "import", archive)...)
	return err
}
