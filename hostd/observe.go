package hostd

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/berth-cloud/berth/hostd/events"
	"github.com/berth-cloud/berth/nodecert"
)

func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// diskFree is what is left of the disk of the host's data. Where that cannot be told, it
// is NaN.
func diskFree(dir string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "berth_hostd_disk_free_bytes", Help: "Free space of the file system of the data directory.",
	}, func() float64 {
		free, err := freeBytes(dir)
		if err != nil {
			return math.NaN()
		}
		return float64(free)
	})
}

// certificates is for how long the certificate of this host, and the CA's, are still valid.
func certificates(cert *nodecert.Certificate) prometheus.Collector {
	return nodecert.Remaining("berth_hostd_certificate_remaining_seconds", cert.Ends)
}

// ready is whether the host takes boxes, as /readyz tells it.
func ready(missing func() string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "berth_hostd_ready", Help: "1 if the host takes boxes, 0 otherwise; /readyz says why.",
	}, func() float64 {
		if missing() == "" {
			return 1
		}
		return 0
	})
}

// machineBoot says which run of the machine this is.
func machineBoot() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("which run of the machine this is: %w", err)
	}
	return strings.TrimSpace(string(boot)), nil
}

// openEvents opens what records what happens to sandboxes.
func openEvents(cfg Config, boot string, registry prometheus.Registerer, log *slog.Logger) (*events.Recorder, error) {
	return events.Open(events.Config{
		Dir: filepath.Join(cfg.DataDir, "events"), HostID: cfg.HostID, BootID: boot, Ring: cfg.EventRing,
		Metrics: events.NewMetrics(registry), Log: log,
	})
}

// forgetEvents removes the events of sandboxes that are gone: a crash may come
// between the end of a sandbox and that of its stream.
func (d *Daemon) forgetEvents() {
	var ids []string
	for _, rec := range d.ledger.Boxes() {
		ids = append(ids, rec.ID)
	}
	if err := d.events.Keep(ids); err != nil {
		d.log.Warn("events of sandboxes that are gone stay on disk", "error", err)
	}
}
