package hostapi

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Bounds of a query of events. A host keeps the last 512 of a sandbox in memory
// and more on disk, where it looks for what is asked for beyond them.
const (
	DefaultEventTail = 100
	MaxEventTail     = 10_000
)

// TimeFormat is how an event's time is written where it stands alone: in a
// query and as the id of a server-sent event.
const TimeFormat = "2006-01-02T15:04:05.000Z07:00"

// EventQuery says which of a sandbox's events are asked for. Without Since it
// is the last DefaultEventTail of them. With Since it is all that came after;
// with both the last Tail of those.
type EventQuery struct {
	Tail  *int // at most MaxEventTail
	Since time.Time
}

func (q EventQuery) values() url.Values {
	v := url.Values{}
	if q.Tail != nil {
		v.Set("tail", strconv.Itoa(*q.Tail))
	}
	if !q.Since.IsZero() {
		v.Set("since", q.Since.UTC().Format(time.RFC3339Nano))
	}
	return v
}

// Events returns a sandbox's events, oldest first.
func (c *Client) Events(ctx context.Context, id string, q EventQuery) ([]Event, error) {
	var out []Event
	return out, c.do(ctx, http.MethodGet, PathBoxes+"/"+id+"/events?"+q.values().Encode(), nil, &out)
}

// FollowEvents returns the events asked for and then those to come, oldest
// first, until the sandbox is deleted (io.EOF). The caller closes it. To go on
// where it broke off, ask again with the last event's time as Since.
func (c *Client) FollowEvents(ctx context.Context, id string, q EventQuery) (*Follower[Event], error) {
	values := q.values()
	values.Set("follow", "true")
	return follow[Event](ctx, c, PathBoxes+"/"+id+"/events?"+values.Encode())
}

// PostEvent adds an event of the control plane to a sandbox's.
func (c *Client) PostEvent(ctx context.Context, id string, e NewEvent) error {
	return c.do(ctx, http.MethodPost, PathBoxes+"/"+id+"/events", e, nil)
}
