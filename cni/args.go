package cni

import (
	"fmt"
	"net/netip"
	"strings"
)

// callArgs are the keys of CNI_ARGS that are known. Those that ask for addresses are the older way; what the configuration
// asks for comes first.
type callArgs struct {
	PodArgs
	ips []netip.Addr
	mac MAC
}

// parseArgs reads CNI_ARGS: "KEY=VALUE" pairs separated by semicolons, in any order. A key that is not known is refused
// unless IgnoreUnknown is set (CONVENTIONS.md of the specification). A trailing semicolon is accepted.
func parseArgs(text string) (args callArgs, err error) {
	var (
		ignore  bool
		unknown []string
	)
	for pair := range strings.SplitSeq(text, ";") {
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" || strings.Contains(value, "=") {
			return callArgs{}, fmt.Errorf("CNI_ARGS: %q: want KEY=VALUE", clip(pair, 100))
		}
		switch key {
		case "IgnoreUnknown":
			switch strings.ToLower(value) {
			case "1", "true":
				ignore = true
			case "0", "false":
				ignore = false
			default:
				return callArgs{}, fmt.Errorf("CNI_ARGS: IgnoreUnknown=%q: want 1, true, 0 or false", clip(value, 100))
			}
		case "K8S_POD_NAMESPACE":
			args.Namespace = value
		case "K8S_POD_NAME":
			args.Name = value
		case "K8S_POD_UID":
			args.UID = value
		case "IP":
			ips, err := parseIPs(strings.Split(value, ","))
			if err != nil {
				return callArgs{}, fmt.Errorf("CNI_ARGS: IP=%w", err)
			}
			args.ips = ips
		case "MAC":
			mac, err := parseMAC(value)
			if err != nil {
				return callArgs{}, fmt.Errorf("CNI_ARGS: MAC=%w", err)
			}
			args.mac = mac
		case "K8S_POD_INFRA_CONTAINER_ID": // the container id again
		default:
			unknown = append(unknown, clip(key, 100))
		}
	}
	if len(unknown) > 0 && !ignore {
		return callArgs{}, fmt.Errorf("CNI_ARGS: unknown keys %s: remove them or set IgnoreUnknown=1", strings.Join(unknown, ", "))
	}
	return args, nil
}
