// Package gobgp is the BGP speaker: it turns the values of package bgp into sessions and paths of an embedded GoBGP server,
// and answers the stock gobgp CLI, read-only. It is the only package that knows GoBGP. Whatever the caller does, nothing
// that was learned is passed on and nothing outside the permitted prefixes is announced: policies in the server see to that.
package gobgp

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/gaggle-cni/gaggle/bgp"
)

// Bounds of starting and stopping.
const (
	socketTimeout  = 5 * time.Second // until the API's socket is there
	socketInterval = 5 * time.Millisecond
)

// Options are what a [Server] is made from. A change of any of them needs a new Server.
type Options struct {
	ASN         uint32
	RouterID    netip.Addr   // IPv4
	ListenPort  int          // 0: do not listen
	ListenAddrs []netip.Addr // empty: all
	// APISocket is the path of the read-only gobgp API, of mode 0600. APIListen is a TCP address for it in addition.
	APISocket, APIListen string
	// Restarting tells peers that this start is a restart (RFC 4724 section 3, Restart State bit), so that they keep what
	// they know until they have heard everything again. It must be false after a cold start.
	Restarting bool
	Log        *slog.Logger
	// Changed is called when a session changed its state or a peer's routes changed. It must only signal.
	Changed func()
}

// A Server is one life of the speaker. It is used once: after Stop there is no new Start.
type Server struct {
	o      Options
	engine *server.BgpServer
	log    *engineLog
	served sync.WaitGroup
	cancel context.CancelFunc // ends the watch

	announcements *Announcements
	peers         *Peers

	// policies is held from the reading of what policies are made of until it is noted what they were made of.
	policies sync.Mutex

	mu      sync.Mutex
	own     []netip.Prefix        // what may be announced
	reasons map[netip.Addr]string // why a peer's last session ended; the engine tells it once
}

// New checks the options.
func New(o Options) (*Server, error) {
	if !o.RouterID.Is4() || o.RouterID.IsUnspecified() {
		return nil, fmt.Errorf("router id %v: want 32 bits written as an IPv4 address", o.RouterID)
	}
	s := &Server{o: o, log: newEngineLog(o.Log), reasons: make(map[netip.Addr]string)}
	s.announcements = &Announcements{s: s, have: make(map[netip.Prefix]bgp.Announcement)}
	s.peers = &Peers{s: s, have: make(map[bgp.PeerID]bgp.Peer)}
	return s, nil
}

// Announcements returns what is announced, a node.Target.
func (s *Server) Announcements() *Announcements { return s.announcements }

// Peers returns the sessions, a node.Target.
func (s *Server) Peers() *Peers { return s.peers }

// Start begins to listen, for BGP and for the CLI. There are no peers yet, and the policies let nothing in or out.
func (s *Server) Start(ctx context.Context) (err error) {
	if err := os.Remove(s.o.APISocket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove old gobgp socket: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
		}
	}()
	if err := s.startEngine(ctx); err != nil {
		return err
	}
	addrs := make([]string, 0, len(s.o.ListenAddrs))
	for _, a := range s.o.ListenAddrs {
		addrs = append(addrs, a.String())
	}
	port := int32(s.o.ListenPort)
	if port == 0 {
		port = -1 // the engine takes 0 for the default port
	}
	if err := s.engine.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{
		Asn: s.o.ASN, RouterId: s.o.RouterID.String(), ListenPort: port, ListenAddresses: addrs, UseMultiplePaths: true,
	}}); err != nil {
		return fmt.Errorf("start BGP on port %d: %w", s.o.ListenPort, err)
	}
	if err := s.installPolicies(ctx); err != nil {
		return err
	}
	watch, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	err = s.engine.WatchEvent(watch, server.WatchEventMessageCallbacks{
		OnPeerUpdate: func(e *apiutil.WatchEventMessage_PeerEvent, _ time.Time) {
			s.noteReason(e.Peer.State)
			s.o.Changed()
		},
		OnBestPath: func(paths []*apiutil.Path, _ time.Time) {
			for _, p := range paths {
				if p.PeerAddress.IsValid() { // a peer's: what we announce ourselves is no news
					s.o.Changed()
					return
				}
			}
		},
	}, server.WatchPeer(), server.WatchBestPath(false))
	if err != nil {
		return fmt.Errorf("watch BGP: %w", err)
	}
	return nil
}

// startEngine makes the server, which opens the API's sockets in a goroutine of its own and reports no error. The socket is
// for its owner only from the first moment on: the mask is the process's, and nothing else makes files while it starts.
func (s *Server) startEngine(ctx context.Context) error {
	hosts := "unix://" + s.o.APISocket
	if s.o.APIListen != "" {
		hosts += "," + s.o.APIListen
	}
	mask := syscall.Umask(0o177)
	defer syscall.Umask(mask)
	s.engine = server.NewBgpServer(
		server.LoggerOption(slog.New(s.log), s.log.level),
		server.GrpcListenAddress(hosts), server.GrpcOption(s.readOnly()))
	s.served.Go(s.engine.Serve)
	return s.awaitSocket(ctx)
}

func (s *Server) awaitSocket(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, socketTimeout)
	defer cancel()
	ticker := time.NewTicker(socketInterval)
	defer ticker.Stop()
	for {
		if _, err := os.Stat(s.o.APISocket); err == nil {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("listen on %s for the gobgp CLI: %s", s.o.APISocket, s.log.lastWarning())
		}
	}
}

// Stop ends the sessions without a NOTIFICATION towards peers with graceful restart, so that these keep our routes for the
// restart time; others get a Cease. It returns when everything has ended, or with the context.
func (s *Server) Stop(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { // ends with the engine
		if s.cancel != nil {
			s.cancel()
		}
		err := s.engine.StopBgp(ctx, &api.StopBgpRequest{AllowGracefulRestart: true})
		s.log.quiet() // Stop complains that there is nothing left to stop
		s.engine.Stop()
		s.served.Wait()
		if removeErr := os.Remove(s.o.APISocket); removeErr != nil && !errors.Is(removeErr, fs.ErrNotExist) {
			err = errors.Join(err, removeErr)
		}
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("stop BGP: %w", context.Cause(ctx))
	}
}
