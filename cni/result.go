package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create" // the older versions register themselves
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

// parsePrevious reads a prevResult of any version.
func parsePrevious(conf Conf, ifName string) (Previous, error) {
	if len(conf.PrevResult) == 0 || string(conf.PrevResult) == "null" {
		return Previous{}, errors.New("prevResult is missing: CHECK needs the result of ADD (CNI spec 1.1.0 section 2)")
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(conf.PrevResult, &fields); err != nil {
		return Previous{}, fmt.Errorf("prevResult: %w", err)
	}
	if fields != nil && fields["cniVersion"] == nil { // then it is that of the configuration
		fields["cniVersion"] = json.RawMessage(strconv.Quote(conf.CNIVersion))
	}
	data, err := json.Marshal(fields)
	if err != nil {
		return Previous{}, fmt.Errorf("prevResult: %w", err)
	}
	old, err := create.CreateFromBytes(data)
	if err != nil {
		return Previous{}, fmt.Errorf("prevResult: %w", err)
	}
	r, err := types100.GetResult(old)
	if err != nil {
		return Previous{}, fmt.Errorf("prevResult: %w", err)
	}
	prev := Previous{MACs: make(map[string]string)}
	for _, i := range r.Interfaces {
		if inContainer := i.Sandbox != ""; inContainer == (i.Name == ifName) {
			prev.MACs[i.Name] = i.Mac
		}
	}
	for _, ip := range r.IPs {
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			prev.IPs = append(prev.IPs, addr.Unmap())
		}
	}
	return prev, nil
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
