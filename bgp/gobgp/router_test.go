package gobgp

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// routerSocket makes this program a router, which is told what to do over the socket of that name.
const routerSocket = "GAGGLE_TEST_ROUTER"

// A router is another engine, configured with nothing of ours. It is another process: engines of one process share what is
// global in the library.
type router struct {
	*testing.T
	api.GoBgpServiceClient
	asn uint32
	withdrawn,
	downs atomic.Int32 // prefixes lost and sessions ended since it started
}

func runRouter(socket string) {
	engine := server.NewBgpServer(server.LoggerOption(slog.New(slog.DiscardHandler), nil), server.GrpcListenAddress("unix://"+socket))
	engine.Serve()
	select {} // the NOTIFICATION, and the answer to whoever stopped it, may be on their way; the test ends the process
}

// startRouter starts a router that connects from one address to another, ours, again and again.
func startRouter(t *testing.T, from, to netip.Addr, change ...func(*api.Peer)) *router {
	t.Helper()
	p := routerPeer(from, to)
	for _, c := range change {
		c(p)
	}
	r := &router{T: t, asn: p.Conf.LocalAsn}
	socket := filepath.Join(t.TempDir(), "router.sock")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), routerSocket+"="+socket)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	r.must(cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // says that it was killed
	})
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	r.must(err)
	t.Cleanup(func() { conn.Close() })
	r.GoBgpServiceClient = api.NewGoBgpServiceClient(conn)

	id := addr("192.0.2.100").As4()
	id[3] += from.AsSlice()[len(from.AsSlice())-1]
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = r.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{
		Asn: r.asn, RouterId: netip.AddrFrom4(id).String(), ListenPort: -1,
	}}, grpc.WaitForReady(true))
	r.must(err)
	r.watch()
	_, err = r.AddPeer(t.Context(), &api.AddPeerRequest{Peer: p})
	r.must(err)
	return r
}

func routerPeer(from, to netip.Addr) *api.Peer {
	p := &api.Peer{
		Conf:      &api.PeerConf{NeighborAddress: to.String(), PeerAsn: ourASN, LocalAsn: upstreamASN},
		Transport: &api.Transport{LocalAddress: from.String()},
		Timers:    &api.Timers{Config: &api.TimersConfig{ConnectRetry: 1, HoldTime: 9, KeepaliveInterval: 3, IdleHoldTimeAfterReset: 1}},
		GracefulRestart: &api.GracefulRestart{
			Enabled: true, RestartTime: 120, DeferralTime: 1, NotificationEnabled: true,
		},
	}
	for _, afi := range []api.Family_Afi{api.Family_AFI_IP, api.Family_AFI_IP6} {
		p.AfiSafis = append(p.AfiSafis, &api.AfiSafi{
			Config:            &api.AfiSafiConfig{Family: &api.Family{Afi: afi, Safi: api.Family_SAFI_UNICAST}, Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: true}},
		})
	}
	return p
}

func (r *router) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// watch counts until the router ends.
func (r *router) watch() {
	r.Helper()
	stream, err := r.WatchEvent(r.Context(), &api.WatchEventRequest{
		Peer: &api.WatchEventRequest_Peer{},
		Table: &api.WatchEventRequest_Table{Filters: []*api.WatchEventRequest_Table_Filter{{
			Type: api.WatchEventRequest_Table_Filter_TYPE_BEST,
		}}},
	})
	r.must(err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		up := false
		for {
			e, err := stream.Recv()
			if err != nil {
				return
			}
			for _, p := range e.GetTable().GetPaths() {
				if p.IsWithdraw {
					r.withdrawn.Add(1)
				}
			}
			state := e.GetPeer().GetPeer().GetState().GetSessionState()
			if up && state == api.PeerState_SESSION_STATE_IDLE {
				r.downs.Add(1)
			}
			up = up && state == api.PeerState_SESSION_STATE_UNSPECIFIED || state == api.PeerState_SESSION_STATE_ESTABLISHED
		}
	}()
	r.Cleanup(func() { <-ended }) // the context of the test has ended
}

// leave ends the router's sessions and forgets its routes.
func (r *router) leave() {
	r.Helper()
	_, err := r.StopBgp(r.Context(), &api.StopBgpRequest{})
	r.must(err)
}

// announce lets the router tell us of a prefix.
func (r *router) announce(p netip.Prefix, nextHop netip.Addr) {
	r.Helper()
	nlri, err := gobgp.NewIPAddrPrefix(p)
	r.must(err)
	var hop gobgp.PathAttributeInterface
	family := gobgp.RF_IPv6_UC
	if p.Addr().Is4() {
		family = gobgp.RF_IPv4_UC
		hop, err = gobgp.NewPathAttributeNextHop(nextHop)
	} else {
		hop, err = gobgp.NewPathAttributeMpReachNLRI(family, []gobgp.PathNLRI{{NLRI: nlri}}, nextHop)
	}
	r.must(err)
	path, err := apiutil.NewPath(family, nlri, false, []gobgp.PathAttributeInterface{gobgp.NewPathAttributeOrigin(0), hop}, time.Now())
	r.must(err)
	_, err = r.AddPath(r.Context(), &api.AddPathRequest{Path: path})
	r.must(err)
}

// learned is what the router knows from us, in words, by prefix.
func (r *router) learned() map[string]string {
	r.Helper()
	out := make(map[string]string)
	for _, afi := range []api.Family_Afi{api.Family_AFI_IP, api.Family_AFI_IP6} {
		stream, err := r.ListPath(r.Context(), &api.ListPathRequest{
			TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: &api.Family{Afi: afi, Safi: api.Family_SAFI_UNICAST},
		})
		r.must(err)
		for {
			resp, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			r.must(err)
			for _, p := range resp.Destination.Paths {
				if p.NeighborIp != "" && p.NeighborIp != "<nil>" {
					out[resp.Destination.Prefix] = r.words(p)
				}
			}
		}
	}
	return out
}

// words tells a path's attributes in the order of their numbers.
func (r *router) words(p *api.Path) string {
	r.Helper()
	attrs, err := apiutil.GetNativePathAttributes(p)
	r.must(err)
	slices.SortFunc(attrs, func(a, b gobgp.PathAttributeInterface) int { return int(a.GetType()) - int(b.GetType()) })
	var out []string
	for _, a := range attrs {
		switch a := a.(type) {
		case *gobgp.PathAttributeOrigin:
		case *gobgp.PathAttributeAsPath:
			out = append(out, "as "+gobgp.AsPathString(a))
		case *gobgp.PathAttributeNextHop:
			out = append(out, "via "+a.Value.String())
		case *gobgp.PathAttributeMpReachNLRI:
			out = append(out, "via "+a.Nexthop.String())
		default:
			out = append(out, strings.Trim(a.String(), "{}"))
		}
	}
	if p.Stale {
		out = append(out, "stale")
	}
	return strings.Join(out, ", ")
}

// knows waits until the router's table of what we announce is as wanted.
func (r *router) knows(want map[string]string) {
	r.Helper()
	eventually(r.T, func() (bool, string) {
		diff := cmp.Diff(want, r.learned())
		return diff == "", "router's table (-want +got):\n" + diff
	})
}

// uptime identifies the session: it began then, and has been up since.
func (r *router) uptime() (began time.Time) {
	r.Helper()
	p := r.session()
	if p.State.SessionState == api.PeerState_SESSION_STATE_ESTABLISHED {
		began = p.Timers.State.Uptime.AsTime()
	}
	return began
}

// hearsRestart reports whether we said in our OPEN message that we have restarted (RFC 4724 section 3, Restart State).
func (r *router) hearsRestart() bool {
	r.Helper()
	for _, c := range r.session().State.RemoteCap {
		if gr := c.GetGracefulRestart(); gr != nil {
			return gr.Flags&0x8 != 0
		}
	}
	r.Fatal("the router has no graceful restart capability of ours")
	return false
}

func (r *router) session() *api.Peer {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	stream, err := r.ListPeer(ctx, &api.ListPeerRequest{})
	r.must(err)
	resp, err := stream.Recv()
	r.must(err)
	return resp.Peer
}
