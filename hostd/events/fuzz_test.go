package events

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

func sample(t testing.TB, seq uint64) []byte {
	e := entry{Event: hostapi.Event{Seq: seq, Time: time.UnixMilli(int64(seq)).UTC(), SandboxID: idA, Type: hostapi.EventPaused}, Key: "k"}
	line, err := e.line()
	must(t, err)
	return line
}

// FuzzFiles puts any bytes where a part of a journal is: it opens, holds no event
// that has no checksum, and takes more.
func FuzzFiles(f *testing.F) {
	good := append(sample(f, 1), sample(f, 2)...)
	f.Add(good)
	f.Add(good[:len(good)-3])
	f.Add(bytes.Repeat([]byte{0}, 100))
	f.Add([]byte("\n\n00000000 {}\n"))
	f.Add(append([]byte("junk"), good...))
	f.Fuzz(func(t *testing.T, raw []byte) {
		last := int64(0)
		_, end := scan(raw, func(e entry, end int64) {
			if e.Seq == 0 || end <= last || end > int64(len(raw)) || raw[end-1] != '\n' {
				t.Errorf("entry %+v ends at %d, after %d", e, end, last)
			}
			last = end
		})
		if end > int64(len(raw)) {
			t.Errorf("the end is at %d of %d", end, len(raw))
		}
		for name, key := range map[string]func(*hostapi.Event) uint64{
			"by number": func(e *hostapi.Event) uint64 { return e.Seq },
			"by time":   func(e *hostapi.Event) uint64 { return millis(e.Time) },
		} {
			dir := t.TempDir()
			must(t, os.WriteFile(filepath.Join(dir, "00000000000000000001"+partSuffix), raw, 0o600))
			open := func() (*journal, int) {
				n := 0
				j, err := openJournal(dir, limit{1 << 20, 9}, key, slog.New(slog.DiscardHandler), func(entry) { n++ })
				must(t, err)
				return j, n
			}
			j, before := open()
			_, last, _ := j.span()
			if last >= 1<<40 {
				continue
			}
			must(t, j.append(&hostapi.Event{Seq: last + 1, Time: time.UnixMilli(int64(last + 1))}, sample(t, last+1)))
			found, err := j.read(last, last+2, 10, 1<<20)
			if err != nil || len(found) != 1 {
				t.Errorf("%s: the event that was added is not found: %v", name, err)
			}
			if _, after := open(); after != before+1 {
				t.Errorf("%s: %d events, want one more than %d", name, after, before)
			}
		}
	})
}
