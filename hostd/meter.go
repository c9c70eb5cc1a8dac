package hostd

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/hostd/meter"
)

// openMeter opens what measures what boxes use.
func (d *Daemon) openMeter() (*meter.Meter, error) {
	began := time.Now()
	return meter.Open(meter.Config{
		File: filepath.Join(d.cfg.DataDir, "usage"),
		Boxes: func() ([]meter.Box, bool) {
			if !d.boxes.Ready() {
				return nil, false
			}
			briefs := d.boxes.Briefs()
			out := make([]meter.Box, len(briefs))
			for i, b := range briefs {
				out[i] = meter.Box(b)
			}
			return out, true
		},
		CPU: func(id string) (time.Duration, bool) {
			g, err := d.tree.Group(id)
			if err != nil {
				return 0, false
			}
			used, err := g.CPU()
			return used, err == nil
		},
		Now: time.Now, Elapsed: func() time.Duration { return time.Since(began) }, Uptime: uptime(), Log: d.log,
	})
}

// uptime returns the machine's own clock, which is the same for every run of the daemon.
func uptime() func() (boot string, up time.Duration) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	boot := strings.TrimSpace(string(raw))
	return func() (string, time.Duration) {
		var ts unix.Timespec
		if err != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
			return "", 0
		}
		return boot, time.Duration(ts.Nano())
	}
}
