package vmm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// One event as Cloud Hypervisor writes it.
const sampleEvent = `{
  "timestamp": {
    "secs": 2,
    "nanos": 500000000
  },
  "source": "vm",
  "event": "booted",
  "properties": null
}

`

const sampleRemoved = `{
  "timestamp": {
    "secs": 3,
    "nanos": 1
  },
  "source": "vm",
  "event": "device-removed",
  "properties": {
    "id": "d"
  }
}

`

func TestEventLogFollowsAGrowingFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	log := NewEventLog(path)
	next := func(want ...Event) {
		t.Helper()
		got, err := log.Next()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	}
	booted := Event{Timestamp: 2500 * time.Millisecond, Source: "vm", Event: "booted"}
	removed := Event{Timestamp: 3*time.Second + 1, Source: "vm", Event: "device-removed", Properties: map[string]string{"id": "d"}}
	write := func(text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	next() // not there yet
	write(sampleEvent + sampleRemoved[:40])
	next(booted)
	next() // half an event
	write(sampleRemoved[40:])
	next(removed)
	write(sampleEvent + sampleEvent)
	next(booted, booted)
	// Another VMM begins the file anew.
	if err := os.WriteFile(path, []byte(sampleRemoved), 0o600); err != nil {
		t.Fatal(err)
	}
	next(removed)
}

// Its VMM may be a guest's by now.
func TestEventsThatAreShortAreNotHeldAllAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	const all = maxPendingEvent / 2
	if err := os.WriteFile(path, []byte(strings.Repeat("{}", all)), 0o600); err != nil {
		t.Fatal(err)
	}
	log := NewEventLog(path)
	for seen := 0; seen < all; {
		events, err := log.Next()
		if err != nil || len(events) == 0 || len(events) > maxEvents {
			t.Fatalf("%d events at once after %d of %d, %v", len(events), seen, all, err)
		}
		seen += len(events)
	}
}

func TestEventLogRefusesWhatIsNoEventFile(t *testing.T) {
	dir := t.TempDir()
	secret, link, pipe, garbage := filepath.Join(dir, "secret"), filepath.Join(dir, "link"), filepath.Join(dir, "pipe"), filepath.Join(dir, "garbage")
	for _, err := range []error{
		os.WriteFile(secret, []byte(sampleEvent), 0o600), os.Symlink(secret, link),
		unix.Mkfifo(pipe, 0o600), os.WriteFile(garbage, []byte("neither this"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	endless := filepath.Join(dir, "endless")
	if err := os.WriteFile(endless, []byte(`{"source":"`+strings.Repeat("x", maxPendingEvent+1)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, pipe, garbage, endless, dir} {
		if _, err := NewEventLog(path).Next(); err == nil {
			t.Errorf("%s is taken for an event file", filepath.Base(path))
		}
	}
}

func FuzzDecodeEvents(f *testing.F) {
	f.Add([]byte(sampleEvent + sampleRemoved))
	f.Add([]byte(sampleEvent[:20]))
	f.Add([]byte(`{"timestamp":{"secs":-9223372036854775808,"nanos":1e3}}`))
	f.Add([]byte(`null {"properties":{"a":1}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		events, used, err := decodeEvents(raw)
		if used < 0 || used > len(raw) {
			t.Fatalf("%d of %d bytes used", used, len(raw))
		}
		if err != nil {
			return
		}
		// What was read is read again from the same bytes.
		again, _, err := decodeEvents(raw[:used])
		if err != nil || len(again) != len(events) {
			t.Fatalf("%d events at first, then %d, %v", len(events), len(again), err)
		}
	})
}
