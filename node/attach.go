package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/gaggle-cni/gaggle/cni"
	"github.com/gaggle-cni/gaggle/cni/wire"
	"github.com/gaggle-cni/gaggle/ipam"
)

// undoTimeout bounds the clean-up after a failed ADD. It has its own clock: what failed may be that time ran out.
const undoTimeout = 20 * time.Second

var _ cni.Handler = (*Agent)(nil)

// Add implements [cni.Handler]. A repeat of a finished ADD returns the same result and disturbs nothing.
func (a *Agent) Add(ctx context.Context, req cni.Request) (cni.Result, error) {
	start := a.o.Now()
	pod := Pod{Key: PodKey{req.Pod.Namespace, req.Pod.Name}, UID: req.Pod.UID}
	log := a.o.Log.With("pod", pod.Key, "container", req.ID.ContainerID, "ifname", req.ID.IfName)
	unlock, err := a.locks.lock(ctx, req.ID)
	if err != nil {
		return cni.Result{}, a.cniError(pod, req.ID, err)
	}
	defer unlock()
	if a.tombs.buried(req.ID, req.Received) {
		return cni.Result{}, a.cniError(pod, req.ID, ErrDeleted)
	}
	att, err := a.attach(ctx, req, pod)
	took := a.o.Now().Sub(start)
	if err != nil {
		log.WarnContext(ctx, "attach refused", "err", err, "took", took)
		a.report(pod, err)
		return cni.Result{}, a.cniError(pod, req.ID, err)
	}
	log.InfoContext(ctx, "attached", "addr", att.Addrs, "host_if", att.HostIf, "took", took)
	return result(att), nil
}

func (a *Agent) attach(ctx context.Context, req cni.Request, pod Pod) (Attachment, error) {
	pod, err := a.identify(ctx, req, pod)
	if err != nil {
		return Attachment{}, err
	}
	choose := func(taken Taken) (Attachment, error) { return a.choose(req, pod, taken) }
	att, created, err := a.o.Store.Reserve(req.ID, choose)
	if err != nil {
		return Attachment{}, err
	}
	if !created {
		if done, err := a.repeated(ctx, req, att); err != nil || done {
			return att, err
		}
		// It was made for another request: what that asked for, and its namespace, do not count.
		if err := a.remove(ctx, att); err != nil {
			return Attachment{}, err
		}
		if att, _, err = a.o.Store.Reserve(req.ID, choose); err != nil {
			return Attachment{}, err
		}
	}
	if err := a.wire(ctx, req.Netns, att); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		return Attachment{}, errors.Join(err, a.remove(undo, att))
	}
	return att, nil
}

// repeated reports whether a record is that of the same ADD, finished, in the same namespace. A runtime may start a container
// again under its id although its DEL was lost.
func (a *Agent) repeated(ctx context.Context, req cni.Request, att Attachment) (bool, error) {
	if !att.Committed {
		return false, nil
	}
	return a.o.Datapath.Attached(ctx, req.Netns, att)
}

// wire brings a reserved attachment into the world.
func (a *Agent) wire(ctx context.Context, netns *os.File, att Attachment) error {
	ns, err := a.o.Datapath.Attach(ctx, netns, att)
	if err != nil {
		return err
	}
	if err := a.o.Store.Commit(att.ID, ns); err != nil {
		return err
	}
	p, err := a.Settle(ctx)
	if err != nil {
		return err
	}
	// Only the pod's own routes can fail it: trouble with BGP or with other pods is not its fault.
	if err := p.failure(att); err != nil {
		return err
	}
	if ctx.Err() != nil { // nobody would know of it
		return fmt.Errorf("the caller did not wait: %w", context.Cause(ctx))
	}
	return nil
}

// failure returns what keeps an attachment from being reached on this node.
func (p Pass) failure(att Attachment) error {
	var errs []error
	if err, failed := p.Sources[LinkName(att.HostIf)]; failed {
		errs = append(errs, err)
	}
	for _, addr := range att.Own() {
		host := netip.PrefixFrom(addr, addr.BitLen())
		if _, planned := p.Desired.Routes[host]; !planned {
			errs = append(errs, errors.Join(fmt.Errorf("%s is not planned", host), p.Err))
		}
		if err, failed := p.Routes[host]; failed {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Del implements [cni.Handler]. It needs no record, no namespace and no configuration to succeed.
func (a *Agent) Del(ctx context.Context, req cni.Request) error {
	start := a.o.Now()
	pod := Pod{Key: PodKey{req.Pod.Namespace, req.Pod.Name}, UID: req.Pod.UID}
	unlock, err := a.locks.lock(ctx, req.ID)
	if err != nil {
		return a.cniError(pod, req.ID, err)
	}
	defer unlock()
	a.tombs.bury(req.ID, req.Received)
	att, known := a.find(req.ID)
	if !known {
		// Its link may be there all the same, under the name it would have had.
		att = Attachment{ID: req.ID, HostIf: HostIf(req.ID, 0), Pod: pod}
		if a.hostIfUsed(att.HostIf) {
			return nil
		}
	}
	err = a.remove(ctx, att)
	took := a.o.Now().Sub(start)
	log := a.o.Log.With("pod", att.Pod.Key, "container", req.ID.ContainerID, "ifname", req.ID.IfName, "took", took)
	if err != nil {
		log.WarnContext(ctx, "detach incomplete", "err", err)
		return a.cniError(pod, req.ID, err)
	}
	log.InfoContext(ctx, "detached", "addr", att.Addrs, "known", known)
	return nil
}

// remove takes an attachment out of the world, whatever part of it is there: withdrawn, unrouted, unplugged, forgotten, in
// that order. The record stays, and its addresses stay taken, until everything else is gone.
func (a *Agent) remove(ctx context.Context, att Attachment) error {
	if att, known := a.find(att.ID); known && att.Committed {
		if err := a.o.Store.Retire(att.ID); err != nil {
			return err
		}
		// A pass that fails or does not end is no reason to keep the link: its routes go with it, and a later pass
		// withdraws what is left.
		if _, err := a.Settle(ctx); err != nil {
			a.o.Log.WarnContext(ctx, "detaching before the withdrawal", "container", att.ID.ContainerID, "err", err)
		}
	}
	return a.finish(ctx, att)
}

// finish removes what is left of an attachment that no pass plans.
func (a *Agent) finish(ctx context.Context, att Attachment) error {
	if err := a.o.Datapath.Detach(ctx, a.withoutShared(att)); err != nil {
		return err
	}
	if err := a.o.Store.Release(att.ID, a.config.Load().CoolDown); err != nil {
		return err
	}
	a.Kick() // nobody waits for what goes only with the record
	return nil
}

// withoutShared leaves out what another attachment has too: anycast addresses, and static ones that a newer sandbox of the
// pod has taken over. Their connections are not to be forgotten.
func (a *Agent) withoutShared(att Attachment) Attachment {
	shared := make(map[netip.Addr]bool)
	for _, other := range a.o.Store.All() {
		if other.ID == att.ID {
			continue
		}
		for _, addr := range other.Bound() {
			shared[addr] = true
		}
	}
	only := func(addrs []netip.Addr) []netip.Addr {
		return slices.DeleteFunc(slices.Clone(addrs), func(addr netip.Addr) bool { return shared[addr] })
	}
	att.Addrs, att.Extra, att.Anycast = only(att.Addrs), only(att.Extra), only(att.Anycast)
	return att
}

func (a *Agent) find(id cni.ID) (Attachment, bool) {
	all := a.o.Store.All()
	i, ok := slices.BinarySearchFunc(all, id, func(att Attachment, id cni.ID) int { return att.ID.Compare(id) })
	if !ok {
		return Attachment{}, false
	}
	return all[i], true
}

func (a *Agent) hostIfUsed(name string) bool {
	return slices.ContainsFunc(a.o.Store.All(), func(att Attachment) bool { return att.HostIf == name })
}

// result tells the runtime what an attachment is.
func result(att Attachment) cni.Result {
	r := cni.Result{HostIf: att.HostIf, HostMAC: att.HostMAC.String(), MAC: att.MAC.String(), MTU: att.MTU}
	for _, addr := range att.Addrs {
		gateway, all := Gateway6, netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		if addr.Is4() {
			gateway, all = Gateway4, netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		}
		r.IPs = append(r.IPs, cni.IP{Address: netip.PrefixFrom(addr, addr.BitLen()), Gateway: gateway})
		if !att.NoDefault {
			r.Routes = append(r.Routes, cni.Route{Dst: all, GW: gateway})
		}
	}
	return r
}

// cniError chooses the code of an error and what to do about it. No other place does. A message never says "not found":
// runtimes take that, in an error of DEL, for success.
func (a *Agent) cniError(pod Pod, id cni.ID, err error) error {
	subject := "container " + id.ContainerID
	switch key := pod.Key.String(); {
	case id == cni.ID{}:
		subject = "node"
	case key != "":
		subject = fmt.Sprintf("pod %s (%s)", key, subject)
	}
	code, details := wire.CodeKernel, "the node process's log has more"
	_, differs := errors.AsType[differences](err)
	switch {
	case differs:
		code, details = wire.CodeCheck, "the node process repairs the node's side by itself; else delete the pod"
	case errors.Is(err, ErrStopping), errors.Is(err, ErrDeleted), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		code, details = wire.CodeTryAgainLater, "try again"
	case errors.Is(err, ErrUnknownPod), errors.Is(err, ErrNoAPI):
		code, details = wire.CodeTryAgainLater, "try again; a runtime that passes the pod's annotations needs no API server for it"
	case errors.Is(err, ErrAnnotation):
		code, details = wire.CodeAnnotation, "correct the pod's annotations"
	case errors.Is(err, ErrNotGranted):
		code, details = wire.CodeForbidden, "an operator grants addresses to a namespace under spec.grants of the NodeConfig"
	case errors.Is(err, ErrNoFamily):
		code, details = wire.CodeNoFamily, "see spec.pools and spec.defaults.families of the NodeConfig, and the pod's annotations"
	case errors.Is(err, ipam.ErrExhausted):
		code, details = wire.CodeExhausted, "delete pods or give the node a larger pool"
	case errors.Is(err, ErrAddress):
		code, details = wire.CodeAddress, "ask for a free address of the node's pools: gaggle status, gaggle pods"
	case errors.Is(err, ErrInterfaceExists):
		code, details = wire.CodeInterfaceExists, "the container was attached by somebody else; the interface was left as it is"
	case errors.Is(err, ErrRouteExists):
		code, details = wire.CodeInterfaceExists, `set "defaultRoute": false in the network configuration if the other interface is to keep it`
	case errors.Is(err, ErrNetns), errors.Is(err, ErrNetnsGone):
		code, details = wire.CodeInvalidEnvironment, "CNI_NETNS must be the network namespace of the container"
	case errors.Is(err, ErrStore):
		code, details = wire.CodeStore, "is the file system of the run directory full or read-only?"
	}
	return &cni.Error{Code: code, Msg: fmt.Sprintf("%s: %v", subject, err), Details: details}
}

// notAvailable is the answer to STATUS when an ADD cannot be served.
func notAvailable(err error) error {
	return &cni.Error{Code: wire.CodeNotAvailable, Msg: fmt.Sprintf("node: %v", err), Details: "gaggle status says more"}
}

// limited is the answer to STATUS when containers that are there may be cut off too.
func limited(err error) error {
	return &cni.Error{Code: wire.CodeLimited, Msg: fmt.Sprintf("node: %v", err), Details: "gaggle status says more"}
}
