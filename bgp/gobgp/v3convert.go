package gobgp

import (
	"fmt"
	"time"

	v3api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// lowered are the enums that begin with "unspecified" in version 4 and do not in version 3, where each value is one less.
var lowered = map[protoreflect.FullName]bool{
	"api.TableType": true, "api.PeerType": true, "api.PeerState.AdminState": true, "api.MatchSet.Type": true,
	"api.DefinedType": true, "api.CommunityAction.Type": true, "api.MedAction.Type": true, "api.Comparison": true,
}

// toV3 copies a message into its counterpart of the older API. Apart from enums they are the same on the wire. It changes
// the message that it copies.
func toV3(from, to proto.Message) error {
	lower3(from.ProtoReflect())
	data, err := proto.Marshal(from)
	if err != nil {
		return fmt.Errorf("encode %T: %w", from, err)
	}
	if err := proto.Unmarshal(data, to); err != nil {
		return fmt.Errorf("decode %T: %w", to, err)
	}
	return nil
}

func lower3(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Kind() == protoreflect.EnumKind && !f.IsList() && lowered[f.Enum().FullName()]:
			m.Set(f, protoreflect.ValueOfEnum(max(v.Enum()-1, 0)))
		case f.Kind() == protoreflect.MessageKind && f.IsList():
			for i := range v.List().Len() {
				lower3(v.List().Get(i).Message())
			}
		case f.Kind() == protoreflect.MessageKind && !f.IsMap():
			lower3(v.Message())
		}
		return true
	})
}

// peerToV3 copies a peer without its password and policies. Capabilities differ in form and are copied one by one.
func peerToV3(p *api.Peer) (*v3api.Peer, error) {
	blankPeer(p)
	p.ApplyPolicy = nil
	for _, a := range p.AfiSafis {
		a.ApplyPolicy = nil
	}
	var remote, local []*anypb.Any
	if st := p.State; st != nil {
		remote, local = capabilities(st.RemoteCap), capabilities(st.LocalCap)
		st.RemoteCap, st.LocalCap = nil, nil
	}
	out := &v3api.Peer{}
	if err := toV3(p, out); err != nil {
		return nil, err
	}
	if out.State != nil {
		out.State.RemoteCap, out.State.LocalCap = remote, local
	}
	return out, nil
}

// capabilities wraps each as the older API does. One that it does not know is left out: a single unknown type makes the CLI
// hide the whole list.
func capabilities(caps []*api.Capability) []*anypb.Any {
	var out []*anypb.Any
	for _, c := range caps {
		c.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			if f.Kind() != protoreflect.MessageKind {
				return true
			}
			m := v.Message()
			name := protoreflect.FullName("apipb." + m.Descriptor().Name())
			if _, err := protoregistry.GlobalTypes.FindMessageByName(name); err != nil {
				return true
			}
			if data, err := proto.Marshal(m.Interface()); err == nil {
				out = append(out, &anypb.Any{TypeUrl: "type.googleapis.com/" + string(name), Value: data})
			}
			return true
		})
	}
	return out
}

// pathToV3 gives prefix and attributes in BGP's own encoding, which both versions read.
func pathToV3(p *apiutil.Path) *v3api.Path {
	out := &v3api.Path{
		Age: timestamppb.New(time.Unix(p.Age, 0)), Best: p.Best, IsWithdraw: p.Withdrawal, Stale: p.Stale,
		Family:         &v3api.Family{Afi: v3api.Family_Afi(p.Family.Afi()), Safi: v3api.Family_Safi(p.Family.Safi())},
		IsFromExternal: p.IsFromExternal, NoImplicitWithdraw: p.NoImplicitWithdraw, IsNexthopInvalid: p.IsNexthopInvalid,
		Filtered: p.Filtered, SourceAsn: p.PeerASN, Identifier: p.RemoteID, LocalIdentifier: p.LocalID,
	}
	if p.PeerID.IsValid() {
		out.SourceId = p.PeerID.String()
	}
	if p.PeerAddress.IsValid() {
		out.NeighborIp = p.PeerAddress.String()
	}
	if p.Nlri != nil {
		out.NlriBinary, _ = p.Nlri.Serialize() // what the engine has parsed it can write
	}
	for _, a := range p.Attrs {
		if data, err := a.Serialize(); err == nil {
			out.PattrsBinary = append(out.PattrsBinary, data)
		}
	}
	return out
}

func pathsEvent(paths []*apiutil.Path) *v3api.WatchEventResponse {
	table := &v3api.WatchEventResponse_TableEvent{}
	for _, p := range paths {
		table.Paths = append(table.Paths, pathToV3(p))
	}
	return &v3api.WatchEventResponse{Event: &v3api.WatchEventResponse_Table{Table: table}}
}

func peerEvent(e *apiutil.WatchEventMessage_PeerEvent) *v3api.WatchEventResponse {
	p := e.Peer
	peer := &v3api.Peer{
		Conf: &v3api.PeerConf{
			PeerAsn: p.Conf.PeerASN, LocalAsn: p.Conf.LocalASN, NeighborAddress: p.Conf.NeighborAddress.String(),
			NeighborInterface: p.Conf.NeighborInterface, PeerGroup: p.Conf.PeerGroup,
		},
		State: &v3api.PeerState{
			PeerAsn: p.State.PeerASN, LocalAsn: p.State.LocalASN, NeighborAddress: p.State.NeighborAddress.String(),
			SessionState: v3api.PeerState_SessionState(int(p.State.SessionState) + 1), // the engine counts from Idle
			AdminState:   v3api.PeerState_AdminState(max(p.State.AdminState-1, 0)),
			RouterId:     p.State.RouterID.String(),
		},
		Transport: &v3api.Transport{
			LocalAddress: p.Transport.LocalAddress.String(), LocalPort: p.Transport.LocalPort, RemotePort: p.Transport.RemotePort,
		},
	}
	return &v3api.WatchEventResponse{Event: &v3api.WatchEventResponse_Peer{Peer: &v3api.WatchEventResponse_PeerEvent{
		Type: v3api.WatchEventResponse_PeerEvent_Type(e.Type), Peer: peer,
	}}}
}

func tableType(t v3api.TableType) api.TableType { return api.TableType(t + 1) }

func family(f *v3api.Family) *api.Family {
	if f == nil {
		return nil
	}
	return &api.Family{Afi: api.Family_Afi(f.Afi), Safi: api.Family_Safi(f.Safi)}
}
