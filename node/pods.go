package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gaggle-cni/gaggle/cni"
	"github.com/gaggle-cni/gaggle/ipam"
)

// Pods tells what Kubernetes says of this node's pods. Its methods may be called concurrently.
type Pods interface {
	// Pod returns the facts of the pod that a runtime speaks of. Its errors are [ErrUnknownPod] and [ErrNoAPI].
	Pod(ctx context.Context, key PodKey, uid string) (PodFacts, error)
	// Pods returns what is known now; synced tells whether it has ever been all.
	Pods() (pods map[PodKey]PodFacts, synced bool)
}

// A Reporter tells the users of the cluster what they must know. It must not block.
type Reporter interface {
	// PodTrouble tells of a pod. reason is one word in CamelCase, message a sentence for people.
	PodTrouble(pod Pod, reason, message string)
}

// identify finds out what is to be known of a pod before it is attached. What the runtime passes counts: it needs no API server,
// and is about this very pod.
func (a *Agent) identify(ctx context.Context, req cni.Request, pod Pod) (Pod, error) {
	annotations, inCluster := req.Conf.Annotations, a.o.Pods != nil && pod.Key.Name != ""
	if inCluster && !req.Conf.HasAnnotations {
		facts, err := a.o.Pods.Pod(ctx, pod.Key, pod.UID)
		if err != nil {
			return pod, err
		}
		annotations = facts.Annotations
		pod.App, pod.Image = facts.App, facts.Image
	}
	var err error
	if pod.Intent, err = ParseIntent(annotations); err != nil {
		return pod, err
	}
	if inCluster && req.Conf.HasAnnotations && a.config.Load().needsWorkload(pod.Intent) {
		facts, err := a.o.Pods.Pod(ctx, pod.Key, pod.UID)
		if err != nil {
			a.o.Log.WarnContext(ctx, "the pod's name has to tell its workload", "pod", pod.Key, "err", err)
		}
		pod.App, pod.Image = facts.App, facts.Image
	}
	return pod, nil
}

// needsWorkload reports whether a pod's addresses are composed of what only Kubernetes tells for sure.
func (c Config) needsWorkload(in Intent) bool {
	algo := c.IPAlgo
	if own, err := ipam.ParseAlgo(in.IPAlgo); err == nil && len(own) > 0 {
		algo = own
	}
	return slices.ContainsFunc(algo, func(f ipam.Field) bool { return f.Name == ipam.FieldApp || f.Name == ipam.FieldImage })
}

// refresh brings the records' pods up to date with what Kubernetes says, and stores what has changed: a restart while the API
// server is away goes on from there. What is not told is what it was.
func (a *Agent) refresh(all []Attachment) ([]Attachment, error) {
	if a.o.Pods == nil {
		return all, nil
	}
	facts, synced := a.o.Pods.Pods()
	if !synced {
		return all, nil
	}
	now := a.o.Now().UTC().Round(0) // as it is read back
	all = slices.Clone(all)
	var errs []error
	for i, att := range all {
		f, ok := facts[att.Pod.Key]
		if !ok {
			continue // the DEL of a pod that was deleted is on its way
		}
		if pod := att.Pod.with(f, now); pod != att.Pod {
			all[i].Pod = pod
			if err := a.o.Store.Observe(att.ID, pod); err != nil {
				errs = append(errs, fmt.Errorf("note what is known of pod %s: %w", pod.Key, err))
			}
		}
	}
	return all, errors.Join(errs...)
}

// with is the pod by newer facts. Of its annotations only the claim on anycast addresses is taken: everything else was settled
// when it was attached.
func (p Pod) with(f PodFacts, now time.Time) Pod {
	if !f.Is(p.UID) { // another pod has its name, so that this one is gone
		p.Ready = false
		return p
	}
	if in, err := ParseIntent(f.Annotations); err == nil {
		p.Intent.Anycast = in.Anycast
	}
	switch {
	case !f.Terminating:
		p.Draining = time.Time{}
	case p.Ready && p.Draining.IsZero():
		p.Draining = now
	}
	p.Ready = f.Ready
	return p
}

// A Refusal is a claim of a pod that is no longer honoured.
type Refusal struct {
	Pod Pod
	Err error
}

// Error says which and why.
func (r Refusal) Error() string { return fmt.Sprintf("pod %s: %v", r.Pod.Key, r.Err) }

// Unwrap returns why.
func (r Refusal) Unwrap() error { return r.Err }

// reasons are what an Event of a pod is called.
var reasons = []struct {
	err    error
	reason string
}{
	{ErrAnnotation, "InvalidAnnotation"},
	{ErrNotGranted, "ClaimRefused"},
	{ErrAddress, "AddressConflict"},
	{ipam.ErrExhausted, "AddressesExhausted"},
	{ErrNoFamily, "NoAddressFamily"},
}

// report tells the pod's owner what they can mend.
func (a *Agent) report(pod Pod, err error) {
	if a.o.Reporter == nil || pod.Key.Name == "" {
		return
	}
	for _, r := range reasons {
		if errors.Is(err, r.err) {
			a.o.Reporter.PodTrouble(pod, r.reason, err.Error())
			return
		}
	}
}

// reportRefusals tells of claims that have lost their grant, each once.
func (a *Agent) reportRefusals(refused []Refusal) {
	now := make(map[string]bool, len(refused))
	for _, r := range refused {
		now[r.Error()] = true
		if !a.refused[r.Error()] {
			a.report(r.Pod, r.Err)
		}
	}
	a.refused = now
}
