package cni

import (
	"errors"
	"fmt"

	"github.com/gaggle-cni/gaggle/cni/wire"
)

// An Error is what a runtime is told. Codes are those of package cni/wire.
type Error struct {
	Code    uint
	Msg     string // names the pod and the cause
	Details string // says what to do
}

// Error returns the message and the details.
func (e *Error) Error() string { return (&wire.Error{Msg: e.Msg, Details: e.Details}).Error() }

// Bounds of what is told: kubelet copies it into an Event.
const (
	maxMsg     = 1024
	maxDetails = 2048
)

// wireError turns any error into the one that is sent.
func wireError(err error, version string) *wire.Error {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		e = &Error{Code: wire.CodeInternal, Msg: err.Error(), Details: "this is a fault of the node process; its log has more"}
	}
	return &wire.Error{CNIVersion: version, Code: e.Code, Msg: clip(e.Msg, maxMsg), Details: clip(e.Details, maxDetails)}
}

func envError(format string, args ...any) *Error {
	return &Error{Code: wire.CodeInvalidEnvironment, Msg: fmt.Sprintf(format, args...)}
}
