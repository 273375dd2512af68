package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/gaggle-cni/gaggle/cni"
)

// GC implements [cni.Handler]: what the runtime does not list is detached (CNI spec 1.1.0 section 2, GC). Other networks,
// attachments under way, and those made after the records were read, which the list cannot know, are left alone.
func (a *Agent) GC(ctx context.Context, network string, inUse []cni.ID) error {
	used := make(map[cni.ID]bool, len(inUse))
	for _, id := range inUse {
		used[id] = true
	}
	var errs []error
	for _, att := range a.o.Store.All() {
		if att.ID.Network != network || used[att.ID] {
			continue
		}
		if ctx.Err() != nil { // what is cut off in the middle would free addresses before they are withdrawn
			errs = append(errs, fmt.Errorf("collect the rest: %w", context.Cause(ctx)))
			break
		}
		if err := a.collect(ctx, att, "the runtime does not list it"); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", att.ID, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return a.cniError(Pod{}, cni.ID{}, err)
	}
	return nil
}

// collect removes an attachment unless a handler works on it.
func (a *Agent) collect(ctx context.Context, att Attachment, reason string) error {
	unlock, ok := a.locks.tryLock(att.ID)
	if !ok {
		return nil
	}
	defer unlock()
	if now, known := a.find(att.ID); !known || !now.Created.Equal(att.Created) {
		return nil // meanwhile it went, or is another
	}
	if err := a.remove(ctx, att); err != nil {
		return err
	}
	a.o.Log.InfoContext(ctx, "collected an attachment that is not in use", "reason", reason, "pod", att.Pod.Key,
		"container", att.ID.ContainerID, "ifname", att.ID.IfName, "addr", att.Addrs)
	return nil
}
