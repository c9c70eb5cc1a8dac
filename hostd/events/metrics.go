package events

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Metrics are the recorder's numbers for Prometheus.
type Metrics struct {
	events    *prometheus.CounterVec
	dropped   *prometheus.CounterVec
	spool     prometheus.Gauge
	delivered *prometheus.CounterVec
}

// NewMetrics registers the metrics, unless there is no registry.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_hostd_events_total", Help: "Events of sandboxes, by type.",
		}, []string{"type"}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_hostd_events_dropped_total", Help: "Events that could not be written, by what has no record of them.",
		}, []string{"where"}),
		spool: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "berth_hostd_event_spool_bytes", Help: "Size of the spool for the control plane.",
		}),
		delivered: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_hostd_events_delivered_total", Help: "Events that a replica has taken in, by its address.",
		}, []string{"peer"}),
	}
	if r != nil {
		r.MustRegister(m.events, m.dropped, m.spool, m.delivered)
	}
	return m
}

func (m *Metrics) recorded(t hostapi.EventType) { m.events.WithLabelValues(string(t)).Inc() }
func (m *Metrics) drop(record string)           { m.dropped.WithLabelValues(record).Inc() }
func (m *Metrics) spooled(bytes int64)          { m.spool.Set(float64(bytes)) }

func (m *Metrics) deliver(peer string, n int) {
	m.delivered.WithLabelValues(peer).Add(float64(n))
}
