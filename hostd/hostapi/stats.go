package hostapi

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// BoxStats is what a box has used. The totals grow for as long as the box is on this
// host, also over hibernations and restarts of the daemon.
type BoxStats struct {
	At            time.Time     `json:"at"`    // when it was measured
	Since         time.Time     `json:"since"` // when the totals were zero: the box's create, or a restart of the machine
	CPU           time.Duration `json:"cpu_ns"`
	ReceivedBytes int64         `json:"received_bytes"` // by the guest, in whole Ethernet frames
	SentBytes     int64         `json:"sent_bytes"`     // by the guest
	MemoryBytes   int64         `json:"memory_bytes"`   // now, of its VMM with the guest's memory and page cache; 0 without a VMM
	DiskBytes     int64         `json:"disk_bytes"`     // now, what the file of its disk takes
	Every         time.Duration `json:"every_ns"`       // of History
	History       []StatsSample `json:"history"`        // oldest first; not over restarts of the daemon
}

// StatsSample is what a box used in the time that ended with At.
type StatsSample struct {
	At            time.Time     `json:"at"`
	Took          time.Duration `json:"took_ns"`
	CPU           time.Duration `json:"cpu_ns"`
	ReceivedBytes int64         `json:"received_bytes"`
	SentBytes     int64         `json:"sent_bytes"`
	MemoryBytes   int64         `json:"memory_bytes"` // at its end
	DiskBytes     int64         `json:"disk_bytes"`   // at its end
}

// MaxUsageHistory is how far back a history goes.
const MaxUsageHistory = time.Hour

// QueryHistory says how many seconds of history are asked for; 0, or absent: none.
const QueryHistory = "history"

// BoxStats measures a box, and returns that much of its history.
func (c *Client) BoxStats(ctx context.Context, id string, history time.Duration) (BoxStats, error) {
	q := url.Values{QueryHistory: {strconv.FormatInt(int64(history/time.Second), 10)}}
	var out BoxStats
	return out, c.do(ctx, http.MethodGet, PathBoxes+"/"+id+"/stats?"+q.Encode(), nil, &out)
}
