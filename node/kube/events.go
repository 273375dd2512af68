package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gaggle-cni/gaggle/node"
	"github.com/gaggle-cni/gaggle/node/api/v1alpha1"
)

// Bounds of Events. Each one is a write to the API server, of every node.
const (
	maxQueued    = 64               // wait to be told; more are dropped
	maxSubjects  = 512              // things told of that are remembered
	eventBurst   = 5                // of one reason of one object, before the rate counts
	eventRate    = time.Minute      // for each further one
	eventTimeout = 5 * time.Second  // of telling one
	sameEvent    = 10 * time.Minute // how long a repeat is counted in the first one's Event
	maxMessage   = 1024             // bytes; the API server takes no more
	maxNameStart = 200              // bytes of the subject's name in that of the Event
)

// An EventType is how bad an Event is.
type EventType string

// The types.
const (
	Normal  = EventType(corev1.EventTypeNormal)
	Warning = EventType(corev1.EventTypeWarning)
)

// A Subject is the object that an Event is about.
type Subject struct{ kind, apiVersion, namespace, name, uid string }

// PodSubject is a pod. Without a UID it is shown with pods of that name, whichever.
func PodSubject(key node.PodKey, uid string) Subject {
	return Subject{"Pod", "v1", key.Namespace, key.Name, uid}
}

// ConfigSubject is a NodeConfig.
func ConfigSubject(name string) Subject {
	return Subject{v1alpha1.Kind, v1alpha1.APIVersion, "", name, ""}
}

// NodeSubject is this node. Its UID is its name, as kubelet has it, so that both's Events are shown together.
func (c *Cluster) NodeSubject() Subject { return Subject{"Node", "v1", "", c.o.Node, c.o.Node} }

// An event is what is to be told.
type event struct {
	subject Subject
	kind    EventType
	reason  string
	message string
	at      time.Time
}

// A topic is what the rate is limited by.
type topic struct {
	subject Subject
	reason  string
}

// A record is what is remembered of a topic.
type record struct {
	tokens float64
	filled time.Time
	// The last Event, so that a repeat is counted in it.
	last      event
	name      string // in the API; empty if none has been told
	count     int32
	firstTold time.Time
}

// events are on their way to the API server.
type events struct {
	queue   chan event
	dropped atomic.Uint64

	mu      sync.Mutex
	records map[topic]*record
}

func (e *events) init() {
	e.queue = make(chan event, maxQueued)
	e.records = make(map[topic]*record)
}

// Event tells the cluster's users something about an object. It never blocks: what is too much, or cannot be told in bounded
// time, is counted in [Health] and dropped. reason is one word in CamelCase, message a sentence for people.
func (c *Cluster) Event(s Subject, t EventType, reason, message string) {
	ev := event{s, t, reason, strings.ToValidUTF8(message[:min(len(message), maxMessage)], ""), c.o.Now()}
	if !c.events.allow(topic{s, reason}, ev.at) {
		c.events.dropped.Add(1)
		return
	}
	select {
	case c.events.queue <- ev:
	default:
		c.events.dropped.Add(1)
	}
}

// allow takes a token of the topic's bucket.
func (e *events) allow(t topic, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.records[t]
	if r == nil {
		if len(e.records) >= maxSubjects {
			e.forgetLocked(now)
		}
		if len(e.records) >= maxSubjects {
			return false
		}
		r = &record{tokens: eventBurst, filled: now}
		e.records[t] = r
	}
	r.refill(now)
	if r.tokens < 1 {
		return false
	}
	r.tokens--
	return true
}

func (r *record) refill(now time.Time) {
	r.tokens = min(eventBurst, r.tokens+max(0, float64(now.Sub(r.filled))/float64(eventRate)))
	r.filled = now
}

// forgetLocked drops the topics that nobody has told of for a while.
func (e *events) forgetLocked(now time.Time) {
	for t, r := range e.records {
		if r.refill(now); r.tokens >= eventBurst {
			delete(e.records, t)
		}
	}
}

// sendEvents tells what is queued, until the context ends.
func (c *Cluster) sendEvents(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case ev := <-c.events.queue:
			timed, cancel := context.WithTimeout(ctx, eventTimeout)
			err := c.tell(timed, ev)
			cancel()
			if err != nil {
				c.events.dropped.Add(1)
				c.o.Log.DebugContext(ctx, "an event could not be told", "reason", ev.reason, "err", err)
			}
		}
	}
}

// tell counts a repeat in the Event that there is, and makes a new one otherwise.
func (c *Cluster) tell(ctx context.Context, ev event) error {
	last := c.events.last(ev)
	if last.name != "" {
		patch, err := json.Marshal(map[string]any{"count": last.count + 1, "lastTimestamp": metav1.NewTime(ev.at)})
		if err != nil {
			return fmt.Errorf("encode the event: %w", err)
		}
		err = c.clients.core.Patch(types.MergePatchType).Namespace(namespaceOf(ev.subject)).Resource("events").Name(last.name).Body(patch).Do(ctx).Error()
		if troubleOf(err) != missing { // it may have expired
			if err == nil {
				c.events.told(ev, last.name, last.count+1)
			}
			return err
		}
	}
	made := c.object(ev)
	if err := c.clients.core.Post().Namespace(made.Namespace).Resource("events").Body(made).Do(ctx).Error(); err != nil {
		return err
	}
	c.events.told(ev, made.Name, 1)
	return nil
}

// last returns the record that ev is a repeat of; without a name if it is none.
func (e *events) last(ev event) record {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.records[topic{ev.subject, ev.reason}]
	if r == nil || r.last.message != ev.message || r.last.kind != ev.kind || ev.at.Sub(r.firstTold) > sameEvent {
		return record{}
	}
	return *r
}

func (e *events) told(ev event, name string, count int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.records[topic{ev.subject, ev.reason}]
	if r == nil { // forgotten meanwhile
		return
	}
	if r.last, r.name, r.count = ev, name, count; count == 1 {
		r.firstTold = ev.at
	}
}

// namespaceOf is where Events about an object are: those about objects without a namespace are in "default".
func namespaceOf(s Subject) string {
	if s.namespace == "" {
		return metav1.NamespaceDefault
	}
	return s.namespace
}

func (c *Cluster) object(ev event) *corev1.Event {
	at := metav1.NewTime(ev.at)
	start := strings.TrimRight(ev.subject.name[:min(len(ev.subject.name), maxNameStart)], ".-")
	sum := sha256.Sum256(fmt.Appendf(nil, "%v %s %s %s %s", ev.subject, ev.kind, ev.reason, ev.message, c.o.Node))
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespaceOf(ev.subject), Name: fmt.Sprintf("%s.%x.%s", start, ev.at.UnixNano(), hex.EncodeToString(sum[:4])),
		},
		InvolvedObject: corev1.ObjectReference{
			Kind: ev.subject.kind, APIVersion: ev.subject.apiVersion, Namespace: ev.subject.namespace, Name: ev.subject.name, UID: types.UID(ev.subject.uid),
		},
		Type: string(ev.kind), Reason: ev.reason, Message: ev.message, Count: 1, FirstTimestamp: at, LastTimestamp: at,
		Source: corev1.EventSource{Component: "gaggle", Host: c.o.Node}, ReportingController: "gaggle.dev/node", ReportingInstance: c.o.Node,
	}
}
