package cni

import (
	"encoding/json"
	"errors"
	"fmt"
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
		Annotations map[string]string `json:"io.kubernetes.cri.pod-annotations"`
		MAC         json.RawMessage   `json:"mac"`
		IPs         json.RawMessage   `json:"ips"`
	} `json:"runtimeConfig"`
	PrevResult       json.RawMessage       `json:"prevResult"`
	ValidAttachments *[]types.GCAttachment `json:"cni.dev/valid-attachments"`
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
		Annotations: raw.RuntimeConfig.Annotations, HasAnnotations: raw.RuntimeConfig.Annotations != nil,
		PrevResult: raw.PrevResult,
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
	for _, f := range []struct {
		key   string
		value json.RawMessage
	}{{"runtimeConfig.mac", raw.RuntimeConfig.MAC}, {"runtimeConfig.ips", raw.RuntimeConfig.IPs}} {
		if len(f.value) > 0 && string(f.value) != "null" {
			return c, &Error{
				Code:    wire.CodeUnsupportedField,
				Msg:     fmt.Sprintf("network configuration: %s: %s is not supported", f.key, clip(string(f.value), 200)),
				Details: "remove the capability from the conflist",
			}
		}
	}
	return c, nil
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
