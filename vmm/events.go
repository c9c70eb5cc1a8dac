package vmm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Event is one entry of the VMM's event monitor (event_monitor/src/lib.rs).
type Event struct {
	// Timestamp is the time since the VMM started.
	Timestamp time.Duration
	// Source and Event say what happened: "vm" "booted", "vmm" "shutdown",
	// "virtio-device" "activated".
	Source, Event string
	Properties    map[string]string
}

// UnmarshalJSON reads the form in which the event monitor writes.
func (e *Event) UnmarshalJSON(raw []byte) error {
	var w struct {
		Timestamp struct {
			Secs  int64 `json:"secs"`
			Nanos int64 `json:"nanos"`
		} `json:"timestamp"`
		Source     string            `json:"source"`
		Event      string            `json:"event"`
		Properties map[string]string `json:"properties"`
	}
	if err := json.Unmarshal(raw, &w); err != nil {
		return err
	}
	*e = Event{
		Timestamp:  time.Duration(w.Timestamp.Secs)*time.Second + time.Duration(w.Timestamp.Nanos),
		Source:     w.Source,
		Event:      w.Event,
		Properties: w.Properties,
	}
	return nil
}

// maxPendingEvent bounds one event in the stream. A VMM writes a few hundred
// bytes; more without an end means that the file is not a VMM's.
const maxPendingEvent = 1 << 20

// maxEvents bounds the events that are held at once: those of two bytes take fifty
// times that in memory.
const maxEvents = 16 << 10

// EventLog reads an event monitor's file as it grows. It is not safe for
// concurrent use.
type EventLog struct {
	path string
	off  int64
}

// NewEventLog returns a reader of the file at path, from its beginning. The file
// need not exist yet.
func NewEventLog(path string) *EventLog { return &EventLog{path: path} }

// Next returns the events that were added since the last call, or the first of
// them where they are many. An event that is half written is left for later. A
// file that became shorter was begun anew by another VMM and is read from its
// beginning.
func (l *EventLog) Next() ([]Event, error) {
	f, err := openPlain(l.path, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	if st.Size() < l.off {
		l.off = 0
	}
	// What was read may have been given back since, and reads as NULs.
	data, err := unix.Seek(int(f.Fd()), l.off, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	l.off = max(l.off, data)
	raw, err := io.ReadAll(io.NewSectionReader(f, l.off, min(st.Size()-l.off, 2*maxPendingEvent)))
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	text := bytes.TrimLeft(raw, "\x00") // of the page that the hole ends in
	l.off += int64(len(raw) - len(text))
	raw = text
	events, used, err := decodeEvents(raw)
	l.off += int64(used)
	if err == nil && len(events) == 0 && len(raw) > maxPendingEvent {
		err = fmt.Errorf("an event is longer than %d bytes", maxPendingEvent)
	}
	if err != nil {
		return events, fmt.Errorf("read events of %s: %w", l.path, err)
	}
	return events, nil
}

// decodeEvents reads the complete events at the start of raw and says how many
// bytes they and the space around them take.
func decodeEvents(raw []byte) (events []Event, used int, err error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	for len(events) < maxEvents {
		var e Event
		err := dec.Decode(&e)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return events, used, nil
		}
		if err != nil {
			return events, used, err
		}
		events = append(events, e)
		used = int(dec.InputOffset())
	}
	return events, used, nil
}
