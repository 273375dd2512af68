package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// Bounds of the conversation with the API server.
const (
	requestTimeout = 30 * time.Second // until an answer begins, of any request
	listTimeout    = time.Minute      // until a list has been read
	requestRate    = 50               // a second; a burst of pods that no watch has told of yet asks for each
	requestBurst   = 100
)

// deadAfter is when a connection counts as dead whose other end says nothing, be it idle or not. Watches are silent by nature,
// and one that has died silently would leave a pod announced that is not ready any more.
const deadAfter = 10 * time.Second

// clients are what requests are made with: core for the types of Kubernetes that are compiled in, in protobuf, and dynamic for
// NodeConfigs. A generated clientset would bring every type that Kubernetes has.
type clients struct {
	core    *rest.RESTClient
	codec   runtime.ParameterCodec
	dynamic dynamic.Interface
}

func newClients(o Options) (c clients, err error) {
	var config *rest.Config
	if o.Kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	} else {
		config, err = rest.InClusterConfig()
	}
	if err != nil {
		return c, fmt.Errorf("find the API server: %w", err)
	}
	config.UserAgent = "gaggle/" + o.Version
	config.QPS, config.Burst = requestRate, requestBurst
	config.Dial = dialer().DialContext
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return answerTimeout{next} })

	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return c, fmt.Errorf("register the core types: %w", err)
	}
	c.codec = runtime.NewParameterCodec(scheme)
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return c, fmt.Errorf("make an HTTP client: %w", err)
	}
	if c.dynamic, err = dynamic.NewForConfigAndClient(config, httpClient); err != nil {
		return c, fmt.Errorf("make a client: %w", err)
	}
	core := rest.CopyConfig(config)
	core.APIPath, core.GroupVersion = "/api", &corev1.SchemeGroupVersion
	core.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	core.ContentType = runtime.ContentTypeProtobuf
	core.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	if c.core, err = rest.RESTClientForConfigAndClient(core, httpClient); err != nil {
		return c, fmt.Errorf("make a client: %w", err)
	}
	return c, nil
}

func dialer() *net.Dialer {
	return &net.Dialer{
		Timeout:         deadAfter,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: deadAfter / 2, Interval: deadAfter / 5, Count: 3},
		Control: func(_, _ string, raw syscall.RawConn) (err error) {
			// Keep-alive probes rest while data is under way; this is the bound for that (tcp(7), TCP_USER_TIMEOUT).
			controlErr := raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(deadAfter.Milliseconds()))
			})
			if controlErr != nil {
				return controlErr
			}
			return err
		},
	}
}

// answerTimeout bounds the time until an answer begins. What follows has no end, for a watch.
type answerTimeout struct{ next http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (t answerTimeout) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	timer := time.AfterFunc(requestTimeout, func() {
		cancel(fmt.Errorf("no answer within %v: %w", requestTimeout, context.DeadlineExceeded))
	})
	resp, err := t.next.RoundTrip(req.WithContext(ctx))
	timer.Stop()
	if err != nil {
		cancel(err)
		return nil, plain(err)
	}
	resp.Body = body{resp.Body, cancel}
	return resp, nil
}

// told is an error of which only the text is left. client-go takes a watch that timed out for one that ended without an event, and
// nobody would know that the API server is away.
type told struct{ err error }

// Error returns the text.
func (t told) Error() string { return t.err.Error() }

// plain hides of an error that it is a timeout.
func plain(err error) error {
	if timed, ok := errors.AsType[net.Error](err); ok && timed.Timeout() {
		return told{err}
	}
	return err
}

// body ends the request's context when it is closed.
type body struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

// Close implements [io.Closer].
func (b body) Close() error {
	defer b.cancel(nil)
	return b.ReadCloser.Close()
}

// WrappedRoundTripper implements net.RoundTripperWrapper of apimachinery.
func (t answerTimeout) WrappedRoundTripper() http.RoundTripper { return t.next }

// list lists and watches objects of a type of Kubernetes' own, in one namespace or in all.
func (c clients) list(resource, namespace, field string) *cache.ListWatch {
	request := func(o metav1.ListOptions) *rest.Request {
		o.FieldSelector = field
		return c.core.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).VersionedParams(&o, c.codec)
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return request(o).Do(ctx).Get()
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			return request(o).Watch(ctx)
		},
	}
}

// nodeConfigs lists and watches all of them.
func (c clients) nodeConfigs() *cache.ListWatch {
	r := c.dynamic.Resource(schema.GroupVersionResource{Group: "gaggle.dev", Version: "v1alpha1", Resource: "nodeconfigs"})
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return r.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return r.Watch(ctx, o)
		},
	}
}
