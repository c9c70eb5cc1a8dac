package server

import (
	"errors"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

type usageStub func(after hostapi.UsageCursor, now time.Time) (hostapi.UsageBatch, error)

func (f usageStub) Next(after hostapi.UsageCursor, now time.Time) (hostapi.UsageBatch, error) {
	return f(after, now)
}

func TestUsageIsHandedToTheLeaderAlone(t *testing.T) {
	at := time.Date(2026, 3, 10, 10, 0, 0, 5e6, time.UTC)
	batch := hostapi.UsageBatch{Epoch: "e", Sequence: 8, From: at, To: at.Add(time.Minute), Boxes: []hostapi.BoxUsage{{ID: "a", RunMS: 1}}, More: true}
	deposed := false
	l := goLive(t, func(c *Config) {
		c.Usage = usageStub(func(after hostapi.UsageCursor, now time.Time) (hostapi.UsageBatch, error) {
			if after != (hostapi.UsageCursor{Epoch: "e", Sequence: 7}) || !now.Equal(at) {
				return hostapi.UsageBatch{}, errors.New("not what was asked")
			}
			return batch, nil
		})
		c.ObserveTerm = func(string, uint64) error {
			if deposed {
				return hosterr.ErrInvalid
			}
			return nil
		}
	})
	got, err := l.Usage(t.Context(), hostapi.UsageCursor{Epoch: "e", Sequence: 7}, at)
	if err != nil || got.Sequence != 8 || !got.More || len(got.Boxes) != 1 || !got.To.Equal(batch.To) {
		t.Errorf("%+v, %v", got, err)
	}
	deposed = true
	if _, err := l.Usage(t.Context(), hostapi.UsageCursor{Epoch: "e", Sequence: 7}, at); err == nil {
		t.Error("a deposed leader has a batch forgotten")
	}
	for _, path := range []string{"", "?sequence=-1&now=2026-03-10T10:00:00Z", "?sequence=1&now=noon", "?sequence=1"} {
		if status, body := serveHTTP(l.server.http.Handler, "GET", hostapi.PathUsage+path, ""); status != 400 {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}
