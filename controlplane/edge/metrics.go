package edge

import (
	"bufio"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those of requests to apps. They are totals: an app is no label, because
// there may be any number of them.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	held     *prometheus.HistogramVec
	bytes    *prometheus.CounterVec
	wakes    *prometheus.CounterVec
}

func newMetrics(to prometheus.Registerer, a *apps) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_app_requests_total", Help: "Requests to apps by class (real, served, quiet, monitor) and by the first digit of the status; 0: the client left before an answer.",
		}, []string{"class", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_app_request_seconds", Help: "From a request to an app until its answer begins.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"status"}),
		held: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_app_held_seconds", Help: "How long requests were held while their app woke, until their answer began.",
			Buckets: []float64{.1, .25, .5, .75, 1, 1.5, 2, 3, 5, 10, 20, 30, 60},
		}, []string{"status"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_app_bytes_total", Help: "Bytes of the bodies of requests to apps (in) and of their answers (out), without those of WebSockets.",
		}, []string{"direction"}),
		wakes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_app_wakes_total", Help: "Wakes of apps that requests on this replica have waited for, by result.",
		}, []string{"result"}),
	}
	if to == nil || a == nil {
		return m
	}
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "berth_app_open_requests", Help: "Requests to apps that are in progress on this replica.",
	}, func() float64 { return float64(a.ledger.open()) })
	counted := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "berth_app_counted_apps", Help: "Apps whose requests this replica has counted for their workspaces.",
	}, func() float64 { apps, _ := a.book.Size(); return float64(apps) })
	kept := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "berth_app_kept_request_bytes", Help: "Memory that the kept requests to apps take.",
	}, func() float64 { _, bytes := a.book.Size(); return float64(bytes) })
	to.MustRegister(m.requests, m.seconds, m.held, m.bytes, m.wakes, open, counted, kept)
	for _, direction := range []string{"in", "out"} {
		m.bytes.WithLabelValues(direction)
	}
	for _, result := range []string{"ok", "error"} {
		m.wakes.WithLabelValues(result)
	}
	for _, c := range allClasses { // so that a rate is known from the first on
		m.requests.WithLabelValues(c.String(), "2")
	}
	return m
}

// served records a request whose answer has ended. What the leader has answered counts
// there.
func (m *metrics) served(v *visitApp, r *http.Request, log *slog.Logger) {
	if v.answer.elsewhere {
		return
	}
	status, took := strconv.Itoa(v.answer.status/100), v.answer.took
	if v.answer.status == 0 {
		took = time.Since(v.answer.begun)
	}
	m.requests.WithLabelValues(v.class.String(), status).Inc()
	m.seconds.WithLabelValues(status).Observe(took.Seconds())
	m.bytes.WithLabelValues("in").Add(float64(v.body.n.Load()))
	m.bytes.WithLabelValues("out").Add(float64(v.answer.bytes))
	if !v.until.IsZero() {
		m.held.WithLabelValues(status).Observe(took.Seconds())
	}
	if !log.Enabled(r.Context(), slog.LevelDebug) {
		return
	}
	log.DebugContext(r.Context(), "app request", "request_id", r.Header.Get(headerRequestID), "app_id", v.id, "class", v.class.String(),
		"method", r.Method, "path", r.URL.Path, "proto", r.Proto, "status", v.answer.status, "held", !v.until.IsZero(),
		"bytes", v.answer.bytes, "first_byte", took, "duration", time.Since(v.answer.begun))
}

// answer is a response whose status and beginning are noted.
type answer struct {
	http.ResponseWriter
	begun time.Time // of the request

	status    int
	took      time.Duration // until the response began
	bytes     int64
	elsewhere bool // another replica has answered
}

// Unwrap gives http.ResponseController access to the underlying writer.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if status >= http.StatusOK {
		a.note(status)
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (a *answer) Write(p []byte) (int, error) {
	a.note(http.StatusOK)
	n, err := a.ResponseWriter.Write(p)
	a.bytes += int64(n)
	return n, err
}

// Hijack implements http.Hijacker, for requests that are upgraded.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(a.ResponseWriter).Hijack()
	if err == nil {
		a.note(http.StatusSwitchingProtocols)
	}
	return conn, rw, err
}

func (a *answer) note(status int) {
	if a.status == 0 {
		a.status, a.took = status, time.Since(a.begun)
	}
}
