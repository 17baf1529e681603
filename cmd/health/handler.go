package health

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Limits of /metrics.
const (
	scrapeTimeout = 10 * time.Second
	scrapes       = 4 // concurrent ones
)

// NewRegistry returns a registry with the metrics of the Go runtime and the process.
func NewRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// Handler serves /livez, /readyz and /startupz with status 200 or 503, each with the whole report as
// JSON, and /metrics of reg.
func (m *Monitor) Handler(reg *prometheus.Registry) http.Handler {
	log := m.c.Log
	mux := http.NewServeMux()
	probe := func(path string, ok func(status) bool) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			r := m.report()
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Cache-Control", "no-store")
			if !ok(r.status) {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			e := json.NewEncoder(w)
			e.SetIndent("", "  ")
			if err := e.Encode(r); err != nil {
				log.Debug("write response", "path", path, "err", err) // the client has closed the connection
			}
		})
	}
	probe("/livez", func(v status) bool { return v.Live })
	probe("/readyz", func(v status) bool { return v.Ready })
	probe("/startupz", func(v status) bool { return v.Started })
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		MaxRequestsInFlight: scrapes, Timeout: scrapeTimeout, Registry: reg,
	}))
	return mux
}
