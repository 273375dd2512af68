package gobgp

import (
	"context"

	v3api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v4/api"
	"google.golang.org/protobuf/proto"
)

// list collects what the engine lists and sends each item in its older form.
func list[Item, Out proto.Message](ctx context.Context, read func(context.Context, func(Item)) error, out func() Out, send func(Out) error) error {
	var items []Item
	if err := read(ctx, func(i Item) { items = append(items, i) }); err != nil {
		return err
	}
	for _, i := range items {
		o := out()
		if err := toV3(i, o); err != nil {
			return err
		}
		if err := send(o); err != nil {
			return err
		}
	}
	return nil
}

// ListDefinedSet implements v3's service.
func (v *v3) ListDefinedSet(r *v3api.ListDefinedSetRequest, stream v3api.GobgpApi_ListDefinedSetServer) error {
	req := &api.ListDefinedSetRequest{DefinedType: api.DefinedType(r.DefinedType + 1), Name: r.Name}
	return list(stream.Context(),
		func(ctx context.Context, each func(*api.DefinedSet)) error {
			return v.s.engine.ListDefinedSet(ctx, req, each)
		},
		func() *v3api.DefinedSet { return &v3api.DefinedSet{} },
		func(d *v3api.DefinedSet) error { return stream.Send(&v3api.ListDefinedSetResponse{DefinedSet: d}) })
}

// ListStatement implements v3's service.
func (v *v3) ListStatement(r *v3api.ListStatementRequest, stream v3api.GobgpApi_ListStatementServer) error {
	req := &api.ListStatementRequest{Name: r.Name}
	return list(stream.Context(),
		func(ctx context.Context, each func(*api.Statement)) error {
			return v.s.engine.ListStatement(ctx, req, each)
		},
		func() *v3api.Statement { return &v3api.Statement{} },
		func(s *v3api.Statement) error { return stream.Send(&v3api.ListStatementResponse{Statement: s}) })
}

// ListPolicy implements v3's service.
func (v *v3) ListPolicy(r *v3api.ListPolicyRequest, stream v3api.GobgpApi_ListPolicyServer) error {
	req := &api.ListPolicyRequest{Name: r.Name}
	return list(stream.Context(),
		func(ctx context.Context, each func(*api.Policy)) error { return v.s.engine.ListPolicy(ctx, req, each) },
		func() *v3api.Policy { return &v3api.Policy{} },
		func(p *v3api.Policy) error { return stream.Send(&v3api.ListPolicyResponse{Policy: p}) })
}

// ListPolicyAssignment implements v3's service.
func (v *v3) ListPolicyAssignment(r *v3api.ListPolicyAssignmentRequest, stream v3api.GobgpApi_ListPolicyAssignmentServer) error {
	req := &api.ListPolicyAssignmentRequest{Name: r.Name, Direction: api.PolicyDirection(r.Direction)}
	return list(stream.Context(),
		func(ctx context.Context, each func(*api.PolicyAssignment)) error {
			return v.s.engine.ListPolicyAssignment(ctx, req, each)
		},
		func() *v3api.PolicyAssignment { return &v3api.PolicyAssignment{} },
		func(a *v3api.PolicyAssignment) error {
			return stream.Send(&v3api.ListPolicyAssignmentResponse{Assignment: a})
		})
}

// What this speaker never has is an empty list.

// ListPeerGroup implements v3's service.
func (v *v3) ListPeerGroup(*v3api.ListPeerGroupRequest, v3api.GobgpApi_ListPeerGroupServer) error {
	return nil
}

// ListDynamicNeighbor implements v3's service.
func (v *v3) ListDynamicNeighbor(*v3api.ListDynamicNeighborRequest, v3api.GobgpApi_ListDynamicNeighborServer) error {
	return nil
}

// ListVrf implements v3's service.
func (v *v3) ListVrf(*v3api.ListVrfRequest, v3api.GobgpApi_ListVrfServer) error { return nil }

// ListRpki implements v3's service.
func (v *v3) ListRpki(*v3api.ListRpkiRequest, v3api.GobgpApi_ListRpkiServer) error { return nil }

// ListRpkiTable implements v3's service.
func (v *v3) ListRpkiTable(*v3api.ListRpkiTableRequest, v3api.GobgpApi_ListRpkiTableServer) error {
	return nil
}

// ListBmp implements v3's service.
func (v *v3) ListBmp(*v3api.ListBmpRequest, v3api.GobgpApi_ListBmpServer) error { return nil }
