package meter

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

func TestADamagedFileIsSetAside(t *testing.T) {
	r := newRig(t, "2026-03-10T10:00:00Z")
	r.set("a", hostapi.StatusRunning)
	r.run(5)
	before := r.next(hostapi.UsageCursor{})
	raw, err := os.ReadFile(r.file)
	if err != nil {
		t.Fatal(err)
	}
	raw[3] ^= 1
	if err := os.WriteFile(r.file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	r.start()
	if r.epoch == before.Epoch {
		t.Error("the epoch is the same")
	}
	if _, err := os.Stat(r.file + ".damaged"); err != nil {
		t.Error(err)
	}
	r.run(2)
	if b := r.next(hostapi.UsageCursor{}); b.Boxes[0].RunMS != 2000 {
		t.Errorf("%+v", b)
	}
}

// Files of every format are read for ever. -update writes that of today's.
var update = flag.Bool("update", false, "write the golden file of today's format")

func TestGoldenFile(t *testing.T) {
	if *update {
		writeGolden(t, "testdata/v1/seen")
	}
	for _, golden := range []string{"testdata/v1/usage", "testdata/v1/seen"} { // the first is of before Seen
		readGolden(t, golden)
	}
}

func readGolden(t *testing.T, golden string) {
	t.Helper()
	raw, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "usage")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, file: file, wall: time.Date(2026, 3, 31, 23, 59, 0, 0, time.UTC), cpu: map[string]time.Duration{}}
	r.start()
	if r.epoch != "0123456789abcdef" {
		t.Errorf("epoch %s", r.epoch)
	}
	sealed := r.next(hostapi.UsageCursor{})
	if sealed.Sequence != 1 || !sealed.More || fmt.Sprint(sealed.Boxes) != "[{a 4000 4000 4000 1250}]" {
		t.Errorf("%+v", sealed)
	}
	open := r.next(hostapi.UsageCursor{Epoch: r.epoch, Sequence: 1})
	if open.Sequence != 2 || fmt.Sprint(open.Boxes) != "[{a 5000 7000 7000 0} {b 7000 7000 7000 0}]" {
		t.Errorf("%+v", open)
	}
}

func writeGolden(t *testing.T, golden string) {
	r := newRig(t, "2026-03-10T10:00:00Z")
	r.epoch = "0123456789abcdef"
	if err := r.rewrite(); err != nil {
		t.Fatal(err)
	}
	r.set("a", hostapi.StatusRunning)
	r.run(2)
	r.cpu["a"] = 1250 * time.Millisecond
	r.Write()
	r.run(2)
	r.next(hostapi.UsageCursor{})
	r.set("b", hostapi.StatusRunning)
	r.run(4)
	r.Write()
	r.set("a", hostapi.StatusPaused)
	r.run(3)
	r.Write()
	raw, err := os.ReadFile(r.file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(golden, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// No line makes the reader fail in another way than by an error.
func FuzzJournal(f *testing.F) {
	raw, err := os.ReadFile("testdata/v1/usage")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte("00000000 {}\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		file := filepath.Join(t.TempDir(), "usage")
		if err := os.WriteFile(file, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := Open(Config{
			File: file, Boxes: func() ([]Box, bool) { return nil, true }, CPU: func(string) (time.Duration, bool) { return 0, false },
			Now: time.Now, Elapsed: func() time.Duration { return 0 }, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer m.journal.close()
		var cur hostapi.UsageCursor
		for range 5 {
			b, err := m.Next(cur, time.Time{})
			if err != nil {
				t.Fatal(err)
			}
			if b.Sequence == 0 {
				return
			}
			cur = hostapi.UsageCursor{Epoch: b.Epoch, Sequence: b.Sequence}
		}
	})
}
