package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/cni"
)

// Check implements [cni.Handler]. It compares what was stored, what the runtime was told, the kernel at both ends, the node's
// routes and what is announced, and names every difference. It changes nothing.
func (a *Agent) Check(ctx context.Context, req cni.Request) error {
	pod := Pod{Key: PodKey{req.Pod.Namespace, req.Pod.Name}, UID: req.Pod.UID}
	unlock, err := a.locks.lock(ctx, req.ID)
	if err != nil {
		return a.cniError(pod, req.ID, err)
	}
	defer unlock()
	att, known := a.find(req.ID)
	if !known || !att.Committed {
		return a.cniError(pod, req.ID, differences{errors.New("it is not attached")})
	}
	var diffs differences
	diffs = append(diffs, checkPrevious(att, req.Previous)...)
	inKernel, err := a.o.Datapath.Check(ctx, req.Netns, expected(att, req.Previous))
	if err != nil {
		return a.cniError(pod, req.ID, err) // not seen is not wrong
	}
	diffs = append(diffs, inKernel...)
	outside, err := a.checkOutside(ctx, att)
	if err != nil {
		return a.cniError(pod, req.ID, err)
	}
	if diffs = append(diffs, outside...); len(diffs) > 0 {
		return a.cniError(pod, req.ID, diffs)
	}
	return nil
}

// differences is the error of an attachment that is not as it must be.
type differences []error

// Error lists them.
func (d differences) Error() string {
	texts := make([]string, 0, len(d))
	for _, err := range d {
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "; ")
}

// expected is an attachment as the chain left it: a plugin after us may have given the container's end another MAC, and says
// so in the result.
func expected(att Attachment, prev cni.Previous) Attachment {
	var mac MAC
	if mac.UnmarshalText([]byte(prev.MACs[att.ID.IfName])) == nil {
		att.MAC = mac
	}
	return att
}

// checkPrevious compares the record with what the runtime was told. Plugins after us may have added to it.
func checkPrevious(att Attachment, prev cni.Previous) (diffs []error) {
	for _, name := range []string{att.HostIf, att.ID.IfName} {
		if _, ok := prev.MACs[name]; !ok {
			diffs = append(diffs, fmt.Errorf("prevResult: interface %s is missing", name))
		}
	}
	for _, addr := range att.Addrs {
		if !slices.Contains(prev.IPs, addr) {
			diffs = append(diffs, fmt.Errorf("prevResult: address %s is missing", addr))
		}
	}
	return diffs
}

// checkOutside compares the node's routes and announcements with the plan, as far as they are about an attachment.
func (a *Agent) checkOutside(ctx context.Context, att Attachment) (diffs []error, err error) {
	want := a.Last().Desired
	routes, err := a.o.Routes.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	sources, err := a.o.Sources.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list source checks: %w", err)
	}
	if link := LinkName(att.HostIf); sources[link] != want.Sources[link] {
		diffs = append(diffs, fmt.Errorf("the node does not check what %s sends from as it must", link))
	}
	var announced map[netip.Prefix]bgp.Announcement
	if a.o.Speaker != nil {
		if announced, err = a.o.Speaker.Announcements.List(ctx); err != nil {
			return nil, fmt.Errorf("list announcements: %w", err)
		}
	}
	for _, addr := range att.Bound() {
		host := netip.PrefixFrom(addr, addr.BitLen())
		switch have, ok := routes[host]; {
		case !ok:
			diffs = append(diffs, fmt.Errorf("route %s is missing on the node", host))
		case have != want.Routes[host]:
			diffs = append(diffs, fmt.Errorf("route %s on the node is %+v, want %+v", host, have, want.Routes[host]))
		}
		for p, v := range want.Announce {
			if have, ok := announced[p]; p.Contains(addr) && (!ok || have != v) {
				diffs = append(diffs, fmt.Errorf("%s is not announced as it must be", p))
			}
		}
	}
	return diffs, nil
}

// Ready implements [cni.Handler]. It is red only when no ADD could be served: a full pool or a session that is down are no
// reason to take a node out of service, and a runtime that is told so would.
func (a *Agent) Ready(context.Context) error {
	a.mu.Lock()
	stopped := a.stopped
	a.mu.Unlock()
	p := a.Last()
	switch c := a.config.Load(); {
	case stopped:
		return notAvailable(ErrStopping)
	case p.Ended.IsZero():
		return notAvailable(errors.New("the node process is not through with its start"))
	case len(c.Pools) == 0:
		return notAvailable(errors.New("the node has no pool of addresses"))
	case a.o.Now().Sub(p.Ended) > stalePass:
		return limited(fmt.Errorf("no pass has ended since %s", p.Ended.UTC().Format(time.RFC3339)))
	case len(p.Routes) > 0 && len(p.Routes) == len(p.Desired.Routes):
		return limited(fmt.Errorf("no route can be made: %w", p.Routes.Err()))
	case p.Desired.Routes == nil:
		return notAvailable(p.Err) // nothing could be observed yet
	}
	return nil
}
