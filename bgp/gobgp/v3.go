package gobgp

import (
	"context"
	"path"
	"time"

	v3api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// eventQueue bounds the events that wait for a slow CLI. Beyond it events are dropped: a CLI must not hold up the engine.
const eventQueue = 1024

// A v3 answers the API of GoBGP 3, which Debian's and Ubuntu's gobgp command speaks, from the engine. Only what reads is
// implemented; the embedded server refuses the rest, and so does the allow-list before it.
type v3 struct {
	v3api.UnimplementedGobgpApiServer
	s *Server
}

func newV3(s *Server) *v3 { return &v3{s: s} }

// handle serves calls of services that the engine's gRPC server does not know.
func (v *v3) handle(_ any, stream grpc.ServerStream) error {
	full, _ := grpc.MethodFromServerStream(stream)
	service, method := path.Split(full)
	if service != "/"+v3api.GobgpApi_ServiceDesc.ServiceName+"/" {
		return status.Errorf(codes.Unimplemented, "unknown service %s", service)
	}
	for _, m := range v3api.GobgpApi_ServiceDesc.Methods {
		if m.MethodName == method {
			resp, err := m.Handler(v, stream.Context(), stream.RecvMsg, nil)
			if err != nil {
				return err
			}
			return stream.SendMsg(resp)
		}
	}
	for _, s := range v3api.GobgpApi_ServiceDesc.Streams {
		if s.StreamName == method {
			return s.Handler(v, stream)
		}
	}
	return status.Errorf(codes.Unimplemented, "unknown method %s", full)
}

// GetBgp implements v3's service.
func (v *v3) GetBgp(ctx context.Context, _ *v3api.GetBgpRequest) (*v3api.GetBgpResponse, error) {
	resp, err := v.s.engine.GetBgp(ctx, &api.GetBgpRequest{})
	if err != nil {
		return nil, err
	}
	out := &v3api.GetBgpResponse{}
	return out, toV3(resp, out)
}

// GetTable implements v3's service.
func (v *v3) GetTable(ctx context.Context, r *v3api.GetTableRequest) (*v3api.GetTableResponse, error) {
	resp, err := v.s.engine.GetTable(ctx, &api.GetTableRequest{
		TableType: tableType(r.TableType), Family: family(r.Family), Name: r.Name,
	})
	if err != nil {
		return nil, err
	}
	out := &v3api.GetTableResponse{}
	return out, toV3(resp, out)
}

// ListPeer implements v3's service.
func (v *v3) ListPeer(r *v3api.ListPeerRequest, stream v3api.GobgpApi_ListPeerServer) error {
	var peers []*api.Peer
	err := v.s.engine.ListPeer(stream.Context(), &api.ListPeerRequest{Address: r.Address, EnableAdvertised: r.EnableAdvertised},
		func(p *api.Peer) { peers = append(peers, p) })
	if err != nil {
		return err
	}
	for _, p := range peers {
		out, err := peerToV3(p)
		if err != nil {
			return err
		}
		if err := stream.Send(&v3api.ListPeerResponse{Peer: out}); err != nil {
			return err
		}
	}
	return nil
}

// ListPath implements v3's service.
func (v *v3) ListPath(r *v3api.ListPathRequest, stream v3api.GobgpApi_ListPathServer) error {
	req := apiutil.ListPathRequest{
		TableType: tableType(r.TableType), Name: r.Name, EnableFiltered: r.EnableFiltered,
		SortType: api.ListPathRequest_SortType(r.SortType),
	}
	if r.Family != nil {
		req.Family = gobgp.NewFamily(uint16(r.Family.Afi), uint8(r.Family.Safi))
	}
	for _, p := range r.Prefixes {
		req.Prefixes = append(req.Prefixes, &apiutil.LookupPrefix{
			Prefix: p.Prefix, RD: p.Rd, LookupOption: apiutil.LookupOption(p.Type),
		})
	}
	var out []*v3api.Destination
	err := v.s.engine.ListPath(req, func(nlri gobgp.NLRI, paths []*apiutil.Path) {
		d := &v3api.Destination{Prefix: nlri.String()}
		for _, p := range paths {
			d.Paths = append(d.Paths, pathToV3(p))
		}
		out = append(out, d)
	})
	if err != nil {
		return err
	}
	for _, d := range out {
		if err := stream.Send(&v3api.ListPathResponse{Destination: d}); err != nil {
			return err
		}
	}
	return nil
}

// WatchEvent implements v3's service. It ends with the caller.
func (v *v3) WatchEvent(r *v3api.WatchEventRequest, stream v3api.GobgpApi_WatchEventServer) error {
	var opts []server.WatchOption
	if r.Peer != nil {
		opts = append(opts, server.WatchPeer())
	}
	for _, f := range r.GetTable().GetFilters() {
		switch f.Type {
		case v3api.WatchEventRequest_Table_Filter_BEST:
			opts = append(opts, server.WatchBestPath(f.Init))
		case v3api.WatchEventRequest_Table_Filter_ADJIN:
			opts = append(opts, server.WatchUpdate(f.Init, f.PeerAddress, f.PeerGroup))
		case v3api.WatchEventRequest_Table_Filter_POST_POLICY:
			opts = append(opts, server.WatchPostUpdate(f.Init, f.PeerAddress, f.PeerGroup))
		case v3api.WatchEventRequest_Table_Filter_EOR:
			opts = append(opts, server.WatchEor(f.Init))
		default:
			return status.Errorf(codes.InvalidArgument, "unknown filter type %s", f.Type)
		}
	}
	events := make(chan *v3api.WatchEventResponse, eventQueue)
	offer := func(e *v3api.WatchEventResponse) {
		select {
		case events <- e:
		default:
		}
	}
	paths := func(list []*apiutil.Path, _ time.Time) { offer(pathsEvent(list)) }
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	if err := v.s.engine.WatchEvent(ctx, server.WatchEventMessageCallbacks{
		OnPathUpdate: paths,
		OnBestPath:   paths,
		OnPathEor:    func(p *apiutil.Path, at time.Time) { paths([]*apiutil.Path{p}, at) },
		OnPeerUpdate: func(p *apiutil.WatchEventMessage_PeerEvent, _ time.Time) { offer(peerEvent(p)) },
	}, opts...); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	for {
		select {
		case e := <-events:
			if err := stream.Send(e); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
