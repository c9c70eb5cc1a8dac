package traffic

import (
	"slices"
	"time"
)

// Question is what is asked of a replica about an app.
type Question struct {
	Counts bool `json:"counts,omitempty"` // also what was counted
	// Entries is how many requests are asked for at most; After is the last one that is
	// known of those that the replica has numbered in Epoch.
	Entries int    `json:"entries,omitempty"`
	After   int64  `json:"after,omitempty"`
	Epoch   string `json:"epoch,omitempty"`
}

// MaxEntries is how many requests of an app a replica keeps.
const MaxEntries = maxEntries

// Report is what a replica knows of an app.
type Report struct {
	Replica string    `json:"replica"`
	Since   time.Time `json:"since,omitzero"` // when it began to count; zero: it has counted nothing
	Open    int       `json:"open"`           // requests in progress
	Total   Counts    `json:"total"`
	Wakes   int64     `json:"wakes"`
	Minutes []Minute  `json:"minutes,omitempty"` // oldest first, those with a request
	Epoch   string    `json:"epoch"`
	Last    int64     `json:"last"` // number of the last request
	Entries []Entry   `json:"entries,omitempty"`
}

// Hours returns what was counted of all apps in the present hour and the one before.
func (b *Book) Hours() []Hour {
	var out []Hour
	since := b.clock().Unix()/3600*3600 - (maxHours-1)*3600
	b.apps.Range(func(id, v any) bool {
		a := v.(*app)
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, h := range a.hours {
			if h.At >= since {
				out = append(out, Hour{AppID: id.(string), Minute: h})
			}
		}
		return true
	})
	return out
}

// Report answers a question.
func (b *Book) Report(id string, q Question) Report {
	out := Report{Epoch: b.Epoch}
	v, ok := b.apps.Load(id)
	if !ok {
		return out
	}
	a := v.(*app)
	a.mu.Lock()
	defer a.mu.Unlock()
	out.Last = a.entries.seq
	if q.Counts {
		out.Since, out.Total, out.Wakes = a.since, a.total, a.wakes
		a.prune(b.clock())
		out.Minutes = slices.Clone(a.minutes)
	}
	if most := min(q.Entries, maxEntries); most > 0 {
		after := q.After
		if q.Epoch != b.Epoch || after > a.entries.seq { // it was restarted, or has forgotten the app
			after = 0
		}
		out.Entries = a.entries.after(after, most)
	}
	return out
}
