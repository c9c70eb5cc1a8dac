package events

import (
	"bytes"
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

// FuzzFiles puts any bytes where a stream's file and a part of the spool are:
// both open, hold no event that has no checksum, and take more.
func FuzzFiles(f *testing.F) {
	good := append(sample(f, 1), sample(f, 2)...)
	f.Add(good)
	f.Add(good[:len(good)-3])
	f.Add(bytes.Repeat([]byte{0}, 100))
	f.Add([]byte("\n\n00000000 {}\n"))
	f.Add(append([]byte("junk"), good...))
	f.Fuzz(func(t *testing.T, raw []byte) {
		whole := 0
		_, end := scan(raw, func(e entry, at, next int) bool {
			if e.Seq == 0 || at >= next || next > len(raw) || raw[next-1] != '\n' {
				t.Errorf("entry %+v from %d to %d", e, at, next)
			}
			whole++
			return true
		})
		if end > len(raw) {
			t.Errorf("the end is at %d of %d", end, len(raw))
		}
		dir := t.TempDir()
		path := filepath.Join(dir, "a.events")
		must(t, os.WriteFile(path, raw, 0o600))
		s, _, err := openStream(path, 1<<20)
		must(t, err)
		before := len(s.ring)
		e := entry{Event: hostapi.Event{Seq: 7, Time: s.stamp(time.Now())}}
		line, err := e.line()
		must(t, err)
		must(t, s.write(line))
		again, _, err := openStream(path, 1<<20)
		must(t, err)
		if want := min(before+1, ringSize); s.size <= s.keep && len(again.ring) < min(want, 1) {
			t.Errorf("%d events, want %d", len(again.ring), want)
		}

		spoolDir := filepath.Join(dir, "spool")
		must(t, os.Mkdir(spoolDir, 0o700))
		must(t, os.WriteFile(filepath.Join(spoolDir, "00000000000000000001"+segmentSuffix), raw, 0o600))
		sp, _, err := openSpool(spoolDir, 1<<20, 1<<20, time.Hour)
		must(t, err)
		if sp.last < 1<<62 {
			must(t, sp.append(sample(t, sp.last+1), sp.last+1, time.Now()))
			place := reader{seq: sp.last - 1}
			found, _, _, err := sp.read(&place, 10, 1<<20)
			if err != nil || len(found) == 0 {
				t.Errorf("the event that was added is not found: %v", err)
			}
		}
		must(t, sp.close())
	})
}
