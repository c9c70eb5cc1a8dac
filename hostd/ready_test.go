package hostd

import (
	"strings"
	"testing"
	"time"
)

func TestWhatKeepsAHostFromTakingBoxes(t *testing.T) {
	for _, c := range []struct {
		want              string
		draining, adopted bool
		stalled           time.Duration
		alone             bool
	}{
		{"", false, true, 0, false},
		{"", false, true, stalledDisk, false},
		{"draining:", true, false, time.Hour, true},
		{"boxes:", false, false, time.Hour, true},
		{"disk:", false, true, stalledDisk + 1, true},
		{"control_plane:", false, true, 0, true},
	} {
		if got := missing(c.draining, c.adopted, c.stalled, c.alone); !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
