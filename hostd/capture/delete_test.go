package capture_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/capture"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// An eviction that fails leaves the capture. Whoever deleted it meanwhile must not
// have been told that it is gone.
func TestADeleteWaitsForAnEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		raw, err := json.Marshal(struct {
			Format int `json:"format"`
			hostapi.Capture
		}{1, hostapi.Capture{ID: "c1", Stored: true, MemoryBytes: 1 << 20}})
		must(t, err)
		must(t, os.Mkdir(filepath.Join(dir, "c1"), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, "c1", "capture.json"), raw, 0o600))
		now := time.Now()
		var l *capture.Local
		deleted := make(chan error, 1)
		changed := func() {
			go func() { deleted <- l.Delete(context.Background(), "c1") }()
			synctest.Wait()
		}
		l = capture.NewLocal(capture.Config{
			Dir: dir, Remote: &boxtest.Remote{}, Ready: func() bool { return true }, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now },
			Changed: func() {
				if f := changed; f != nil {
					changed = nil
					f()
				}
			},
		})
		must(t, l.Recover())
		now = now.Add(24 * time.Hour)                                             // it is stored for long
		must(t, os.MkdirAll(filepath.Join(dir, ".gone-c1", "in-its-way"), 0o700)) // so it cannot be renamed
		full := errors.New("full")
		if err := l.MakeRoom(func() (int64, error) { return 1, full }); !errors.Is(err, full) {
			t.Errorf("MakeRoom = %v", err)
		}
		if err := <-deleted; err == nil && len(l.List()) > 0 {
			t.Error("it was deleted, and is there")
		}
		l.Close()
	})
}
