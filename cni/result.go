package cni

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	_ "github.com/containernetworking/cni/pkg/types/create" // the older versions register themselves
)

// encodeResult writes a result in the version that the configuration asks for (CNI spec 1.1.0 section 5). The host's end
// comes first and has no sandbox, as plugins that are chained after us expect; addresses belong to the second interface.
func encodeResult(r Result, req Request) (json.RawMessage, error) {
	mtu := r.MTU
	if req.Conf.CNIVersion < "1.1.0" {
		mtu = 0 // the library keeps the field when it converts, older versions do not have it
	}
	out := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{
			{Name: r.HostIf, Mac: r.HostMAC, Mtu: mtu},
			{Name: req.ID.IfName, Mac: r.MAC, Mtu: mtu, Sandbox: req.NetnsPath},
		},
		DNS: req.Conf.DNS,
	}
	for _, ip := range r.IPs {
		out.IPs = append(out.IPs, &types100.IPConfig{
			Interface: new(1),
			Address:   ipNet(ip.Address),
			Gateway:   ip.Gateway.AsSlice(),
		})
	}
	for _, route := range r.Routes {
		out.Routes = append(out.Routes, &types.Route{Dst: ipNet(route.Dst), GW: route.GW.AsSlice()})
	}
	versioned, err := out.GetAsVersion(req.Conf.CNIVersion)
	if err != nil {
		return nil, fmt.Errorf("convert result to version %s: %w", req.Conf.CNIVersion, err)
	}
	data, err := json.Marshal(versioned)
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	return data, nil
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
