package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/bgp/gobgp"
	"github.com/gaggle-cni/gaggle/node"
	"github.com/gaggle-cni/gaggle/node/datapath"
	"github.com/gaggle-cni/gaggle/node/kube"
	"github.com/gaggle-cni/gaggle/node/nodeconfig"
	"github.com/gaggle-cni/gaggle/node/store"
)

// What is in the run directory.
const (
	defaultRunDir = "/run/gaggle"
	cniSocket     = "cni.sock"
	adminSocket   = "admin.sock"
	gobgpSocket   = "gobgp.sock"
	stateFile     = "state.db"
)

// stopTimeout bounds each step of an orderly end.
const stopTimeout = 10 * time.Second

// nodeFlags are what differs between processes. Everything else is NodeConfig.
type nodeFlags struct {
	standalone          bool
	config, name        string
	runDir, nodeIP      string
	metrics, gobgp      string
	logFormat, logLevel string
	kubeconfig          string
	namespace           string
	sysctlDir           string
}

func (f *nodeFlags) register(c *cmdline) {
	hostname, _ := os.Hostname() // an empty name is refused below
	c.flags.BoolVar(&f.standalone, "standalone", false, "run without Kubernetes; everything comes from --config")
	c.flags.StringVar(&f.config, "config", "", "`FILE` with the NodeConfig; in a cluster, one beside those of the cluster")
	c.flags.StringVar(&f.kubeconfig, "kubeconfig", "", "`FILE` that tells how to reach the API server; found out in a pod")
	c.flags.StringVar(&f.namespace, "namespace", "gaggle-system", "`NAMESPACE` of the Secrets that NodeConfigs refer to: this process's own")
	c.flags.StringVar(&f.name, "node-name", strings.ToLower(hostname), "`NAME` of this node")
	c.flags.StringVar(&f.runDir, "run-dir", defaultRunDir, "`DIR` of sockets and state; on a tmpfs, so that both end with the machine's boot")
	c.flags.StringVar(&f.nodeIP, "node-ip", "", "this node's own `ADDRESSES`, one a family, separated by a comma; found out if not given")
	c.flags.StringVar(&f.sysctlDir, "sysctl-dir", "/proc/sys", "`DIR` where the kernel's settings can be written; a container mounts the host's elsewhere than at /proc/sys")
	c.flags.StringVar(&f.metrics, "metrics-address", "127.0.0.1:9471", "`ADDRESS` of /metrics, /livez and /readyz; empty for none")
	c.flags.StringVar(&f.gobgp, "gobgp-address", "", "TCP `ADDRESS` of the read-only gobgp API, such as 127.0.0.1:50051; empty for the unix socket only")
	c.flags.StringVar(&f.logFormat, "log-format", "text", "`FORMAT` of the log on stderr: text or json")
	c.flags.StringVar(&f.logLevel, "log-level", "info", "`LEVEL` of the log: debug, info, warn or error")
}

// check refuses flags that make no sense.
func (f *nodeFlags) check() error {
	switch {
	case f.standalone && f.config == "":
		return usageError{errors.New("--standalone needs --config FILE")}
	case f.standalone && f.kubeconfig != "":
		return usageError{errors.New("--standalone and --kubeconfig contradict each other")}
	case f.name == "":
		return usageError{errors.New("--node-name is empty and the machine has no host name")}
	}
	for name, address := range map[string]string{"--metrics-address": f.metrics, "--gobgp-address": f.gobgp} {
		if _, _, err := net.SplitHostPort(address); address != "" && err != nil {
			return usageError{fmt.Errorf("%s %q: want an address and a port, as in 127.0.0.1:9471: %w", name, address, err)}
		}
	}
	if _, err := parseNodeIPs(f.nodeIP); err != nil {
		return usageError{fmt.Errorf("--node-ip: %w", err)}
	}
	return nil
}

// load reads the configuration of a node without Kubernetes.
func (f *nodeFlags) load() (node.Config, error) {
	data, err := os.ReadFile(f.config)
	if err != nil {
		return node.Config{}, usageError{fmt.Errorf("--config: %w", err)}
	}
	c, err := nodeconfig.Parse(data, nodeconfig.Options{Node: f.name, ReadFile: os.ReadFile})
	if err != nil {
		return node.Config{}, usageError{fmt.Errorf("%s is no usable NodeConfig:\n%w", f.config, err)}
	}
	c.NodeIPs, err = parseNodeIPs(f.nodeIP)
	return c, err
}

func parseNodeIPs(text string) (ips bgp.NextHops, err error) {
	if text == "" {
		return ips, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		addr, err := netip.ParseAddr(strings.TrimSpace(part))
		if err != nil || !addr.IsGlobalUnicast() {
			return ips, fmt.Errorf("%q: want an address of this node", part)
		}
		slot := &ips.IPv6
		if addr.Is4() {
			slot = &ips.IPv4
		}
		if slot.IsValid() {
			return ips, fmt.Errorf("%q: want one address a family", part)
		}
		*slot = addr
	}
	return ips, nil
}

func (f *nodeFlags) logger(c *cmdline) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return nil, usageError{fmt.Errorf("--log-level %q: want debug, info, warn or error", f.logLevel)}
	}
	o := &slog.HandlerOptions{Level: level}
	switch f.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(c.stderr, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(c.stderr, o)), nil
	}
	return nil, usageError{fmt.Errorf("--log-format %q: want text or json", f.logFormat)}
}

func runNode(ctx context.Context, c *cmdline) error {
	var f nodeFlags
	f.register(c)
	if err := c.parse(); err != nil {
		return err
	}
	log, err := f.logger(c)
	if err != nil {
		return err
	}
	if err := f.check(); err != nil {
		return err
	}
	collectSooner()
	for {
		p := &process{
			flags: f, log: log, started: time.Now(), touch: make(chan struct{}, 1), reconfigure: make(chan struct{}, 1),
		}
		if f.standalone {
			if p.config, err = f.load(); err != nil {
				return err
			}
		}
		err := p.run(ctx)
		switch {
		case ctx.Err() != nil && (errors.Is(err, errReconfigured) || errors.Is(err, context.Canceled)):
			return nil // it was told to end meanwhile
		case !errors.Is(err, errReconfigured):
			return err
		}
	}
}

// collectSooner lets the heap grow by half between collections, where the Go runtime's default is that it doubles: a node has
// more use for the memory. GOGC in the environment decides otherwise.
func collectSooner() {
	const standard, ours = 100, 50
	if set := debug.SetGCPercent(ours); set != standard {
		debug.SetGCPercent(set)
	}
}

// A process is one life of the node process: it makes the parts, starts them in order and stops them in the reverse.
type process struct {
	flags   nodeFlags
	config  node.Config
	log     *slog.Logger
	started time.Time
	touch   chan struct{} // a session changed: remember that
	// askedRouterID is the configured one; that of config is the one in use.
	askedRouterID netip.Addr

	cluster     *kube.Cluster // nil without Kubernetes
	reconfigure chan struct{} // the cluster may want something else
	running     atomic.Pointer[node.Agent]
	inForce     atomic.Pointer[kept]
	refused     atomic.Pointer[configTrouble]

	db      *store.DB
	dp      *datapath.Datapath
	speaker *gobgp.Server // nil without BGP
	agent   *node.Agent
}

// run opens the store, undoes what was left unfinished, starts the speaker, brings the network to what it must be, and only
// then serves.
func (p *process) run(ctx context.Context) (err error) {
	if err := p.makeCluster(); err != nil { // which asks nobody anything yet
		return err
	}
	if err := os.MkdirAll(p.flags.runDir, 0o700); err != nil {
		return fmt.Errorf("make run directory: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(p.flags.runDir, &fs); err == nil && fs.Type != unix.TMPFS_MAGIC && fs.Type != unix.RAMFS_MAGIC {
		p.log.WarnContext(ctx, "the run directory is on a disk, which every ADD and DEL waits for; a tmpfs such as /run is meant for it",
			"run_dir", p.flags.runDir)
	}
	bootID, err := store.BootID()
	if err != nil {
		return err
	}
	// The store's lock is what keeps a second node process away from everything else in the run directory.
	if err := p.openStore(ctx, bootID); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.db.Close()) }()

	if p.dp, err = datapath.New(datapath.Options{
		Log: p.log, Changed: func() { p.agent.Doubt() }, Sysctl: p.flags.sysctlDir, Before: beforeChange(),
	}); err != nil {
		return err
	}
	defer p.dp.Close()
	defer p.startCluster(ctx)()
	if err := p.configure(ctx); err != nil {
		return err
	}
	if err := p.dp.Prepare(ctx); err != nil {
		return err
	}
	if err := p.makeSpeaker(ctx); err != nil {
		return err
	}
	p.makeAgent()
	if err := p.agent.Recover(ctx); err != nil {
		return err
	}
	if err := p.startSpeaker(ctx); err != nil {
		return err
	}
	defer p.stopSpeaker(ctx)
	return p.serve(ctx)
}

// openStore opens the state file. A damaged one is set aside: what runs is then read off the kernel.
func (p *process) openStore(ctx context.Context, bootID string) (err error) {
	path := filepath.Join(p.flags.runDir, stateFile)
	o := store.Options{BootID: bootID, Uptime: machineUptime}
	p.db, err = store.Open(path, o)
	if !errors.Is(err, store.ErrDamaged) {
		return err
	}
	aside, asideErr := store.SetAside(path)
	if asideErr != nil {
		return errors.Join(err, asideErr)
	}
	p.log.ErrorContext(ctx, "the records are lost; what is attached is read off the kernel", "err", err, "kept", aside)
	p.db, err = store.Open(path, o)
	return err
}

func (p *process) makeAgent() {
	o := node.Options{
		Config: p.config, Store: p.db, Datapath: p.dp, Ends: p.dp.Ends(), Routes: p.dp.Routes(), Learned: p.dp.Learned(),
		Sources: p.dp.Sources(), Masquerade: p.dp.Masquerade(),
		Secret: p.db.Secret(), Log: p.log, Now: time.Now,
	}
	if p.cluster != nil {
		o.Pods, o.Reporter = p.cluster, p
	}
	if p.speaker != nil {
		o.Speaker = &node.Speaker{
			Announcements: p.speaker.Announcements(), Peers: p.speaker.Peers(), Sessions: p.speaker,
		}
	}
	p.agent = node.New(withFaults(o))
	p.running.Store(p.agent)
}

// makeSpeaker makes the BGP speaker, if there is any.
func (p *process) makeSpeaker(ctx context.Context) error {
	b := p.config.BGP
	if b == nil {
		return nil
	}
	p.askedRouterID = b.RouterID
	if !b.RouterID.IsValid() {
		id, err := p.routerID(ctx)
		if err != nil {
			return err
		}
		b.RouterID = id
	}
	restarting := p.restarting(b)
	var err error
	p.speaker, err = gobgp.New(gobgp.Options{
		ASN: b.ASN, RouterID: b.RouterID, ListenPort: b.ListenPort,
		APISocket: filepath.Join(p.flags.runDir, gobgpSocket), APIListen: p.flags.gobgp,
		Restarting: restarting, Log: p.log, Changed: p.sessionsChanged,
	})
	if err != nil {
		return err
	}
	p.log.InfoContext(ctx, "BGP speaker", "asn", b.ASN, "router_id", b.RouterID, "restarting", restarting)
	return nil
}

// startSpeaker starts BGP. No peer is known to it yet: the first pass adds them, after the announcements.
func (p *process) startSpeaker(ctx context.Context) error {
	if p.speaker == nil {
		return nil
	}
	if err := p.speaker.Start(ctx); errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("%w; another BGP speaker has the port: end it, or set spec.bgp.listenPort to another one, or to 0 not to listen", err)
	} else if err != nil {
		return err
	}
	return p.permit(ctx, p.config)
}

// permit tells the speaker what it may announce, whatever it is told to.
func (p *process) permit(ctx context.Context, c node.Config) error {
	own := make([]netip.Prefix, 0, len(c.Pools))
	for _, pool := range c.Pools {
		own = append(own, pool.Prefix)
	}
	for _, g := range c.Grants {
		own = append(own, g.Prefixes...)
	}
	// A pool may have gone from the configuration while its pods live on; new ones come from the pools above.
	for _, att := range p.db.All() {
		for _, addr := range att.Bound() {
			own = append(own, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	return p.speaker.Permit(ctx, own)
}

// stopSpeaker ends BGP without a NOTIFICATION: a router that does graceful restart keeps our routes.
func (p *process) stopSpeaker(ctx context.Context) {
	if p.speaker == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := p.speaker.Stop(ctx); err != nil {
		p.log.WarnContext(ctx, "BGP speaker did not stop in order", "err", err)
	}
}

// routerID is the node's IPv4 address, or on a node without one 32 bits derived from its name: stable, and unique with the
// name (RFC 6286 asks for no more than that).
func (p *process) routerID(ctx context.Context) (netip.Addr, error) {
	if p.config.NodeIPs.IPv4.IsValid() {
		return p.config.NodeIPs.IPv4, nil
	}
	dsts := []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	uplinks, err := p.dp.Uplinks(ctx, dsts)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("find the router id: %w", err)
	}
	for _, dst := range dsts {
		if up, ok := uplinks[dst]; ok && up.IPv4.IsValid() {
			return up.IPv4, nil
		}
	}
	return derivedRouterID(p.config.Node), nil
}

// derivedRouterID stays within 1.0.0.0 to 223.255.255.255, which every router accepts.
func derivedRouterID(name string) netip.Addr {
	sum := sha256.Sum256([]byte(name))
	id := [4]byte(sum[:4])
	id[0] = 1 + id[0]%223
	return netip.AddrFrom4(id)
}

// restarting tells whether routers may still hold the last run's routes as stale (RFC 4724 section 4.1, Restart State).
func (p *process) restarting(b *node.BGP) bool {
	last := p.db.LastRun()
	var longest time.Duration
	for _, peer := range b.Peers {
		if peer.GracefulRestart.Enabled {
			longest = max(longest, peer.GracefulRestart.RestartTime)
		}
	}
	return last.Peers && machineUptime()-last.Uptime < longest
}

// sessionsChanged is called by the speaker's goroutines and only signals.
func (p *process) sessionsChanged() {
	select {
	case p.touch <- struct{}{}:
	default:
	}
	p.agent.Kick()
}
