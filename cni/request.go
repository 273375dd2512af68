package cni

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"github.com/gaggle-cni/gaggle/cni/wire"
)

// A command is a value of CNI_COMMAND that is served.
type command struct {
	since     string // the version of the specification that has it
	container bool   // it is about one attachment
	netns     bool   // it needs the container's namespace
}

var commands = map[string]command{
	"ADD":    {since: "0.3.1", container: true, netns: true},
	"DEL":    {since: "0.3.1", container: true},
	"CHECK":  {since: "0.4.0", container: true, netns: true},
	"GC":     {since: "1.1.0"},
	"STATUS": {since: "1.1.0"},
}

// parse checks a request. The configuration comes first: its version belongs in every error.
func parse(w wire.Request, netns *os.File) (Request, error) {
	conf, err := parseConf(w.Config)
	req := Request{
		ID:        ID{Network: conf.Name, ContainerID: w.ContainerID, IfName: w.IfName},
		NetnsPath: w.Netns, Netns: netns, Conf: conf,
	}
	if err != nil {
		return req, err
	}
	if w.Protocol != wire.Version {
		return req, &Error{
			Code:    wire.CodeTryAgainLater,
			Msg:     fmt.Sprintf("plugin speaks protocol %d, the node process %d", w.Protocol, wire.Version),
			Details: "install the plugin that belongs to the node process: gaggle install",
		}
	}
	cmd, ok := commands[w.Command]
	if !ok {
		return req, envError("CNI_COMMAND %q: want ADD, DEL, CHECK, GC, STATUS or VERSION", clip(w.Command, 50))
	}
	if conf.CNIVersion < cmd.since { // all of the versions that are served compare as text
		return req, &Error{
			Code:    wire.CodeIncompatibleVersion,
			Msg:     fmt.Sprintf("network configuration: cniVersion %q has no %s", conf.CNIVersion, w.Command),
			Details: "it came with version " + cmd.since,
		}
	}
	if cmd.container {
		err = parseContainer(&req, w, cmd)
	}
	if err == nil && w.Command == "GC" {
		err = checkInUse(conf)
	}
	if err == nil && w.Command == "CHECK" {
		if req.Previous, err = parsePrevious(conf, w.IfName); err != nil {
			err = &Error{Code: wire.CodeInvalidConfig, Msg: fmt.Sprintf("network configuration: %v", err)}
		}
	}
	return req, err
}

// parseContainer checks what names the attachment.
func parseContainer(req *Request, w wire.Request, cmd command) error {
	if err := wire.CheckName(w.ContainerID); err != nil {
		return envError("CNI_CONTAINERID %v", err)
	}
	if err := wire.CheckIfName(w.IfName); err != nil {
		return envError("CNI_IFNAME %v", err)
	}
	if cmd.netns && req.Netns == nil {
		return envError("CNI_NETNS %q: no network namespace came with the call", clip(w.Netns, 200))
	}
	args, err := parseArgs(w.Args)
	if err != nil {
		return envError("%v", err)
	}
	req.Pod = args.PodArgs
	if len(req.Conf.IPs) == 0 {
		req.Conf.IPs = args.ips
	}
	req.Conf.MAC = cmp.Or(req.Conf.MAC, args.mac)
	return nil
}

// checkInUse refuses a GC that does not say what is in use, or says it in a way that could be misread: whatever is not
// recognised would be removed.
func checkInUse(conf Conf) error {
	const key = "cni.dev/valid-attachments"
	if !conf.HasInUse {
		return &Error{
			Code: wire.CodeInvalidConfig, Msg: "network configuration: " + key + " is missing: nothing was removed",
			Details: "the runtime must list the attachments that are in use; an empty list means none",
		}
	}
	var problems []string
	for i, id := range conf.InUse {
		if err := wire.CheckName(id.ContainerID); err != nil {
			problems = append(problems, fmt.Sprintf("%s[%d].containerID %v", key, i, err))
		}
		if err := wire.CheckIfName(id.IfName); err != nil {
			problems = append(problems, fmt.Sprintf("%s[%d].ifname %v", key, i, err))
		}
	}
	if len(problems) > 0 {
		return &Error{
			Code: wire.CodeInvalidConfig, Msg: "network configuration: " + strings.Join(problems, "; "), Details: "nothing was removed",
		}
	}
	return nil
}
