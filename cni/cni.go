// Package cni is the Container Network Interface as the node process serves it: who asks for what, how a request is read
// and checked, what a result and an error look like in each version of the specification, and the server on the unix
// socket. It decides nothing about addresses or kernels; that is the [Handler]'s part. What the plugin binary shares with
// it, and no more, is in package cni/wire.
package cni

import (
	"cmp"
	"context"
	"net/netip"
	"os"
	"strings"
	"time"
)

// An ID is the key of an attachment (CNI spec 1.1.0 section 3): the network's name, the container and the interface's
// name in it. Pod names, UIDs and paths of namespaces are attributes and never a key.
type ID struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
}

// String returns the parts separated by slashes, none of which may contain one.
func (id ID) String() string { return id.Network + "/" + id.ContainerID + "/" + id.IfName }

// Compare orders IDs by network, container and interface.
func (id ID) Compare(other ID) int {
	return cmp.Or(
		strings.Compare(id.Network, other.Network),
		strings.Compare(id.ContainerID, other.ContainerID),
		strings.Compare(id.IfName, other.IfName))
}

// A Handler does what a runtime asks for. Its methods are called concurrently, and their context ends when the caller has
// gone. An error that is an [*Error] is passed on as it is.
type Handler interface {
	// Add attaches the container. It leaves nothing behind when it fails.
	Add(ctx context.Context, r Request) (Result, error)
	// Del detaches the container. What is already gone is no error.
	Del(ctx context.Context, r Request) error
	// Check compares what there is with what ADD made, and names each difference. It changes nothing.
	Check(ctx context.Context, r Request) error
	// GC detaches what is of this network and not among those in use. It goes on after a failure.
	GC(ctx context.Context, network string, inUse []ID) error
	// Ready reports whether an ADD can be served at all. It changes nothing.
	Ready(ctx context.Context) error
}

// A Request is a call of the runtime, checked.
type Request struct {
	ID ID
	// NetnsPath is the path as the runtime gave it, for the result. Only the runtime and the plugin can open it.
	NetnsPath string
	// Netns is the open network namespace of an ADD or CHECK. It belongs to the server, which closes it after the call.
	Netns *os.File
	Pod   PodArgs
	Conf  Conf
	// Received is when the call came in. It orders the calls for one attachment.
	Received time.Time
	// Previous is what the chain's ADD came to, for CHECK.
	Previous Previous
}

// Previous is the part of a prevResult that tells what other plugins of the chain have changed on our interfaces.
type Previous struct {
	// MACs are those of the interfaces, by name; in the container for the one that CNI_IFNAME names.
	MACs map[string]string
	// IPs are all addresses of all interfaces.
	IPs []netip.Addr
}

// PodArgs are the Kubernetes keys of CNI_ARGS. All are empty when the caller is not a kubelet's runtime.
type PodArgs struct {
	Namespace, Name, UID string
}

// A Result is what ADD did, independent of the version it is told in.
type Result struct {
	HostIf, HostMAC string
	MAC             string // of the interface in the container
	MTU             int
	IPs             []IP
	Routes          []Route
}

// An IP is an address of the container's interface.
type IP struct {
	Address netip.Prefix
	Gateway netip.Addr
}

// A Route is a route in the container.
type Route struct {
	Dst netip.Prefix
	GW  netip.Addr
}
