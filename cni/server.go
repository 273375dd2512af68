package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/cni/wire"
)

// Bounds of a call. The plugin says how long it waits; the server is done a little earlier, so that its reason arrives.
const (
	readTimeout   = 10 * time.Second
	writeTimeout  = 10 * time.Second
	maxCall       = 2 * time.Minute
	defaultCall   = 30 * time.Second
	replyMargin   = 500 * time.Millisecond
	maxConcurrent = 256 // calls at once; further ones wait in the socket's backlog
)

// Options are what a [Server] needs.
type Options struct {
	Socket  string // path of the unix socket
	Handler Handler
	Log     *slog.Logger
	// Queue is the directory of DELs that came while no node process was there.
	Queue string
	// Done is told of each call that ended: the command, its CNI code (0 for success) and how long it took. It may be nil.
	Done func(command string, code uint, took time.Duration)
}

// A Server answers the plugin on a unix socket that only root can use.
type Server struct {
	o        Options
	listener *net.UnixListener

	replaying chan struct{} // full while a deletion is being done
}

// Listen opens the socket, in place of one that an earlier process left. The caller makes sure that no other process
// serves it. Calls wait until [Server.Run].
func Listen(ctx context.Context, o Options) (*Server, error) {
	l, err := ListenPrivate(ctx, o.Socket)
	if err != nil {
		return nil, fmt.Errorf("listen for CNI: %w", err)
	}
	return &Server{o: o, listener: l, replaying: make(chan struct{}, 1)}, nil
}

// ListenPrivate opens a unix socket that only its owner can use, in place of what an earlier process left under that path.
func ListenPrivate(ctx context.Context, path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove old socket: %w", err)
	}
	// The mode of the file is that of the socket before bind (net/unix/af_unix.c, unix_bind), so that at no moment, under
	// whatever umask, anybody else can connect.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var chmodErr error
		err := c.Control(func(fd uintptr) { chmodErr = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, chmodErr)
	}}
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// Run serves until the context ends, then waits for the calls under way. They go on with their own bounds.
func (s *Server) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.listener.Close() })
	defer stop()
	var calls sync.WaitGroup
	defer calls.Wait()
	replays, stopReplays := context.WithCancel(ctx)
	defer stopReplays()
	calls.Go(func() { s.replayUntil(replays) })
	slots := make(chan struct{}, maxConcurrent)
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		conn, err := s.listener.AcceptUnix()
		received := time.Now() // here, where the calls still come one after the other
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept CNI call: %w", err)
		}
		calls.Go(func() {
			defer func() { <-slots }()
			s.serve(context.WithoutCancel(ctx), conn, received)
		})
	}
}

// serve answers one call and closes the connection.
func (s *Server) serve(ctx context.Context, conn *net.UnixConn, start time.Time) {
	defer func() { _ = conn.Close() }()
	if err := checkPeer(conn); err != nil {
		s.o.Log.WarnContext(ctx, "refused a CNI client", "err", err)
		return
	}
	_ = conn.SetReadDeadline(start.Add(readTimeout))
	wreq, netns, err := wire.ReadRequest(conn)
	if netns != nil {
		defer netns.Close()
	}
	if errors.Is(err, io.EOF) {
		return // somebody looked whether the socket answers
	}
	if err != nil {
		s.o.Log.WarnContext(ctx, "unreadable CNI request", "err", err)
		s.reply(ctx, conn, wire.Response{Error: wireError(&Error{Code: wire.CodeDecode, Msg: err.Error()}, "")})
		return
	}
	_ = conn.SetReadDeadline(time.Time{})

	timeout := time.Duration(wreq.Timeout) * time.Millisecond
	if timeout <= 0 || timeout > maxCall {
		timeout = defaultCall
	}
	ctx, cancel := context.WithTimeout(ctx, max(timeout-replyMargin, timeout/2))
	defer cancel()
	go func() { // ends with the connection
		_, _ = conn.Read(make([]byte, 1)) // the plugin sends nothing more: this returns when it is gone
		cancel()
	}()

	resp := s.call(ctx, wreq, netns, start)
	resp.Protocol = wire.Version
	s.reply(ctx, conn, resp)
	if s.o.Done != nil {
		var code uint
		if resp.Error != nil {
			code = resp.Error.Code
		}
		s.o.Done(wreq.Command, code, time.Since(start))
	}
}

func (s *Server) reply(ctx context.Context, conn *net.UnixConn, resp wire.Response) {
	_ = conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	if err := wire.WriteResponse(conn, resp); err != nil {
		s.o.Log.DebugContext(ctx, "caller gone before the response", "err", err)
	}
}

// call runs one request. A panic is an error of this call alone.
func (s *Server) call(ctx context.Context, wreq wire.Request, netns *os.File, received time.Time) (resp wire.Response) {
	version := ""
	defer func() {
		if p := recover(); p != nil {
			s.o.Log.ErrorContext(ctx, "panic in a CNI call", "reason", p, "stack", string(debug.Stack()))
			resp = wire.Response{Error: wireError(fmt.Errorf("internal fault: %v", p), version)}
		}
	}()
	req, err := parse(wreq, netns)
	version, req.Received = req.Conf.CNIVersion, received
	if err != nil {
		return wire.Response{Error: wireError(err, version)}
	}
	var data json.RawMessage
	switch wreq.Command {
	case "ADD":
		if err = s.clearWay(ctx, req.ID); err != nil {
			break // done later, its DEL would take the new one for the old
		}
		var result Result
		if result, err = s.o.Handler.Add(ctx, req); err == nil {
			data, err = encodeResult(result, req)
		}
	case "DEL":
		err = s.o.Handler.Del(ctx, req)
	case "CHECK":
		err = s.o.Handler.Check(ctx, req)
	case "GC":
		err = s.o.Handler.GC(ctx, req.ID.Network, req.Conf.InUse)
	case "STATUS":
		err = s.o.Handler.Ready(ctx)
	}
	if err != nil {
		return wire.Response{Error: wireError(err, version)}
	}
	return wire.Response{Result: data}
}

// checkPeer lets in root and the user that the server itself runs as.
func checkPeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("read peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, credErr); err != nil {
		return fmt.Errorf("read peer credentials: %w", err)
	}
	if uid := int(cred.Uid); uid != 0 && uid != os.Geteuid() {
		return fmt.Errorf("peer has uid %d: want 0", uid)
	}
	return nil
}
