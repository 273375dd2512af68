package node

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gaggle-cni/gaggle/bgp"
)

// Metrics shows the node's [Status] to Prometheus. State is read when it is asked for; only calls are counted.
type Metrics struct {
	status   func(context.Context) (Status, error)
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

var (
	descInfo = prometheus.NewDesc("gaggle_info",
		"The version of the node process; always 1.", []string{"version"}, nil)
	descAttachments = prometheus.NewDesc("gaggle_attachments",
		"The attachments on record, by whether they are complete.", []string{"state"}, nil)
	descPool = prometheus.NewDesc("gaggle_pool_addresses_used",
		"The addresses of a pool that are in use.", []string{"pool", "family"}, nil)
	descPoolSize = prometheus.NewDesc("gaggle_pool_addresses",
		"The addresses of a pool that can be in use at once.", []string{"pool", "family"}, nil)
	descRoutes = prometheus.NewDesc("gaggle_routes",
		"The routes the node process wants in the kernel.", []string{"kind"}, nil)
	descAnnouncements = prometheus.NewDesc("gaggle_announcements",
		"The prefixes announced to BGP peers.", []string{"kind"}, nil)
	descEstablished = prometheus.NewDesc("gaggle_bgp_peer_established",
		"Whether the session with a peer is established.", []string{"peer"}, nil)
	descSynced = prometheus.NewDesc("gaggle_kubernetes_synced",
		"Whether everything that matters of the cluster has been seen once.", nil, nil)
	descAway = prometheus.NewDesc("gaggle_kubernetes_away_timestamp_seconds",
		"Since when something of the cluster cannot be watched, in seconds since the epoch; absent while all is well.", nil, nil)
	descRefused = prometheus.NewDesc("gaggle_config_refused",
		"Whether the newest configuration is not in force.", nil, nil)
	descPass = prometheus.NewDesc("gaggle_last_pass_timestamp_seconds",
		"When the last reconciliation ended, in seconds since the epoch.", nil, nil)
	descPassErrors = prometheus.NewDesc("gaggle_last_pass_errors",
		"What the last reconciliation could not bring about.", nil, nil)
)

// NewMetrics returns Metrics that read the given status.
func NewMetrics(status func(context.Context) (Status, error)) *Metrics {
	return &Metrics{
		status: status,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gaggle_cni_requests_total",
			Help: "The CNI calls that ended, by command and CNI error code; code 0 is success.",
		}, []string{"command", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "gaggle_cni_request_duration_seconds",
			Help:    "How long CNI calls took in the node process.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"command"}),
	}
}

// Observe counts a CNI call.
func (m *Metrics) Observe(command string, code uint, took time.Duration) {
	if command != "ADD" && command != "DEL" {
		command = "other" // what comes over the socket must not make labels
	}
	m.requests.WithLabelValues(command, strconv.FormatUint(uint64(code), 10)).Inc()
	m.duration.WithLabelValues(command).Observe(took.Seconds())
}

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descInfo, descAttachments, descPool, descPoolSize, descRoutes, descAnnouncements, descEstablished, descPass, descPassErrors, descSynced, descAway, descRefused,
	} {
		ch <- d
	}
	m.requests.Describe(ch)
	m.duration.Describe(ch)
}

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.requests.Collect(ch)
	m.duration.Collect(ch)
	s, err := m.status(context.Background()) //nolint:forbidigo // Prometheus gives a collector no context; the status has bounds of its own
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(descInfo, 1, s.Version)
	states := map[string]float64{"committed": 0, "pending": 0}
	for _, p := range s.Pods {
		states[p.State]++
	}
	for state, n := range states {
		gauge(descAttachments, n, state)
	}
	for _, p := range s.Pools {
		family := bgp.FamilyOf(p.Prefix.Addr()).String()
		gauge(descPool, float64(p.Used), p.Name, family)
		gauge(descPoolSize, p.Size, p.Name, family)
	}
	routes := map[RouteKind]float64{RouteHost: 0, RouteAggregate: 0, RouteLearned: 0}
	for _, r := range s.Routes {
		routes[r.Kind]++
	}
	for kind, n := range routes {
		gauge(descRoutes, n, string(kind))
	}
	announced := map[bgp.Kind]float64{bgp.KindPool: 0, bgp.KindPod: 0}
	for _, a := range s.Announcements {
		if a.Withheld == "" {
			announced[a.Kind]++
		}
	}
	for kind, n := range announced {
		gauge(descAnnouncements, n, string(kind))
	}
	if !s.Pass.Time.IsZero() {
		gauge(descPass, float64(s.Pass.Time.UnixMilli())/1000)
	}
	gauge(descPassErrors, float64(len(s.Pass.Errors)))
	if k := s.Kubernetes; k != nil {
		gauge(descSynced, boolean(k.Synced))
		gauge(descRefused, boolean(k.ConfigError != ""))
		if !k.Away.IsZero() {
			gauge(descAway, float64(k.Away.UnixMilli())/1000)
		}
	}
	if err != nil {
		return // an unknown session is not one that is down
	}
	for _, p := range s.Peers {
		gauge(descEstablished, boolean(p.Established()), p.Name)
	}
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
