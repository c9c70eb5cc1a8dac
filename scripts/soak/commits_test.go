package main

import (
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)

// three returns commits with rows 1 and 2 acknowledged on timeline 1, and row 3
// without an answer. Row 1 lies before LSN 100.
func three(t *testing.T) *commits {
	t.Helper()
	c := newCommits()
	for range 3 {
		c.begin()
	}
	for n := range int64(2) {
		if wrong := c.ack(n+1, 1, noon, noon.Add(time.Duration(n)*time.Second)); wrong != "" {
			t.Fatal(wrong)
		}
	}
	c.passed(1, 1, 100)
	return c
}

func TestAcknowledgedRowsMustBeThere(t *testing.T) {
	for name, test := range map[string]struct {
		found []int64
		loss  *loss
		want  string
		lost  int
	}{
		"all there":                  {found: []int64{1, 2, 3}},
		"an unknown outcome":         {found: []int64{1, 2}},
		"lost":                       {found: []int64{1, 3}, want: "1 acknowledged rows are lost: 2 (acknowledged"},
		"from elsewhere":             {found: []int64{1, 2, 9}, want: "row 9 was never written"},
		"lost by a failover":         {found: []int64{1}, loss: &loss{timeline: 1, after: noon, lsn: 100}, lost: 1},
		"it was archived by its LSN": {found: nil, loss: &loss{timeline: 1, after: noon.Add(-time.Hour), lsn: 100}, want: "rows are lost: 1 (acknowledged", lost: 1},
		"it was archived by time":    {found: []int64{1}, loss: &loss{timeline: 1, after: noon.Add(time.Second)}, want: "rows are lost: 2 (acknowledged"},
		"of an earlier timeline":     {found: []int64{1}, loss: &loss{timeline: 2, after: noon.Add(-time.Hour)}, want: "rows are lost: 2 (acknowledged"},
	} {
		wrong, lost := three(t).judge(test.found, test.loss)
		if got := strings.Join(wrong, "; "); !strings.Contains(got, test.want) || got != "" && test.want == "" || lost != test.lost {
			t.Errorf("%s: %q and %d lost, want %q and %d", name, got, lost, test.want, test.lost)
		}
	}
}

// A row that was found without an answer must be there from then on; one that was not
// may come late.
func TestWhatWasFoundMustStay(t *testing.T) {
	c := three(t)
	for _, found := range [][]int64{{1, 2}, {1, 2, 3}} {
		if wrong, _ := c.judge(found, nil); len(wrong) > 0 {
			t.Errorf("found %v: %q", found, wrong)
		}
	}
	if wrong, _ := c.judge([]int64{1, 2}, nil); len(wrong) != 1 {
		t.Errorf("a row that was seen is gone: %q", wrong)
	}
	// A failover may lose it as any other.
	c = three(t)
	if wrong, _ := c.judge([]int64{1, 2, 3}, nil); len(wrong) > 0 {
		t.Errorf("all are there: %q", wrong)
	}
	if wrong, lost := c.judge([]int64{1, 2}, &loss{timeline: 1, after: noon}); len(wrong) > 0 || lost != 1 {
		t.Errorf("a row that was seen is lost by a failover: %q, %d lost", wrong, lost)
	}
}

func TestABoxMustNotCommitAfterItsSuccessor(t *testing.T) {
	c := newCommits()
	for n, test := range []struct {
		timeline  uint32
		sent, now time.Duration
		stale     bool
	}{
		{1, 0, 1, false},
		{2, 5, 6, false},  // its successor
		{1, 4, 7, false},  // was sent before that served
		{1, 8, 9, true},   // the old box
		{2, 9, 10, false}, // and the new one
	} {
		wrong := c.ack(c.begin(), test.timeline, noon.Add(test.sent*time.Second), noon.Add(test.now*time.Second))
		if (wrong != "") != test.stale {
			t.Errorf("commit %d: %q, want stale: %t", n+1, wrong, test.stale)
		}
	}
	if newest, since := c.timeline(); newest != 2 || !since.Equal(noon.Add(6*time.Second)) {
		t.Errorf("timeline %d serves since %s", newest, since)
	}
}
