package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/gaggle-cni/gaggle/cni/wire"
)

// A Conf is the network configuration of a call: one plugin's part of the conflist, with what the runtime added.
type Conf struct {
	CNIVersion string
	Name       string
	DNS        types.DNS
	// Annotations of the pod, when the runtime passes them (capability "io.kubernetes.cri.pod-annotations").
	// HasAnnotations tells "none" from "not passed".
	Annotations    map[string]string
	HasAnnotations bool
	// IPs are the addresses the runtime wants, one a family at most; MAC that of the interface in the container.
	IPs []netip.Addr
	MAC MAC
	// DefaultRoute says whether the interface gets the default routes; nil leaves it to the interface's name.
	DefaultRoute *bool
	// InUse are the attachments that a GC must leave alone; HasInUse tells "none" from "not said".
	InUse    []ID
	HasInUse bool
	// PrevResult is the chain's result as the runtime gives it to CHECK.
	PrevResult json.RawMessage
}

// rawConf is a Conf as it is written. Keys that are not listed are ignored, as the specification asks (section 1).
type rawConf struct {
	CNIVersion    string    `json:"cniVersion"`
	Name          string    `json:"name"`
	DNS           types.DNS `json:"dns"`
	RuntimeConfig struct {
		Annotations annotations `json:"io.kubernetes.cri.pod-annotations"`
		MAC         string      `json:"mac"`
		IPs         []string    `json:"ips"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			IPs []string `json:"ips"`
		} `json:"cni"`
	} `json:"args"`
	DefaultRoute     *bool                 `json:"defaultRoute"`
	PrevResult       json.RawMessage       `json:"prevResult"`
	ValidAttachments *[]types.GCAttachment `json:"cni.dev/valid-attachments"`
}

// annotations are those of a pod. Runtimes written in Go pass none as null, which is not the same as not passing them.
type annotations struct {
	values map[string]string
	passed bool
}

// UnmarshalJSON implements [json.Unmarshaler]; it is called for null, too.
func (a *annotations) UnmarshalJSON(data []byte) error {
	a.passed = true
	return json.Unmarshal(data, &a.values)
}

// parseConf reads a network configuration. Its errors are of type [*Error].
func parseConf(data []byte) (Conf, error) {
	var raw rawConf
	if err := json.Unmarshal(data, &raw); err != nil {
		if typeErr, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return Conf{CNIVersion: raw.CNIVersion}, &Error{
				Code:    wire.CodeInvalidConfig,
				Msg:     fmt.Sprintf("network configuration: %s: want %s, not %s", typeErr.Field, typeErr.Type, typeErr.Value),
				Details: "correct the network configuration (conflist)",
			}
		}
		return Conf{}, &Error{
			Code: wire.CodeDecode, Msg: fmt.Sprintf("network configuration: %v", err),
			Details: "standard input must hold the network configuration as JSON",
		}
	}
	c := Conf{
		CNIVersion: raw.CNIVersion, Name: raw.Name, DNS: raw.DNS,
		Annotations: raw.RuntimeConfig.Annotations.values, HasAnnotations: raw.RuntimeConfig.Annotations.passed,
		PrevResult: raw.PrevResult, DefaultRoute: raw.DefaultRoute,
	}
	if raw.ValidAttachments != nil {
		c.HasInUse = true
		for _, a := range *raw.ValidAttachments {
			c.InUse = append(c.InUse, ID{Network: c.Name, ContainerID: a.ContainerID, IfName: a.IfName})
		}
	}
	if !slices.Contains(wire.SupportedVersions, c.CNIVersion) {
		return c, &Error{
			Code:    wire.CodeIncompatibleVersion,
			Msg:     fmt.Sprintf("network configuration: cniVersion %q is not supported", c.CNIVersion),
			Details: "supported are " + strings.Join(wire.SupportedVersions, ", "),
		}
	}
	if err := wire.CheckName(c.Name); err != nil {
		return c, &Error{Code: wire.CodeInvalidConfig, Msg: fmt.Sprintf("network configuration: name %v", err)}
	}
	// A request that cannot be honoured must fail rather than be forgotten (CONVENTIONS.md of the specification).
	for _, w := range []struct {
		key string
		ips []string
	}{{"runtimeConfig.ips", raw.RuntimeConfig.IPs}, {"args.cni.ips", raw.Args.CNI.IPs}} {
		if len(w.ips) == 0 || len(c.IPs) > 0 {
			continue
		}
		ips, err := parseIPs(w.ips)
		if err != nil {
			return c, &Error{
				Code: wire.CodeInvalidConfig, Msg: fmt.Sprintf("network configuration: %s: %v", w.key, err),
				Details: "name one address a family at most, with or without the length of its prefix",
			}
		}
		c.IPs = ips
	}
	var err error
	if c.MAC, err = parseMAC(raw.RuntimeConfig.MAC); err != nil {
		return c, &Error{Code: wire.CodeInvalidConfig, Msg: fmt.Sprintf("network configuration: runtimeConfig.mac: %v", err)}
	}
	return c, nil
}

// parseIPs reads addresses with or without the length of a prefix, which is not used: pods' addresses stand alone.
func parseIPs(texts []string) (ips []netip.Addr, err error) {
	for _, text := range texts {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			p, prefixErr := netip.ParsePrefix(text)
			if prefixErr != nil {
				return nil, fmt.Errorf("%q: not an IP address", clip(text, 100))
			}
			addr = p.Addr()
		}
		if addr.Zone() != "" || addr.Is4In6() {
			return nil, fmt.Errorf("%q: want a plain IPv4 or IPv6 address", clip(text, 100))
		}
		if slices.ContainsFunc(ips, func(other netip.Addr) bool { return other.Is4() == addr.Is4() }) {
			return nil, fmt.Errorf("%q: a second address of its family", text)
		}
		ips = append(ips, addr)
	}
	return ips, nil
}

// A MAC is an EUI-48 address; the zero value is none.
type MAC [6]byte

// parseMAC reads the MAC of one interface; no text is none.
func parseMAC(text string) (m MAC, err error) {
	if text == "" {
		return m, nil
	}
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != len(m) || mac[0]&1 != 0 || MAC(mac) == m {
		return m, fmt.Errorf("%q: not the MAC address of an interface; want six bytes such as 02:00:00:00:00:01", clip(text, 100))
	}
	return MAC(mac), nil
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
