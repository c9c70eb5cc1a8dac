package chvemu

import (
	"encoding/json"
	"io"
	"log/slog"
	"sync"
	"time"
)

// monitor writes the event stream: pretty-printed JSON objects with an empty
// line between them (event_monitor/src/lib.rs, start_event_monitor_thread in
// vmm/src/lib.rs).
type monitor struct {
	log   *slog.Logger
	start time.Time
	mu    sync.Mutex
	w     io.Writer // nil when nobody asked for events
}

type eventTime struct {
	Secs  int64 `json:"secs"`
	Nanos int64 `json:"nanos"`
}

type eventRecord struct {
	Timestamp  eventTime         `json:"timestamp"`
	Source     string            `json:"source"`
	Event      string            `json:"event"`
	Properties map[string]string `json:"properties"`
}

// event records that something happened. Pairs of properties may follow.
func (m *monitor) event(source, event string, properties ...string) {
	m.log.Info("event", "source", source, "event", event)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.w == nil {
		return
	}
	at := time.Since(m.start)
	r := eventRecord{
		Timestamp: eventTime{Secs: int64(at / time.Second), Nanos: int64(at % time.Second)},
		Source:    source,
		Event:     event,
	}
	for i := 0; i+1 < len(properties); i += 2 {
		if r.Properties == nil {
			r.Properties = map[string]string{}
		}
		r.Properties[properties[i]] = properties[i+1]
	}
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return
	}
	// A reader that cannot keep up must not stop the machine; its events are
	// lost, as they are in Cloud Hypervisor.
	_, _ = m.w.Write(append(raw, "\n\n"...))
}
