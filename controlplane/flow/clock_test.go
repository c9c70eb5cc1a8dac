package flow

import (
	"testing"
	"time"

	"github.com/berth-cloud/berth/raftstore/record"
)

// A time written by another leader is as far ahead as it was when written, whatever
// that leader's clock showed.
func TestTimesOfAnotherLeadersClock(t *testing.T) {
	began := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	e := &Engine{inherited: 10, began: began}
	for name, c := range map[string]struct {
		index         uint64
		written, time time.Time
		want          time.Time
	}{
		"its clock was ahead":  {10, began.Add(time.Hour), began.Add(time.Hour + time.Minute), began.Add(time.Minute)},
		"its clock was behind": {9, began.Add(-time.Hour), began.Add(-time.Hour + time.Minute), began.Add(time.Minute)},
		"already over":         {9, began, began.Add(-time.Second), began},
		"none":                 {9, began, time.Time{}, time.Time{}},
		"our own":              {11, began.Add(time.Hour), began.Add(time.Minute), began.Add(time.Minute)},
	} {
		f := &record.Flow{Meta: record.Meta{ModifyIndex: c.index, UpdatedAt: c.written}}
		if got := e.here(f, c.time); !got.Equal(c.want) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
