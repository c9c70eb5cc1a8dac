package hostapi

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// PathUsage is GET ?epoch=&sequence=&now= → UsageBatch, or 204 where nothing was used
// since. The leader names the last batch that it has written down; the host then
// forgets that one and answers with the next. Until it is named in its turn, the same
// batch is answered again, however often it is asked for.
const PathUsage = "/v1/usage"

// MaxUsageBoxes is how many boxes one batch may name: more than a host can have.
const MaxUsageBoxes = 100_000

// UsageCursor names a batch that was written down. The zero one names none.
type UsageCursor struct {
	Epoch    string // of the host's file of usage: numbers of another epoch do not compare
	Sequence uint64
}

// UsageBatch is what boxes used in a span of time, which lies within one month of UTC.
// A batch never changes once it has been handed out.
type UsageBatch struct {
	Epoch    string    `json:"epoch"`
	Sequence uint64    `json:"sequence"` // from 1, growing
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	// Boxes are in the order of their ids, each once.
	Boxes []BoxUsage `json:"boxes"`
	// More says that there is another batch to ask for at once.
	More bool `json:"more,omitempty"`
}

// BoxUsage is what one box used in a batch, all in milliseconds. A box that sleeps uses
// its disk alone; a paused one its memory and its disk.
type BoxUsage struct {
	ID       string `json:"id"`
	RunMS    int64  `json:"run_ms,omitempty"`    // its virtual CPUs ran
	MemoryMS int64  `json:"memory_ms,omitempty"` // it held its memory
	DiskMS   int64  `json:"disk_ms,omitempty"`   // it held its disk
	CPUMS    int64  `json:"cpu_ms,omitempty"`    // processor time that its processes used
}

// Usage asks for the batch after a cursor. now is the caller's clock, which the host
// counts by. There is nothing new where the batch has no sequence.
func (c *Client) Usage(ctx context.Context, after UsageCursor, now time.Time) (UsageBatch, error) {
	q := url.Values{"epoch": {after.Epoch}, "sequence": {strconv.FormatUint(after.Sequence, 10)}, "now": {now.UTC().Format(time.RFC3339Nano)}}
	var out UsageBatch
	return out, c.do(ctx, http.MethodGet, PathUsage+"?"+q.Encode(), nil, &out)
}
