package hostapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/guest/pgapi"
)

// A guest that refuses its identity says why, in up to 64 KB.
func TestErrorsOfGuestsKeepNoHeartbeatFromBeingTaken(t *testing.T) {
	var hb Heartbeat
	for i := range 1000 {
		hb.Boxes = append(hb.Boxes, BoxState{ID: fmt.Sprint(i), Status: StatusFailed, Error: "é" + strings.Repeat("<", 64<<10)})
	}
	hb.ShortenErrors()
	raw, err := json.Marshal(hb)
	if err != nil || len(raw) > MaxHeartbeat {
		t.Errorf("it has %d bytes, %v", len(raw), err)
	}
	if e := hb.Boxes[999].Error; !strings.HasPrefix(e, "é<<<<") {
		t.Errorf("the error is %q", e)
	}
	for i := range hb.Boxes {
		long := strings.Repeat("<", 1<<10)
		hb.Boxes[i].Database = &DatabaseState{
			Error: long, Archive: ArchiveState{Error: long}, Volume: pgapi.VolumeStatus{Reason: long}, Restore: &pgapi.RestoreStatus{Error: long},
		}
	}
	hb.ShortenErrors()
	if raw, err = json.Marshal(hb); err != nil || len(raw) > MaxHeartbeat {
		t.Errorf("with what is said of databases it has %d bytes, %v", len(raw), err)
	}
	few := Heartbeat{Boxes: []BoxState{{Error: strings.Repeat("x", 8<<10)}, {}}}
	few.ShortenErrors()
	if n := len(few.Boxes[0].Error); n != 8<<10 || few.Boxes[1].Error != "" {
		t.Errorf("of few errors one is cut to %d bytes", n)
	}
}
