package chvemu

import (
	"bytes"
	"log/slog"
	"regexp"
	"testing"
	"time"
)

func TestMonitorWritesLikeCloudHypervisor(t *testing.T) {
	var out bytes.Buffer
	m := &monitor{log: slog.New(slog.DiscardHandler), start: time.Now(), w: &out}
	m.event("vm", "booted")
	m.event("vm", "device-removed", "id", "d", "bdf", "0000:00:04.0")
	want := regexp.MustCompile(`^\{
  "timestamp": \{
    "secs": 0,
    "nanos": \d+
  \},
  "source": "vm",
  "event": "booted",
  "properties": null
\}

\{
  "timestamp": \{
    "secs": 0,
    "nanos": \d+
  \},
  "source": "vm",
  "event": "device-removed",
  "properties": \{
    "bdf": "0000:00:04.0",
    "id": "d"
  \}
\}

$`)
	if !want.Match(out.Bytes()) {
		t.Errorf("wrote:\n%s", out.Bytes())
	}
	m.w = nil
	m.event("vm", "nobody listens")
}
