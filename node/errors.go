package node

import "errors"

// Errors that decide what the runtime is told. Only attach.go turns them into codes.
var (
	// ErrInterfaceExists: the container already has an interface of the wanted name.
	ErrInterfaceExists = errors.New("interface exists")
	// ErrRouteExists: the container already has the default route of another interface.
	ErrRouteExists = errors.New("route exists")
	// ErrForeignLink: a link with the host interface's name belongs to somebody else.
	ErrForeignLink = errors.New("a link of that name belongs to somebody else")
	// ErrNoFamily: the pod would have no address at all.
	ErrNoFamily = errors.New("neither IPv6 nor IPv4 is left for the pod")
	// ErrAddress: an address that was asked for is taken, or is not of a pool.
	ErrAddress = errors.New("the address cannot be had")
	// ErrDeleted: a DEL for the container came in after the ADD.
	ErrDeleted = errors.New("a later DEL has removed it")
	// ErrStore: the state file cannot be read or written.
	ErrStore = errors.New("state file")
	// ErrNetns: what came as the container's namespace is none, or the host's own.
	ErrNetns = errors.New("not a container's network namespace")
	// ErrNetnsGone: the container's namespace has no network any more.
	ErrNetnsGone = errors.New("network namespace is gone")
)
