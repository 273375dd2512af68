package node

import "errors"

// Errors that decide what the runtime is told. Only attach.go turns them into codes.
var (
	// ErrInterfaceExists: the container already has an interface of the wanted name.
	ErrInterfaceExists = errors.New("interface exists")
	// ErrForeignLink: a link with the host interface's name belongs to somebody else.
	ErrForeignLink = errors.New("a link of that name belongs to somebody else")
	// ErrNetnsGone: the container's namespace has no network any more.
	ErrNetnsGone = errors.New("network namespace is gone")
)
