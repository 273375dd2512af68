package node

import (
	"maps"
	"sync"
	"time"

	"github.com/gaggle-cni/gaggle/cni"
)

// tombLife is how long a deletion is remembered: longer than any call lives.
const tombLife = 5 * time.Minute

// tombs remember deletions, so that an ADD that a runtime gave up cannot come about after the DEL that followed it. The calls
// for one attachment are done one after the other, but not always in the order in which they came. The zero value is
// ready.
type tombs struct {
	mu  sync.Mutex
	del map[cni.ID]time.Time // when the last DEL came in
}

// bury remembers a DEL.
func (t *tombs) bury(id cni.ID, received time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.del == nil {
		t.del = make(map[cni.ID]time.Time)
	}
	if received.After(t.del[id]) {
		t.del[id] = received
	}
}

// buried reports whether a DEL came in after a call.
func (t *tombs) buried(id cni.ID, received time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.del[id].After(received)
}

// prune forgets the deletions before a time.
func (t *tombs) prune(before time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.del, func(_ cni.ID, at time.Time) bool { return at.Before(before) })
}
