package hostapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
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
	few := Heartbeat{Boxes: []BoxState{{Error: strings.Repeat("x", 8<<10)}, {}}}
	few.ShortenErrors()
	if n := len(few.Boxes[0].Error); n != 8<<10 || few.Boxes[1].Error != "" {
		t.Errorf("of few errors one is cut to %d bytes", n)
	}
}
