package kube

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/gaggle-cni/gaggle/node"
)

func (s *apiServer) events() (events []map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for path, obj := range s.objects {
		if strings.Contains(path, "/events/") {
			events = append(events, obj)
		}
	}
	return events
}

func TestEvent(t *testing.T) {
	api := newAPIServer(t)
	w := newWorld(t, api).run(t)
	pod := PodSubject(node.PodKey{Namespace: "shop", Name: "web"}, "u1")
	w.Event(pod, Warning, "NotGranted", "203.0.113.1 is not granted")
	eventually(t, "an event", func() bool { return len(api.events()) == 1 })
	e := api.events()[0]
	object := e["involvedObject"].(map[string]any)
	if e["reason"] != "NotGranted" || e["type"] != "Warning" || e["message"] != "203.0.113.1 is not granted" || object["uid"] != "u1" ||
		object["kind"] != "Pod" || e["metadata"].(map[string]any)["namespace"] != "shop" {
		t.Errorf("event: %v", e)
	}
	t.Run("a repeat is counted in the first one", func(t *testing.T) {
		w.Event(pod, Warning, "NotGranted", "203.0.113.1 is not granted")
		eventually(t, "counted", func() bool { return fmt.Sprint(api.events()[0]["count"]) == "2" })
	})
	t.Run("another message is another event", func(t *testing.T) {
		w.Event(pod, Warning, "NotGranted", strings.Repeat("é", 1000))
		eventually(t, "another", func() bool { return len(api.events()) == 2 })
	})
	t.Run("too many of one reason are dropped", func(t *testing.T) {
		for range 20 {
			w.Event(pod, Warning, "NotGranted", "again")
		}
		if got := w.Health().DroppedEvents; got < 15 {
			t.Errorf("%d were dropped", got)
		}
	})
	t.Run("the node's are in default", func(t *testing.T) {
		w.Event(w.NodeSubject(), Normal, "ConfigApplied", "x")
		w.Event(ConfigSubject("rack-1"), Warning, "Invalid", "y")
		eventually(t, "both", func() bool {
			n := 0
			for _, e := range api.events() {
				if e["metadata"].(map[string]any)["namespace"] == "default" {
					n++
				}
			}
			return n == 2
		})
	})
}

// Whoever tells something does not wait, whatever the API server does, and memory has a bound.
func TestEventsNeverBlock(t *testing.T) {
	api := newAPIServer(t)
	api.hang = make(chan struct{})
	w := newWorld(t, api).run(t)
	start := time.Now()
	for i := range 2 * maxSubjects {
		w.Event(PodSubject(node.PodKey{Namespace: "shop", Name: fmt.Sprint("web-", i)}, ""), Warning, "NotGranted", "x")
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("took %v", took)
	}
	if got, want := w.Health().DroppedEvents, uint64(2*maxSubjects-maxQueued-1); got < want {
		t.Errorf("%d were dropped, want at least %d", got, want)
	}
	if n := len(w.events.records); n > maxSubjects {
		t.Errorf("%d subjects are remembered", n)
	}
}

func TestEventRate(t *testing.T) {
	var e events
	e.init()
	now := time.Unix(1000, 0)
	topics := func(i int) topic { return topic{PodSubject(node.PodKey{Name: fmt.Sprint(i)}, ""), "X"} }
	n := 0
	for range 20 {
		if e.allow(topics(0), now) {
			n++
		}
	}
	if n != eventBurst || e.allow(topics(0), now.Add(eventRate/2)) || !e.allow(topics(0), now.Add(eventRate)) {
		t.Errorf("%d at once, and then too few or too many", n)
	}
	for i := range maxSubjects {
		e.allow(topics(i), now)
	}
	if e.allow(topics(maxSubjects), now) {
		t.Error("there is room for more than the bound")
	}
	if !e.allow(topics(maxSubjects), now.Add(time.Hour)) {
		t.Error("old subjects are never forgotten")
	}
}

// The condition is set once the network is there, if it has to be, and nothing is written after that.
func TestNetworkReady(t *testing.T) {
	tests := []struct {
		name, conditions string
		writes           int
	}{
		{"not there", `[]`, 1},
		{"true", `[{"type": "NetworkUnavailable", "status": "True"}]`, 1},
		{"false", `[{"type": "NetworkUnavailable", "status": "False"}]`, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			api := newAPIServer(t)
			api.put(t, nodePath, `{"status": {"conditions": `+tt.conditions+`}}`)
			w := newWorld(t, api).run(t)
			eventually(t, "known", func() bool { _, ok := w.Node(); return ok })
			if writes := api.written(); len(writes) > 0 {
				t.Errorf("written before the network was ready: %v", writes)
			}
			w.NetworkReady()
			eventually(t, "false", func() bool { n, _ := w.Node(); return n.networkUnavailable == "False" })
			w.NetworkReady()
			api.put(t, nodePath, `{"metadata": {"labels": {"last": "x"}}, "status": {"conditions": [{"type": "NetworkUnavailable", "status": "False"}]}}`)
			eventually(t, "the last change", func() bool { n, _ := w.Node(); return n.Labels["last"] == "x" })
			if writes := api.written(); len(writes) != tt.writes {
				t.Errorf("writes: %v, want %d", writes, tt.writes)
			}
		})
	}
}

// A refusal is told of once, and tried again.
func TestNetworkReadyRefused(t *testing.T) {
	api := newAPIServer(t)
	api.put(t, nodePath, aNode)
	w := newWorld(t, api).run(t)
	eventually(t, "known", func() bool { _, ok := w.Node(); return ok })
	api.setRefusal("status", 403)
	w.NetworkReady()
	eventually(t, "told", func() bool { return strings.Contains(w.log.String(), "NetworkUnavailable cannot be set") })
	api.setRefusal("status", 0)
	eventually(t, "set", func() bool { n, _ := w.Node(); return n.networkUnavailable == "False" })
}

// client-go takes a timeout of a watch for its end; it must not look like one.
func TestTimeoutsAreTold(t *testing.T) {
	late := fmt.Errorf("dial: %w", os.ErrDeadlineExceeded)
	if !utilnet.IsTimeout(late) {
		t.Fatal("the test's error is no timeout")
	}
	if err := plain(late); utilnet.IsTimeout(err) || err.Error() != late.Error() {
		t.Errorf("plain() = %v, a timeout: %v", err, utilnet.IsTimeout(err))
	}
	if !errors.Is(plain(io.EOF), io.EOF) {
		t.Error("an error that is no timeout is another")
	}
}
