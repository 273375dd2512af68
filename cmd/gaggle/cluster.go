package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gaggle-cni/gaggle/node"
	"github.com/gaggle-cni/gaggle/node/kube"
	"github.com/gaggle-cni/gaggle/node/nodeconfig"
)

// Waits for the cluster.
const (
	lastGoodAfter   = 5 * time.Second  // how long the API server may be silent before the last configuration is used
	stillWaitingLog = 30 * time.Second // between complaints that there is none
)

// errReconfigured ends one life of the process in favour of another: what has changed is fixed for a life.
var errReconfigured = errors.New("the configuration asks for a new start")

// A kept is a configuration that is, or was, in force, as it is stored.
type kept struct {
	Document string             `json:"document"`
	Cluster  nodeconfig.Cluster `json:"cluster"`
	Names    []string           `json:"names"`   // of the NodeConfigs
	Origins  map[string]string  `json:"origins"` // see [node.Document]

	generation uint64 // of the cluster's configuration; 0 if it was stored
}

func keptOf(c kube.Config) *kept {
	return &kept{string(c.Merged.Text()), c.Cluster, c.Merged.Names, c.Merged.Origins(), c.Generation}
}

// configure settles what this life of the process is for.
func (p *process) configure(ctx context.Context) error {
	if p.flags.standalone {
		return p.fits(ctx, p.config)
	}
	stopWaiting, err := p.serveWaiting(ctx)
	if err != nil {
		return err
	}
	defer stopWaiting()
	return p.firstConfig(ctx)
}

// startCluster watches the cluster until stop is called.
func (p *process) startCluster(ctx context.Context) (stop func()) {
	if p.cluster == nil {
		return func() {}
	}
	return background(context.WithoutCancel(ctx), func(ctx context.Context) { _ = p.cluster.Run(ctx) })
}

// background does something until stop is called, which waits for its end.
func background(ctx context.Context, do func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		do(ctx)
	}()
	return func() { cancel(); <-ended }
}

// serveWaiting answers probes until there is a configuration: the process lives, and is not ready.
func (p *process) serveWaiting(ctx context.Context) (stop func(), err error) {
	if p.flags.metrics == "" {
		return func() {}, nil
	}
	l, err := p.listenPublic(ctx)
	if err != nil {
		return nil, err
	}
	return background(ctx, func(ctx context.Context) {
		if err := serveHTTP(ctx, l, node.WaitingHandler()); err != nil {
			p.log.WarnContext(ctx, "probes are not answered", "err", err)
		}
	}), nil
}

// makeCluster prepares the connection to the API server.
func (p *process) makeCluster() error {
	if p.flags.standalone {
		return nil
	}
	o := kube.Options{
		Kubeconfig: p.flags.kubeconfig, Node: p.flags.name, Namespace: p.flags.namespace, Version: version,
		Log: p.log, Now: time.Now, Changed: p.clusterChanged,
	}
	if p.flags.config != "" {
		data, err := os.ReadFile(p.flags.config)
		if err != nil {
			return usageError{fmt.Errorf("--config: %w", err)}
		}
		doc, err := nodeconfig.Read(data)
		if err != nil {
			return usageError{fmt.Errorf("%s is no usable NodeConfig:\n%w", p.flags.config, err)}
		}
		o.Documents = append(o.Documents, doc)
	}
	var err error
	if p.cluster, err = kube.New(o); err != nil {
		return usageError{fmt.Errorf("%w; outside a cluster, --kubeconfig names a file, and --standalone does without", err)}
	}
	return nil
}

// clusterChanged is called by the cluster's goroutines and only signals.
func (p *process) clusterChanged(c kube.Change) {
	if c == kube.ConfigChanged {
		select {
		case p.reconfigure <- struct{}{}:
		default:
		}
	}
	if agent := p.running.Load(); agent != nil && c == kube.PodsChanged {
		agent.Kick()
	}
}

// firstConfig waits for a configuration: the cluster's, or while the API server is away the last good one. Without either it
// waits as long as it takes, as there is nothing to serve with.
func (p *process) firstConfig(ctx context.Context) error {
	patience := stillWaitingLog
	if len(p.db.Config()) > 0 {
		patience = lastGoodAfter
	}
	for {
		err := p.awaitConfig(ctx, patience)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if used := p.useKept(ctx, err); used {
			return nil
		}
		p.log.WarnContext(ctx, "there is no configuration yet; this node serves nothing until there is", "err", err)
		patience = stillWaitingLog
	}
}

// awaitConfig waits for one of the cluster that can be used.
func (p *process) awaitConfig(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := p.cluster.Await(ctx)
	for err == nil {
		var next node.Config
		if next, err = p.convert(ctx, c); err == nil {
			err = p.fits(ctx, next)
		}
		if err == nil {
			p.config = next
			p.keep(ctx, keptOf(c))
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-p.reconfigure:
			c, err = p.cluster.Config(), nil
		}
	}
	return err
}

// convert makes a configuration of what the cluster wants, and tells of what is left out.
func (p *process) convert(ctx context.Context, c kube.Config) (node.Config, error) {
	result, err := c.Merged.Convert(p.parseOptions(&c.Cluster))
	if err != nil {
		return node.Config{}, fmt.Errorf("NodeConfig: %w", err)
	}
	return p.complete(ctx, result)
}

func (p *process) parseOptions(c *nodeconfig.Cluster) nodeconfig.Options {
	return nodeconfig.Options{Node: p.flags.name, ReadFile: os.ReadFile, Cluster: c}
}

// complete tells of what is left out, and adds what flags say.
func (p *process) complete(ctx context.Context, result nodeconfig.Result) (c node.Config, err error) {
	for _, w := range result.Warnings {
		p.log.WarnContext(ctx, "a part of the configuration is left out", "path", w.Path, "document", w.Doc, "err", w.Text)
		p.nodeTrouble("ConfigIncomplete", w.Path+": "+w.Text)
	}
	result.Config.NodeIPs, err = parseNodeIPs(p.flags.nodeIP)
	return result.Config, err
}

// useKept falls back on the last good configuration.
func (p *process) useKept(ctx context.Context, why error) bool {
	data := p.db.Config()
	if len(data) == 0 {
		return false
	}
	k := &kept{}
	err := json.Unmarshal(data, k)
	var result nodeconfig.Result
	if err == nil {
		result, err = nodeconfig.Resolve([]byte(k.Document), p.parseOptions(&k.Cluster))
	}
	if err == nil {
		p.config, err = p.complete(ctx, result)
	}
	if err != nil {
		p.log.ErrorContext(ctx, "the last good configuration cannot be used", "err", err)
		return false
	}
	p.inForce.Store(k)
	p.refused.Store(&configTrouble{why})
	p.log.WarnContext(ctx, "the last good configuration is in force", "err", why)
	return true
}

// keep stores a configuration that is in force now. That this fails is no reason not to use it.
func (p *process) keep(ctx context.Context, k *kept) {
	p.inForce.Store(k)
	data, err := json.Marshal(k)
	if err == nil {
		err = p.db.SetConfig(data)
	}
	if err != nil {
		p.log.WarnContext(ctx, "a start without the API server would use an older configuration", "err", err)
	}
}

// follow puts each configuration of the cluster in force, until the context ends. One that is no good leaves the last one in
// force.
func (p *process) follow(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.reconfigure:
		}
		c := p.cluster.Config()
		if last := p.inForce.Load(); c.Err == nil && last != nil && c.Generation == last.generation && p.refusal() == nil {
			continue // it was in time for the start
		}
		err := c.Err
		var next node.Config
		if err == nil {
			if next, err = p.convert(ctx, c); err == nil {
				err = p.adopt(ctx, next)
			}
		}
		if errors.Is(err, errReconfigured) {
			p.keep(ctx, keptOf(c)) // the next life begins with it although the API server may be slow then
			p.log.InfoContext(ctx, "what has changed in the configuration needs a new start; traffic goes on meanwhile")
			return errReconfigured
		}
		p.refused.Store(&configTrouble{err})
		if err != nil {
			p.log.WarnContext(ctx, "the last good configuration stays in force", "err", err)
			p.nodeTrouble("ConfigRefused", err.Error())
			continue
		}
		p.keep(ctx, keptOf(c))
	}
}

// refusal is why the newest configuration is not in force.
func (p *process) refusal() error {
	if t := p.refused.Load(); t != nil {
		return t.err
	}
	return nil
}

// A configTrouble is why the newest configuration is not in force; nil if it is.
type configTrouble struct{ err error }

// adopt puts a configuration in force.
func (p *process) adopt(ctx context.Context, next node.Config) error {
	if err := p.fits(ctx, next); err != nil {
		return err
	}
	if p.needsStart(next) {
		return errReconfigured
	}
	if p.speaker != nil {
		next.BGP.RouterID = p.config.BGP.RouterID // as it was found out
		if err := p.permit(ctx, next); err != nil {
			return err
		}
	}
	p.log.InfoContext(ctx, "another configuration is in force")
	p.agent.Configure(next)
	return nil
}

// needsStart reports whether a configuration differs in what the speaker is made with.
func (p *process) needsStart(next node.Config) bool {
	was, is := p.config.BGP, next.BGP
	if was == nil || is == nil {
		return was != is
	}
	return was.ASN != is.ASN || was.ListenPort != is.ListenPort || p.askedRouterID != is.RouterID
}

// kubernetes is how the connection to the cluster does; nil without one.
func (p *process) kubernetes() *node.KubernetesStatus {
	if p.cluster == nil {
		return nil
	}
	h := p.cluster.Health()
	s := &node.KubernetesStatus{Synced: h.Synced, Away: h.Away, DroppedEvents: h.DroppedEvents, NodeConfigs: []string{}}
	if h.Err != nil {
		s.Error = h.Err.Error()
	}
	if k := p.inForce.Load(); k != nil {
		s.NodeConfigs = append(s.NodeConfigs, k.Names...)
	}
	if err := p.refusal(); err != nil {
		s.ConfigError = err.Error()
	}
	return s
}

// document is the effective NodeConfig.
func (p *process) document() (d node.Document, err error) {
	if p.cluster == nil {
		text, err := os.ReadFile(p.flags.config)
		return node.Document{Text: string(text)}, err
	}
	if k := p.inForce.Load(); k != nil {
		d.Text, d.Origins = k.Document, k.Origins
	}
	if err := p.refusal(); err != nil {
		d.Error = err.Error()
	}
	return d, nil
}

// nodeTrouble tells the cluster's operators something about this node.
func (p *process) nodeTrouble(reason, message string) {
	p.cluster.Event(p.cluster.NodeSubject(), kube.Warning, reason, message)
}

// PodTrouble implements [node.Reporter].
func (p *process) PodTrouble(pod node.Pod, reason, message string) {
	p.cluster.Event(kube.PodSubject(pod.Key, pod.UID), kube.Warning, reason, message)
}
