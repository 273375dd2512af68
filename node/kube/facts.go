package kube

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gaggle-cni/gaggle/ipam"
	"github.com/gaggle-cni/gaggle/node"
)

// manifestUID is the annotation in which kubelet tells what it calls a static pod (pkg/kubelet/types of Kubernetes).
const manifestUID = "kubernetes.io/config.hash"

// podFacts reads what matters off a pod.
func podFacts(obj any) (key string, f node.PodFacts, err error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return "", f, fmt.Errorf("%T: want a pod", obj)
	}
	f = node.PodFacts{
		Key: node.PodKey{Namespace: p.Namespace, Name: p.Name}, UID: string(p.UID),
		App:         ipam.AppName(p.Name, owner(p)),
		Terminating: p.DeletionTimestamp != nil,
		Finished:    p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
		HostNetwork: p.Spec.HostNetwork,
	}
	for name, value := range p.Annotations {
		if strings.HasPrefix(name, node.Domain) {
			if f.Annotations == nil {
				f.Annotations = make(map[string]string)
			}
			f.Annotations[name] = value
		}
	}
	if _, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		f.ManifestUID = p.Annotations[manifestUID]
	}
	if len(p.Spec.Containers) > 0 {
		f.Image = p.Spec.Containers[0].Image
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			f.Ready = c.Status == corev1.ConditionTrue && !f.Terminating && !f.Finished
			f.Since = c.LastTransitionTime.Time
		}
	}
	return f.Key.String(), f, nil
}

// owner is the controller that the pod is of. A static pod's is the node, which is no workload.
func owner(p *corev1.Pod) ipam.Owner {
	ref := metav1.GetControllerOfNoCopy(p)
	if ref == nil || ref.Kind == "Node" {
		return ipam.Owner{}
	}
	return ipam.Owner{Kind: ref.Kind, Name: ref.Name, TemplateHash: p.Labels["pod-template-hash"]}
}

// NodeFacts are what the cluster says of this node.
type NodeFacts struct {
	UID      string
	Labels   map[string]string
	PodCIDRs []netip.Prefix // one a family; empty while the cluster has not assigned any
	// Addresses are the internal ones, in the order in which the node gives them.
	Addresses []netip.Addr
	// networkUnavailable is the status of the condition; empty if it is not there.
	networkUnavailable corev1.ConditionStatus
}

// nodeFacts reads what matters off a Node.
func nodeFacts(obj any) (key string, f NodeFacts, err error) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return "", f, fmt.Errorf("%T: want a node", obj)
	}
	f = NodeFacts{UID: string(n.UID), Labels: n.Labels}
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	for _, text := range cidrs {
		p, err := netip.ParsePrefix(text)
		if err != nil { // the API server has checked it
			return "", f, fmt.Errorf("node %s: spec.podCIDRs: %w", n.Name, err)
		}
		f.PodCIDRs = append(f.PodCIDRs, p.Masked())
	}
	for _, a := range n.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			f.Addresses = append(f.Addresses, addr)
		}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable {
			f.networkUnavailable = c.Status
		}
	}
	return n.Name, f, nil
}
