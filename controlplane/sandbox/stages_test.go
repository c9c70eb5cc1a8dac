package sandbox

import (
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

func TestOurPartOfACreateLeavesOutTheEngineAndTheGuest(t *testing.T) {
	start := time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	got := map[string]time.Duration{}
	times := stages{
		observe: func(stage string, _ bool, took time.Duration) { got[stage] = took },
		clock:   func() time.Time { return at(200) }, start: start, admitted: at(5), placing: time.Millisecond,
	}
	times.report(Created{Dispatched: at(8), Answered: at(190), Took: 180 * time.Millisecond, Stages: []hostapi.Stage{
		{Name: "files", Duration: 10 * time.Millisecond},
		{Name: "restore", Duration: 50 * time.Millisecond, Engine: true},
		{Name: hostapi.StageGuestBoot, Duration: 40 * time.Millisecond, Engine: true},
		{Name: hostapi.StageIdentity, Duration: 60 * time.Millisecond},
	}})
	for stage, want := range map[string]int{"total": 200, "own": 50, "host_call": 2, "commit": 10, "admit": 4, "host.identity": 60} {
		if got[stage] != time.Duration(want)*time.Millisecond {
			t.Errorf("%s took %s, want %d ms", stage, got[stage], want)
		}
	}
}
