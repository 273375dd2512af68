// Package wire is the private protocol between the plugin and the node process: one request and one response, each a
// length and a JSON document, over a unix socket; the container's network namespace travels with the request as an open
// descriptor, so that the node process need not see the runtime's files. It uses the standard library and x/sys only,
// because the plugin that a runtime starts for every call links it.
package wire

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Version is the protocol that this code speaks. A server answers requests of this version and of the one before it.
const Version = 1

// MaxMessage bounds a request or response in bytes. A network configuration with a large prevResult and large pod
// annotations stays far below it.
const MaxMessage = 8 << 20

// DefaultSocket is where a node process listens unless told otherwise.
const DefaultSocket = "/run/gaggle/cni.sock"

// SupportedVersions are the versions of the CNI specification that are served.
var SupportedVersions = []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// A Request is a call as the runtime made it: the CNI_* variables and standard input.
type Request struct {
	Protocol    int             `json:"protocol"`
	Command     string          `json:"command"`
	ContainerID string          `json:"containerID"`
	Netns       string          `json:"netns"` // the path, for the result; the descriptor is what counts
	IfName      string          `json:"ifName"`
	Args        string          `json:"args"`
	Path        string          `json:"path"`
	Config      json.RawMessage `json:"config"`
	// Timeout is how long the plugin waits for the response, in milliseconds. The server ends the call before that.
	Timeout int64 `json:"timeout"`
}

// A Response is the result of a call, or why there is none.
type Response struct {
	Protocol int             `json:"protocol"`
	Result   json.RawMessage `json:"result,omitempty"` // in the version of the request's configuration
	Error    *Error          `json:"error,omitempty"`
}

// An Error is a CNI error as it is printed (CNI spec 1.1.0 section 5).
type Error struct {
	CNIVersion string `json:"cniVersion"`
	Code       uint   `json:"code"`
	Msg        string `json:"msg"`
	Details    string `json:"details,omitempty"`
}

// Error returns the message and the details.
func (e *Error) Error() string {
	if e.Details == "" {
		return e.Msg
	}
	return e.Msg + "; " + e.Details
}

// Codes of the CNI specification (section 5, "Error").
const (
	CodeIncompatibleVersion uint = 1
	CodeInvalidEnvironment  uint = 4
	CodeIO                  uint = 5
	CodeDecode              uint = 6
	CodeInvalidConfig       uint = 7
	CodeTryAgainLater       uint = 11
	CodeNotAvailable        uint = 50 // STATUS: an ADD cannot be served
	CodeLimited             uint = 51 // STATUS: and containers that are there may have limited connectivity
)

// Own codes, from 100 up as the specification asks. docs/reference.md says what to do about each.
const (
	CodeInternal        uint = 100
	CodeExhausted       uint = 101 // no free address
	CodeNoFamily        uint = 102 // neither IPv6 nor IPv4 is left for the pod
	CodeInterfaceExists uint = 103 // the container has an interface of that name
	CodeKernel          uint = 104 // the kernel refused a link, an address or a route
	CodeStore           uint = 105 // the state file cannot be read or written
	CodeAnnotation      uint = 106 // an annotation cannot be understood or is not allowed
	CodeCheck           uint = 107 // CHECK: something is not as ADD made it
	CodeDeleteQueue     uint = 108 // a DEL cannot be kept for the node process that is away
	CodeAddress         uint = 109 // an address that was asked for cannot be had
	CodeForbidden       uint = 110 // an address that is claimed was not granted
)

// WriteRequest sends the request, and the namespace's descriptor with its first bytes when there is one.
func WriteRequest(conn *net.UnixConn, r Request, netns *os.File) error {
	msg, err := frame(r)
	if err != nil {
		return err
	}
	var rights []byte
	if netns != nil {
		rights = unix.UnixRights(int(netns.Fd()))
	}
	n, _, err := conn.WriteMsgUnix(msg, rights, nil)
	if err != nil {
		return fmt.Errorf("write request: %w", err)
	}
	if n == len(msg) {
		return nil // an empty write is a system call too, and fails once the server has answered and gone
	}
	if _, err := conn.Write(msg[n:]); err != nil {
		return fmt.Errorf("write request: %w", err)
	}
	return nil
}

// ReadRequest receives a request. The caller closes the namespace, which is nil when none was sent.
func ReadRequest(conn *net.UnixConn) (r Request, netns *os.File, err error) {
	defer func() {
		if err != nil && netns != nil {
			err = errors.Join(err, netns.Close())
			netns = nil
		}
	}()
	var size [4]byte
	oob := make([]byte, unix.CmsgSpace(4*maxRights))
	n, oobn, flags, _, err := conn.ReadMsgUnix(size[:], oob)
	if err != nil {
		return r, nil, fmt.Errorf("read request: %w", err)
	}
	if netns, err = namespace(oob[:oobn]); err != nil {
		return r, netns, err
	}
	if flags&unix.MSG_CTRUNC != 0 {
		return r, netns, errors.New("read request: too many descriptors")
	}
	if _, err := io.ReadFull(conn, size[n:]); err != nil {
		return r, netns, fmt.Errorf("read request: %w", err)
	}
	return r, netns, decode(conn, size, &r)
}

// maxRights is how many descriptors are taken from a peer at most before the request is refused.
const maxRights = 4

// namespace takes the one descriptor out of a control message and closes any other.
func namespace(oob []byte) (*os.File, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("read request: parse control message: %w", err)
	}
	var fds []int
	for _, m := range msgs {
		got, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue // not descriptors
		}
		fds = append(fds, got...)
	}
	if len(fds) == 0 {
		return nil, nil
	}
	for _, fd := range fds[1:] {
		_ = unix.Close(fd)
	}
	f := os.NewFile(uintptr(fds[0]), "netns")
	if len(fds) > 1 {
		return f, errors.New("read request: more than one descriptor")
	}
	return f, nil
}

// WriteResponse sends the response.
func WriteResponse(w io.Writer, r Response) error {
	msg, err := frame(r)
	if err != nil {
		return err
	}
	if _, err := w.Write(msg); err != nil {
		return fmt.Errorf("write response: %w", err)
	}
	return nil
}

// ReadResponse receives a response.
func ReadResponse(rd io.Reader) (r Response, err error) {
	var size [4]byte
	if _, err := io.ReadFull(rd, size[:]); err != nil {
		return r, fmt.Errorf("read response: %w", err)
	}
	return r, decode(rd, size, &r)
}

func frame(v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode message: %w", err)
	}
	if len(body) > MaxMessage {
		return nil, fmt.Errorf("message of %d bytes: want %d at most", len(body), MaxMessage)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...), nil
}

func decode(rd io.Reader, size [4]byte, v any) error {
	n := binary.BigEndian.Uint32(size[:])
	if n > MaxMessage {
		return fmt.Errorf("message of %d bytes: want %d at most", n, MaxMessage)
	}
	// ReadAll grows with what really arrives, so that a length alone cannot make us allocate.
	body, err := io.ReadAll(io.LimitReader(rd, int64(n)))
	if err != nil {
		return fmt.Errorf("read message: %w", err)
	}
	if len(body) < int(n) {
		return fmt.Errorf("read message: %w", io.ErrUnexpectedEOF)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("decode message: %w", err)
	}
	return nil
}

// Call makes one call of a connected node process and bounds it by the deadline. Nothing but the response ends it
// earlier than that, except that the node process goes away.
func Call(conn *net.UnixConn, r Request, netns *os.File, deadline time.Time) (Response, error) {
	if err := conn.SetDeadline(deadline); err != nil {
		return Response{}, fmt.Errorf("set deadline: %w", err)
	}
	writeErr := WriteRequest(conn, r, netns)
	resp, readErr := ReadResponse(conn) // a server that refuses a request need not read all of it
	if readErr != nil {
		return Response{}, cmp.Or(writeErr, readErr)
	}
	return resp, nil
}
