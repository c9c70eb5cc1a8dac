package database

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cloud/berth/guest/pgapi"
)

// Metrics are the databases' numbers for Prometheus.
type Metrics struct {
	files    prometheus.Counter
	bytes    prometheus.Counter
	failures prometheus.Counter
	mends    prometheus.Counter
	backups  *prometheus.CounterVec
	restores *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		files: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_hostd_database_wal_files_total", Help: "WAL files of databases that were archived.",
		}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_hostd_database_wal_bytes_total", Help: "Bytes of WAL that were archived, before they were compressed.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_hostd_database_wal_failures_total", Help: "Attempts to archive a WAL file that failed.",
		}),
		mends: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_hostd_database_wal_mended_total", Help: "WAL files that were damaged in the archive and were written anew.",
		}),
		backups: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_hostd_database_backups_total", Help: "Base backups that ended, by result.",
		}, []string{"result"}),
		restores: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_hostd_database_restores_total", Help: "Restores of databases that ended, by result.",
		}, []string{"result"}),
	}
	r.MustRegister(m.files, m.bytes, m.failures, m.mends, m.backups, m.restores)
	return m
}

func (m *Metrics) stored(bytes int64) {
	m.files.Inc()
	m.bytes.Add(float64(bytes))
}

func (m *Metrics) walFailed() { m.failures.Inc() }
func (m *Metrics) mended()    { m.mends.Inc() }

func (m *Metrics) backup(err error)  { m.backups.WithLabelValues(result(err)).Inc() }
func (m *Metrics) restore(err error) { m.restores.WithLabelValues(result(err)).Inc() }

func result(err error) string {
	if err != nil {
		return "error"
	}
	return "ok"
}

// Collect returns a collector of what the databases are like at the moment of a scrape.
func (d *Databases) Collect() prometheus.Collector { return &gauges{d} }

var (
	descStates  = prometheus.NewDesc("berth_hostd_databases", "Databases that run, by PostgreSQL's state.", []string{"state"}, nil)
	descLag     = prometheus.NewDesc("berth_hostd_database_archive_lag_seconds", "Age of the oldest write that may not be archived, of the database where it is greatest.", nil, nil)
	descPending = prometheus.NewDesc("berth_hostd_database_pending_bytes", "Whole WAL files in guests that are not archived.", nil, nil)
	descFailing = prometheus.NewDesc("berth_hostd_database_archives_failing", "Databases whose WAL cannot be archived.", nil, nil)
)

type gauges struct{ d *Databases }

// Describe implements prometheus.Collector.
func (g *gauges) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(g, ch) }

// Collect implements prometheus.Collector.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	states := map[string]int{
		pgapi.StateStarting: 0, pgapi.StateReady: 0, pgapi.StateRecovering: 0, pgapi.StateStopped: 0, pgapi.StateFailed: 0,
	}
	var lag float64
	var pending int64
	failing := 0
	for _, b := range g.d.cfg.Boxes.Databases() {
		st := g.d.State(b.ID)
		if st == nil {
			continue
		}
		// The name is a guest's word. One that has not answered yet is starting.
		if _, known := states[st.State]; known {
			states[st.State]++
		} else {
			states[pgapi.StateStarting]++
		}
		lag = max(lag, st.Archive.LagSeconds)
		pending += st.Archive.PendingBytes
		if !st.Archive.FailingSince.IsZero() {
			failing++
		}
	}
	for state, n := range states {
		ch <- prometheus.MustNewConstMetric(descStates, prometheus.GaugeValue, float64(n), state)
	}
	ch <- prometheus.MustNewConstMetric(descLag, prometheus.GaugeValue, lag)
	ch <- prometheus.MustNewConstMetric(descPending, prometheus.GaugeValue, float64(pending))
	ch <- prometheus.MustNewConstMetric(descFailing, prometheus.GaugeValue, float64(failing))
}
