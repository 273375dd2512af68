package gobgp

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type v3 struct{ s *Server }

func newV3(s *Server) *v3 { return &v3{s} }

func (v *v3) handle(any, grpc.ServerStream) error {
	return status.Error(codes.Unimplemented, "not yet")
}
