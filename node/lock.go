package node

import (
	"context"
	"fmt"
	"sync"

	"github.com/gaggle-cni/gaggle/cni"
)

// keyLock gives each attachment a lock of its own, so that the calls for one are serialised and those for others go on.
// The zero value is ready.
type keyLock struct {
	mu   sync.Mutex
	held map[cni.ID]*heldLock
}

type heldLock struct {
	users int
	token chan struct{} // capacity 1; full while locked
}

// lock waits for the lock, no longer than the context.
func (l *keyLock) lock(ctx context.Context, id cni.ID) (unlock func(), err error) {
	h := l.enter(id)
	select {
	case h.token <- struct{}{}:
		return func() { <-h.token; l.leave(id, h) }, nil
	case <-ctx.Done():
		l.leave(id, h)
		return nil, fmt.Errorf("wait for another call for the same interface: %w", context.Cause(ctx))
	}
}

// tryLock takes the lock only if nobody has it.
func (l *keyLock) tryLock(id cni.ID) (unlock func(), ok bool) {
	h := l.enter(id)
	select {
	case h.token <- struct{}{}:
		return func() { <-h.token; l.leave(id, h) }, true
	default:
		l.leave(id, h)
		return nil, false
	}
}

func (l *keyLock) enter(id cni.ID) *heldLock {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.held[id]
	if h == nil {
		h = &heldLock{token: make(chan struct{}, 1)}
		if l.held == nil {
			l.held = make(map[cni.ID]*heldLock)
		}
		l.held[id] = h
	}
	h.users++
	return h
}

func (l *keyLock) leave(id cni.ID, h *heldLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.users--; h.users == 0 {
		delete(l.held, id)
	}
}
