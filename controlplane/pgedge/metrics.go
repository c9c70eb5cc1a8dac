package pgedge

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cloud/berth/netfab/pgsni"
)

// metrics are a router's metrics. No label names a database, because the number of
// databases has no bound.
type metrics struct {
	login    prometheus.Histogram
	dial     *prometheus.HistogramVec
	refusals *prometheus.CounterVec
	bytes    *prometheus.CounterVec
}

var seconds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}

func newMetrics() *metrics {
	return &metrics{
		login: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "berth_pg_login_seconds", Buckets: seconds,
			Help: "From a client's start-up message until its session is ready, the wait for its database included.",
		}),
		dial: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_pg_dial_seconds", Buckets: seconds,
			Help: "Until a connection to the database's guest was made; woken=\"true\" where it slept.",
		}, []string{"woken", "result"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_pg_refused_total",
			Help: "Connections that ended before they were a session, by the SQLSTATE that the client was told; empty: it was told nothing.",
		}, []string{"sqlstate"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_pg_bytes_total", Help: "Of the PostgreSQL protocol, in sessions that have ended.",
		}, []string{"direction"}),
	}
}

func (m *metrics) register(to prometheus.Registerer, stats func() pgsni.Stats) error {
	gauge := func(name, help string, value func(pgsni.Stats) int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value(stats())) })
	}
	var failed error
	for _, c := range []prometheus.Collector{
		m.login, m.dial, m.refusals, m.bytes,
		gauge("berth_pg_sessions", "Clients of databases that are logged in.", func(s pgsni.Stats) int { return s.Sessions }),
		gauge("berth_pg_unauthenticated", "Connections to the router that are not logged in yet.", func(s pgsni.Stats) int { return s.Unauthenticated }),
	} {
		failed = errors.Join(failed, to.Register(c))
	}
	return failed
}

func (m *metrics) opened(s pgsni.Session) { m.login.Observe(s.Login.Seconds()) }

func (m *metrics) closed(_ pgsni.Session, t pgsni.Traffic) {
	m.bytes.WithLabelValues("from_client").Add(float64(t.FromClient))
	m.bytes.WithLabelValues("to_client").Add(float64(t.ToClient))
}

func (m *metrics) refused(sqlstate string) { m.refusals.WithLabelValues(known(sqlstate)).Inc() }

// known bounds the values of the sqlstate label. The code may come from the server, and
// so from a tenant's function.
func known(sqlstate string) string {
	switch sqlstate {
	case "", "08004", "08P01", "0A000", "28000", "28P01", "3D000", "53300", "53400", "57014", "57P01", "57P03":
		return sqlstate
	}
	return "other"
}

func (m *metrics) dialled(woken bool, err error, took time.Duration) {
	flag, result := "false", "ok"
	if woken {
		flag = "true"
	}
	if err != nil {
		result = "failed"
	}
	m.dial.WithLabelValues(flag, result).Observe(took.Seconds())
}
