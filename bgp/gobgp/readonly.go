package gobgp

import (
	"context"
	"slices"
	"strings"

	"github.com/osrg/gobgp/v4/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// reading are the methods, of both versions of the API, that change nothing. Whatever is not listed here is refused, what a
// later version of the engine adds too.
var reading = []string{
	"GetBgp", "GetTable", "WatchEvent",
	"ListBmp", "ListDefinedSet", "ListDynamicNeighbor", "ListPath", "ListPeer", "ListPeerGroup", "ListPolicy",
	"ListPolicyAssignment", "ListRpki", "ListRpkiTable", "ListStatement", "ListVrf",
}

// readOnly are the options of the engine's gRPC server: an allow-list, passwords blanked, and the older API behind the
// handler of unknown services, on the same sockets.
func (s *Server) readOnly() []grpc.ServerOption {
	old := newV3(s)
	return []grpc.ServerOption{
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if err := allowed(info.FullMethod); err != nil {
				return nil, err
			}
			return next(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			// Unknown services come this way too, unary methods of the older API among them.
			if err := allowed(info.FullMethod); err != nil {
				return err
			}
			return next(srv, blankingStream{stream})
		}),
		grpc.UnknownServiceHandler(old.handle),
	}
}

func allowed(fullMethod string) error {
	method := fullMethod[strings.LastIndexByte(fullMethod, '/')+1:]
	if slices.Contains(reading, method) {
		return nil
	}
	return status.Errorf(codes.PermissionDenied, "%s: this API is read-only: change the NodeConfig instead", method)
}

// A blankingStream keeps passwords in: the engine's answers carry them in clear text.
type blankingStream struct{ grpc.ServerStream }

// SendMsg blanks the message before it leaves.
func (b blankingStream) SendMsg(m any) error {
	if msg, ok := m.(proto.Message); ok {
		blank(msg)
	}
	return b.ServerStream.SendMsg(m)
}

// blank empties the passwords of the messages that can carry any. The messages are copies the engine made for the answer.
func blank(m proto.Message) {
	switch m := m.(type) {
	case *api.ListPeerResponse:
		blankPeer(m.GetPeer())
	case *api.ListPeerGroupResponse:
		if c := m.GetPeerGroup().GetConf(); c != nil {
			c.AuthPassword = ""
		}
		if info := m.GetPeerGroup().GetInfo(); info != nil {
			info.AuthPassword = ""
		}
	case *api.WatchEventResponse:
		blankPeer(m.GetPeer().GetPeer())
	}
}

func blankPeer(p *api.Peer) {
	if c := p.GetConf(); c != nil {
		c.AuthPassword = ""
	}
	if st := p.GetState(); st != nil {
		st.AuthPassword = ""
	}
}
