// Gaggle-cni is the CNI plugin: it hands each call of a container runtime to the node process over a unix socket, together
// with the opened network namespace, and prints what comes back. It holds no state and no logic beyond that, so that it
// starts fast and seldom needs an update.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gaggle-cni/gaggle/cni/wire"
)

// version is set by the linker.
var version = "dev"

// Bounds of a call.
const (
	stdinTimeout = 10 * time.Second // a runtime writes the configuration at once
	callTimeout  = 60 * time.Second
	delTimeout   = 20 * time.Second // beyond it the DEL is kept: the node process hangs
	secondCall   = 2 * time.Second  // of a DEL that is kept already
)

// A command is a value of CNI_COMMAND that goes to the node process.
type command struct {
	required []string      // the variables that it needs (CNI spec 1.1.0 section 2)
	netns    bool          // the namespace goes along
	dial     time.Duration // a node process that restarts is back within this
	call     time.Duration
	away     uint // the code when there is no node process
}

var (
	container = []string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"}
	commands  = map[string]command{
		"ADD":   {container, true, 5 * time.Second, callTimeout, wire.CodeTryAgainLater},
		"CHECK": {container, true, 5 * time.Second, callTimeout, wire.CodeTryAgainLater},
		"DEL":   {[]string{"CNI_CONTAINERID", "CNI_IFNAME"}, false, 3 * time.Second, delTimeout, wire.CodeTryAgainLater},
		"GC":    {nil, false, 5 * time.Second, callTimeout, wire.CodeTryAgainLater},
		// A runtime may hold a lock while it asks, every few seconds.
		"STATUS": {nil, false, time.Second, time.Second, wire.CodeNotAvailable},
	}
)

const usage = `gaggle-cni %s: the CNI plugin of Gaggle.
It is not called by hand: a container runtime executes it with CNI_COMMAND set and the network
configuration on standard input. To try it: CNI_COMMAND=VERSION gaggle-cni
`

func main() {
	env := environment(os.LookupEnv)
	os.Exit(run(env, os.Stdin, os.Stdout, os.Stderr))
}

// run does one call. Whatever happens, a failure prints one JSON error on stdout (CNI spec 1.1.0 section 2, "Error").
func run(env map[string]string, stdin io.Reader, stdout, stderr io.Writer) int {
	switch env["CNI_COMMAND"] {
	case "":
		fmt.Fprintf(stderr, usage, version)
		return 0
	case "VERSION":
		return printJSON(stdout, map[string]any{
			"cniVersion":        wire.SupportedVersions[len(wire.SupportedVersions)-1],
			"supportedVersions": wire.SupportedVersions,
		})
	}
	// SIGTERM must not end the process without an error on stdout, nor may a panic.
	type outcome struct {
		result json.RawMessage
		err    *wire.Error
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	done := make(chan outcome, 1)
	conf := make(chan string, 1) // the version of the configuration, once known
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- outcome{err: &wire.Error{Code: wire.CodeInternal, Msg: fmt.Sprintf("plugin: internal fault: %v", p)}}
			}
		}()
		result, err := call(env, stdin, conf)
		done <- outcome{result, err}
	}()
	var o outcome
	select {
	case o = <-done:
	case sig := <-signals:
		o.err = &wire.Error{Code: wire.CodeTryAgainLater, Msg: fmt.Sprintf("%s: plugin ended by signal: %v", subject(env), sig)}
	}
	if o.err != nil {
		if o.err.CNIVersion == "" {
			o.err.CNIVersion = versionOf(conf)
		}
		if env["CNI_COMMAND"] == "DEL" {
			o.err.Msg, o.err.Details = notGone.Replace(o.err.Msg), notGone.Replace(o.err.Details)
		}
		printJSON(stdout, o.err)
		return 1
	}
	if len(o.result) > 0 {
		return printJSON(stdout, o.result)
	}
	return 0
}

// notGone rewrites what runtimes take, anywhere in the error of a DEL, for "there was nothing to remove" (containerd/go-cni,
// libcni.Remove). Whatever fails below may say such a thing, the kernel's errors above all; the DEL has failed all the same.
var notGone = strings.NewReplacer("not found", "not there", "no such file or directory", "no such path")

// call checks the environment, reads the configuration and asks the node process.
func call(env map[string]string, stdin io.Reader, conf chan<- string) (json.RawMessage, *wire.Error) {
	config, err := readAll(stdin)
	if err != nil {
		return nil, &wire.Error{Code: wire.CodeIO, Msg: fmt.Sprintf("read network configuration: %v", err)}
	}
	var head struct {
		CNIVersion string `json:"cniVersion"`
		Socket     string `json:"socket"`
	}
	if err := json.Unmarshal(config, &head); err != nil {
		return nil, &wire.Error{
			Code: confCode(err), Msg: fmt.Sprintf("network configuration: %v", err),
			Details: "standard input must hold the network configuration as JSON",
		}
	}
	conf <- head.CNIVersion
	if werr := checkEnvironment(env); werr != nil {
		return nil, werr
	}
	cmd := commands[env["CNI_COMMAND"]]
	req := wire.Request{
		Protocol: wire.Version, Command: env["CNI_COMMAND"], ContainerID: env["CNI_CONTAINERID"], Netns: env["CNI_NETNS"],
		IfName: env["CNI_IFNAME"], Args: env["CNI_ARGS"], Path: env["CNI_PATH"], Config: config,
		Timeout: cmd.call.Milliseconds(),
	}
	var netns *os.File
	if cmd.netns {
		netns, err = openNetns(req.Netns)
		if err != nil {
			return nil, &wire.Error{Code: wire.CodeInvalidEnvironment, Msg: fmt.Sprintf("%s: CNI_NETNS: %v", subject(env), err)}
		}
		defer netns.Close()
	}
	socket := cmp.Or(head.Socket, wire.DefaultSocket)
	resp, err := ask(socket, req, netns, cmd)
	if err != nil && req.Command == "DEL" {
		return nil, enqueue(socket, req, cmd, subject(env))
	}
	if err != nil {
		return nil, &wire.Error{
			Code: cmd.away, Msg: fmt.Sprintf("%s: %v", subject(env), err),
			Details: "is gaggle node running on this node? its log says why not; a call that was cut off is undone",
		}
	}
	return resp.Result, resp.Error
}

// ask makes the call. Its error means that no answer came.
func ask(socket string, req wire.Request, netns *os.File, cmd command) (wire.Response, error) {
	conn, err := dial(socket, time.Now().Add(cmd.dial))
	if err != nil {
		return wire.Response{}, fmt.Errorf("the node process does not answer: %w", err)
	}
	defer func() { _ = conn.Close() }()
	resp, err := wire.Call(conn, req, netns, time.Now().Add(cmd.call))
	if err != nil {
		return wire.Response{}, fmt.Errorf("the node process went away during the call: %w", err)
	}
	return resp, nil
}

// enqueue keeps a DEL for the next node process, so that a container can go without one. It then tries once more: the process
// may have looked into the queue before.
func enqueue(socket string, req wire.Request, cmd command, subject string) *wire.Error {
	path, err := wire.Enqueue(filepath.Join(filepath.Dir(socket), wire.QueueDir), req)
	if err != nil {
		code := wire.CodeDeleteQueue
		if errors.Is(err, wire.ErrQueueFull) {
			code = wire.CodeTryAgainLater
		}
		return &wire.Error{
			Code: code, Msg: fmt.Sprintf("%s: the node process does not answer, and %v", subject, err),
			Details: "is gaggle node running on this node? its log says why not",
		}
	}
	cmd.dial, cmd.call = dialInterval, secondCall
	req.Timeout = cmd.call.Milliseconds()
	resp, err := ask(socket, req, nil, cmd)
	switch {
	case err != nil: // it is kept
	case resp.Error == nil:
		_ = os.Remove(path) // the node process may have done it and removed it
	}
	return resp.Error
}

// environment reads the variables of the specification. Others do not matter.
func environment(lookup func(string) (string, bool)) map[string]string {
	env := make(map[string]string)
	for _, key := range []string{"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"} {
		if v, ok := lookup(key); ok {
			env[key] = v
		}
	}
	return env
}

// checkEnvironment names everything that is missing or wrong in one go (CNI spec 1.1.0 section 2, code 4).
func checkEnvironment(env map[string]string) *wire.Error {
	cmd, ok := commands[env["CNI_COMMAND"]]
	if !ok {
		return &wire.Error{
			Code: wire.CodeInvalidEnvironment,
			Msg:  fmt.Sprintf("CNI_COMMAND %q: this plugin knows ADD, DEL, CHECK, GC, STATUS and VERSION", env["CNI_COMMAND"]),
		}
	}
	var problems []string
	for _, key := range cmd.required {
		if env[key] == "" {
			problems = append(problems, key+" is missing")
		}
	}
	if v := env["CNI_CONTAINERID"]; v != "" {
		if err := wire.CheckName(v); err != nil {
			problems = append(problems, fmt.Sprintf("CNI_CONTAINERID %v", err))
		}
	}
	if v := env["CNI_IFNAME"]; v != "" {
		if err := wire.CheckIfName(v); err != nil {
			problems = append(problems, fmt.Sprintf("CNI_IFNAME %v", err))
		}
	}
	if len(problems) > 0 {
		slices.Sort(problems)
		return &wire.Error{Code: wire.CodeInvalidEnvironment, Msg: strings.Join(problems, "; ")}
	}
	return nil
}

// subject names the pod for messages.
func subject(env map[string]string) string {
	pod := make(map[string]string)
	for pair := range strings.SplitSeq(env["CNI_ARGS"], ";") {
		if key, value, ok := strings.Cut(pair, "="); ok {
			pod[key] = value
		}
	}
	container := "container " + env["CNI_CONTAINERID"]
	switch name := pod["K8S_POD_NAME"]; {
	case env["CNI_CONTAINERID"] == "":
		return "node"
	case name != "":
		return fmt.Sprintf("pod %s/%s (%s)", pod["K8S_POD_NAMESPACE"], name, container)
	}
	return container
}

func confCode(err error) uint {
	if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return wire.CodeInvalidConfig
	}
	return wire.CodeDecode
}

func versionOf(conf <-chan string) string {
	select {
	case v := <-conf:
		return v
	default:
		return ""
	}
}

func printJSON(w io.Writer, v any) int {
	if err := json.NewEncoder(w).Encode(v); err != nil {
		return 1
	}
	return 0
}
