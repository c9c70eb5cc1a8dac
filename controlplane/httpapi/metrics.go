package httpapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	duration *prometheus.HistogramVec
	inFlight prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "berth_http_request_duration_seconds",
			Help:    "Time from a request's header to the end of its answer.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600},
		}, []string{"route", "method", "status"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "berth_http_requests_in_flight",
			Help: "Requests that are being served.",
		}),
	}
	if err := r.Register(m.duration); err != nil {
		return nil, err
	}
	return m, r.Register(m.inFlight)
}

func (m *metrics) observe(route, method string, status int, took time.Duration) {
	m.duration.WithLabelValues(route, method, strconv.Itoa(status)).Observe(took.Seconds())
}

// methodLabel limits the label's values to known methods.
func methodLabel(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut,
		http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	}
	return "other"
}
