package node

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// statusTimeout bounds one reading of the status.
const statusTimeout = 5 * time.Second

// stalePass is how old the last pass may be before the process counts as stuck: passes come every [doubtInterval].
const stalePass = 3 * doubtInterval

// AdminHandler serves the operator's commands. It belongs on a socket that only root can open.
func AdminHandler(status func(context.Context) (Status, error), document func() (Document, error)) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), statusTimeout)
		defer cancel()
		s, err := status(ctx)
		if err != nil {
			s.Pass.Errors = append(s.Pass.Errors, err.Error())
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s) // fails only when the reader has gone
	})
	mux.HandleFunc("GET /config", func(w http.ResponseWriter, _ *http.Request) {
		d, err := document()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(d)
	})
	return mux
}

// PublicHandler serves metrics and probes. /livez depends on neither peers nor an API server: it fails only when the pass
// no longer runs, which a new process would cure.
func PublicHandler(a *Agent, m *Metrics) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(m, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, a.o.Now().Sub(a.Last().Ended) < stalePass, "no pass has ended for too long")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), statusTimeout)
		defer cancel()
		s, err := a.Status(ctx)
		ready := err == nil && !s.Pass.Time.IsZero() && len(s.Pass.Errors) == 0 && len(s.sessionProblems()) == 0
		answer(w, ready, "the network is not as it must be, or a BGP peer is not established; see: gaggle status")
	})
	return mux
}

// WaitingHandler answers the probes of a process that has no configuration yet: it lives, and is not ready.
func WaitingHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { answer(w, true, "") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, false, "there is no configuration yet") })
	return mux
}

func answer(w http.ResponseWriter, ok bool, otherwise string) {
	if !ok {
		http.Error(w, otherwise, http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("ok\n"))
}
