package guestio

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the guests' numbers for Prometheus.
type Metrics struct {
	execTime *prometheus.HistogramVec
	unfrozen prometheus.Counter
}

// NewMetrics registers the metrics. buckets are in seconds.
func NewMetrics(r prometheus.Registerer, buckets []float64) *Metrics {
	m := &Metrics{
		execTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_hostd_exec_seconds", Help: "How long execs took, as the host sees them.", Buckets: buckets,
		}, []string{"result"}),
		unfrozen: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_hostd_unfrozen_saves_total", Help: "Saves of guests whose processes could not be made to stand still.",
		}),
	}
	r.MustRegister(m.execTime, m.unfrozen)
	return m
}

func (m *Metrics) exec(took time.Duration, err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.execTime.WithLabelValues(result).Observe(took.Seconds())
}
