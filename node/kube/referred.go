package kube

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gaggle-cni/gaggle/node/nodeconfig"
)

// maxSecrets bounds the watches of Secrets: each is one of a single object, so that no right to see others is needed.
const maxSecrets = 64

// watchReferred begins to watch what is referred to, and ends to watch what is not any more.
func (c *Cluster) watchReferred(ctx context.Context, refs nodeconfig.References) {
	a := &c.assembly
	wanted := make(map[string]bool)
	for _, ref := range refs.Secrets {
		if len(wanted) < maxSecrets {
			wanted[ref.Name] = true
		}
	}
	var stop []func() // not under the lock: what ends may wait for it
	a.mu.Lock()
	secrets := maps.Clone(a.secrets)
	if secrets == nil {
		secrets = make(map[string]*running[map[string]string])
	}
	for name, r := range secrets {
		if !wanted[name] {
			stop = append(stop, r.stop)
			delete(secrets, name)
		}
	}
	for name := range wanted {
		if secrets[name] == nil {
			list := c.clients.list("secrets", c.o.Namespace, "metadata.name="+name)
			secrets[name] = start(ctx, newWatched(c, "Secret "+name, list, &corev1.Secret{}, secretFacts, func() { signal(c.dirty) }))
		}
	}
	a.secrets = secrets
	switch {
	case len(refs.Namespaces) > 0 && a.namespaces == nil:
		list := c.clients.list("namespaces", "", "")
		a.namespaces = start(ctx, newWatched(c, "namespaces", list, &corev1.Namespace{}, namespaceFacts, func() { signal(c.dirty) }))
	case len(refs.Namespaces) == 0 && a.namespaces != nil:
		stop = append(stop, a.namespaces.stop)
		a.namespaces = nil
	}
	a.mu.Unlock()
	for _, end := range stop {
		end()
	}
}

// secretFacts are the entries of a Secret.
func secretFacts(obj any) (key string, entries map[string]string, err error) {
	s, ok := obj.(*corev1.Secret)
	if !ok {
		return "", nil, fmt.Errorf("%T: want a Secret", obj)
	}
	entries = make(map[string]string, len(s.Data))
	for key, value := range s.Data {
		entries[key] = string(value)
	}
	return s.Name, entries, nil
}

// namespaceFacts are the labels of a namespace.
func namespaceFacts(obj any) (key string, labels map[string]string, err error) {
	n, ok := obj.(*corev1.Namespace)
	if !ok {
		return "", nil, fmt.Errorf("%T: want a namespace", obj)
	}
	return n.Name, n.Labels, nil
}

// secrets returns what is referred to. waiting tells that some of it is about to come.
func (c *Cluster) secrets(refs []nodeconfig.SecretRef) (values map[string]nodeconfig.Secret, waiting bool) {
	for _, ref := range refs {
		if values == nil {
			values = make(map[string]nodeconfig.Secret)
		}
		v, wait := c.secret(ref)
		values[ref.String()] = v
		waiting = waiting || wait
	}
	return values, waiting
}

func (c *Cluster) secret(ref nodeconfig.SecretRef) (v nodeconfig.Secret, waiting bool) {
	r := c.assembly.secrets[ref.Name] // written by this goroutine alone
	if r == nil {
		return nodeconfig.Secret{Problem: fmt.Sprintf("more than %d Secrets are referred to", maxSecrets)}, false
	}
	state := r.probe()
	entries, there := r.get(ref.Name)
	value, has := entries[ref.Key]
	switch {
	case !state.synced && state.err != nil:
		v.Problem = fmt.Sprintf("Secret %s cannot be read: %s", ref.Name, state.trouble)
	case !state.synced:
		v.Problem = fmt.Sprintf("Secret %s has not been read yet", ref.Name)
	case !there:
		v.Problem = fmt.Sprintf("there is no Secret %s in namespace %s", ref.Name, c.o.Namespace)
	case !has:
		v.Problem = fmt.Sprintf("Secret %s has no key %q", ref.Name, ref.Key)
	default:
		v.Value = value
	}
	return v, !state.synced && state.err == nil
}

// namespaces returns which ones each selector selects, and whether they are known: what they grant is not granted until then.
func (c *Cluster) namespaces(selectors []nodeconfig.Selector) (selected map[string][]string, settled bool) {
	if len(selectors) == 0 {
		return nil, true
	}
	r := c.assembly.namespaces
	all, _ := r.all()
	state := r.probe()
	selected = make(map[string][]string)
	for _, s := range selectors {
		names := []string{}
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if s.Matches(all[name]) {
				names = append(names, name)
			}
		}
		selected[s.String()] = names
	}
	return selected, state.synced || state.err != nil
}
