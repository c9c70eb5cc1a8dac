package box

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cloud/berth/hostd/guestio"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/ledger"
)

// Metrics are the host's numbers for Prometheus.
type Metrics struct {
	creates        *prometheus.CounterVec
	createTime     *prometheus.HistogramVec
	transitionTime *prometheus.HistogramVec
	deaths         prometheus.Counter
	guests         *guestio.Metrics
}

// seconds from a millisecond to half a minute.
var buckets = []float64{.001, .0025, .005, .01, .025, .05, .075, .1, .15, .25, .5, .75, 1, 2.5, 5, 10, 30}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		creates: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_hostd_creates_total", Help: "Creates that ended, by boot and result.",
		}, []string{"boot", "result"}),
		createTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_hostd_create_stage_seconds", Help: "How long each stage of a create took; engine says that it was the VMM's own time.", Buckets: buckets,
		}, []string{"stage", "engine"}),
		transitionTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_hostd_move_seconds", Help: "How long pauses, resumes, hibernations, wakes and captures took.", Buckets: buckets,
		}, []string{"move", "result"}),
		deaths: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_hostd_vmm_deaths_total", Help: "VMMs that ended by themselves.",
		}),
		guests: guestio.NewMetrics(r, buckets),
	}
	r.MustRegister(m.creates, m.createTime, m.transitionTime, m.deaths)
	return m
}

func (m *Metrics) created(boot, result string) { m.creates.WithLabelValues(boot, result).Inc() }

func (m *Metrics) stages(stages []ledger.Stage) {
	for _, s := range stages {
		engine := "false"
		if s.Engine {
			engine = "true"
		}
		m.createTime.WithLabelValues(s.Name, engine).Observe(s.Duration.Seconds())
	}
}

func (m *Metrics) transition(name string, took time.Duration, err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.transitionTime.WithLabelValues(name, result).Observe(took.Seconds())
}

func (m *Metrics) died() { m.deaths.Inc() }

// Collect returns a collector of what the host holds at the moment of a scrape.
func (h *Host) Collect() prometheus.Collector { return &gauges{h} }

var (
	descBoxes    = prometheus.NewDesc("berth_hostd_boxes", "Boxes by state.", []string{"state"}, nil)
	descReserved = prometheus.NewDesc("berth_hostd_reserved_memory_bytes", "Memory promised to boxes, their engines' overhead included.", nil, nil)
	descBudget   = prometheus.NewDesc("berth_hostd_memory_budget_bytes", "Memory that may be promised.", nil, nil)
	descStalled  = prometheus.NewDesc("berth_hostd_disk_stalled_seconds", "How long the disk has been at work on the ledger without an end.", nil, nil)
	descSlots    = prometheus.NewDesc("berth_hostd_slots_used", "Network slots that boxes hold.", nil, nil)
)

type gauges struct{ h *Host }

// Describe implements prometheus.Collector.
func (g *gauges) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(g, ch) }

// Collect implements prometheus.Collector.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	count := map[hostapi.Status]int{
		hostapi.StatusStarting: 0, hostapi.StatusRunning: 0, hostapi.StatusPaused: 0,
		hostapi.StatusHibernated: 0, hostapi.StatusFailed: 0, hostapi.StatusDeleting: 0,
	}
	for _, b := range g.h.List() {
		count[b.Status]++
	}
	for state, n := range count {
		ch <- prometheus.MustNewConstMetric(descBoxes, prometheus.GaugeValue, float64(n), string(state))
	}
	ch <- prometheus.MustNewConstMetric(descReserved, prometheus.GaugeValue, float64(g.h.ReservedMB())*(1<<20))
	ch <- prometheus.MustNewConstMetric(descBudget, prometheus.GaugeValue, float64(g.h.cfg.MemoryMB)*(1<<20))
	ch <- prometheus.MustNewConstMetric(descStalled, prometheus.GaugeValue, g.h.DiskStalled().Seconds())
	ch <- prometheus.MustNewConstMetric(descSlots, prometheus.GaugeValue, float64(g.h.SlotsUsed()))
}
