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

// A kept is the last good configuration as it is stored.
type kept struct {
	Document string             `json:"document"`
	Cluster  nodeconfig.Cluster `json:"cluster"`
}

// configure settles what this life of the process is for.
func (p *process) configure(ctx context.Context) error {
	if p.flags.standalone {
		return p.fits(ctx, p.config)
	}
	clusterCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = p.cluster.Run(clusterCtx)
	}()
	p.stopCluster = func() { stop(); <-ended }
	if err := p.firstConfig(ctx); err != nil {
		p.stopCluster()
		return err
	}
	return nil
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
			p.inForce.Store(&c)
			p.keep(ctx, c)
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
	result, err := c.Merged.Convert(nodeconfig.Options{Node: p.flags.name, ReadFile: os.ReadFile, Cluster: &c.Cluster})
	if err != nil {
		return node.Config{}, fmt.Errorf("NodeConfig: %w", err)
	}
	for _, w := range result.Warnings {
		p.log.WarnContext(ctx, "a part of the configuration is left out", "path", w.Path, "document", w.Doc, "err", w.Text)
		p.cluster.Event(p.cluster.NodeSubject(), kube.Warning, "ConfigIncomplete", w.Path+": "+w.Text)
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
	var k kept
	err := json.Unmarshal(data, &k)
	var doc nodeconfig.Document
	if err == nil {
		doc, err = nodeconfig.Read([]byte(k.Document))
	}
	if err == nil {
		c := kube.Config{Merged: nodeconfig.Merge([]nodeconfig.Document{doc}), Cluster: k.Cluster}
		if p.config, err = p.convert(ctx, c); err == nil {
			p.inForce.Store(&c)
			p.refused.Store(&configTrouble{why})
		}
	}
	if err != nil {
		p.log.ErrorContext(ctx, "the last good configuration cannot be used", "err", err)
		return false
	}
	p.log.WarnContext(ctx, "the last good configuration is in force", "err", why)
	return true
}

// keep stores a configuration that is in force now. That this fails is no reason not to use it.
func (p *process) keep(ctx context.Context, c kube.Config) {
	data, err := json.Marshal(kept{string(c.Merged.Text()), c.Cluster})
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
		err := c.Err
		var next node.Config
		if err == nil {
			if next, err = p.convert(ctx, c); err == nil {
				err = p.adopt(ctx, next)
			}
		}
		if errors.Is(err, errReconfigured) {
			p.log.InfoContext(ctx, "what has changed in the configuration needs a new start; traffic goes on meanwhile")
			return errReconfigured
		}
		p.refused.Store(&configTrouble{err})
		if err != nil {
			p.log.WarnContext(ctx, "the last good configuration stays in force", "err", err)
			p.cluster.Event(p.cluster.NodeSubject(), kube.Warning, "ConfigRefused", err.Error())
			continue
		}
		p.inForce.Store(&c)
		p.keep(ctx, c)
	}
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
	if c := p.inForce.Load(); c != nil {
		s.NodeConfigs = append(s.NodeConfigs, c.Merged.Names...)
	}
	if t := p.refused.Load(); t != nil && t.err != nil {
		s.ConfigError = t.err.Error()
	}
	return s
}

// document is the effective NodeConfig.
func (p *process) document() (d node.Document, err error) {
	if p.cluster == nil {
		text, err := os.ReadFile(p.flags.config)
		return node.Document{Text: string(text)}, err
	}
	if c := p.inForce.Load(); c != nil {
		d.Text, d.Origins = string(c.Merged.Text()), c.Merged.Origins()
	}
	if t := p.refused.Load(); t != nil && t.err != nil {
		d.Error = t.err.Error()
	}
	return d, nil
}

// PodTrouble implements [node.Reporter].
func (p *process) PodTrouble(pod node.Pod, reason, message string) {
	p.cluster.Event(kube.PodSubject(pod.Key, pod.UID), kube.Warning, reason, message)
}
