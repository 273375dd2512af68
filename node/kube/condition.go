package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Bounds of setting the Node's condition.
const (
	patchTimeout    = 10 * time.Second
	firstPatchRetry = 2 * time.Second
	lastPatchRetry  = time.Minute
)

// NetworkReady says that pods of this node can be attached. If the Node's condition NetworkUnavailable says otherwise, or is not
// there, it is set to False: clouds set it to True and wait for whoever makes the network. There is no way back: a network that
// fails later is no reason to evict pods that work.
func (c *Cluster) NetworkReady() {
	c.ready.Store(true)
	signal(c.patch)
}

// keepCondition sets the condition when it has to be, until the context ends. While it is right nothing is written.
func (c *Cluster) keepCondition(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var pause time.Duration
	for {
		timer.Stop()
		if f, known := c.Node(); known && c.ready.Load() && f.networkUnavailable != corev1.ConditionFalse {
			switch err := c.patchCondition(ctx); {
			case err == nil:
				pause = 0 // the watch brings the new state
			case ctx.Err() != nil:
				return
			default:
				if pause == 0 {
					c.o.Log.WarnContext(ctx, "the Node's condition NetworkUnavailable cannot be set to False; this is tried again", "err", err)
				}
				pause = min(max(2*pause, firstPatchRetry), lastPatchRetry)
				timer.Reset(pause)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-c.patch:
		case <-timer.C:
		}
	}
}

func (c *Cluster) patchCondition(ctx context.Context) error {
	now := metav1.NewTime(c.o.Now())
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "GaggleIsUp", Message: "Gaggle serves CNI on this node",
		LastHeartbeatTime: now, LastTransitionTime: now,
	}}}})
	if err != nil {
		return fmt.Errorf("encode the condition: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, patchTimeout)
	defer cancel()
	return c.clients.core.Patch(types.StrategicMergePatchType).Resource("nodes").Name(c.o.Node).SubResource("status").Body(patch).Do(ctx).Error()
}
