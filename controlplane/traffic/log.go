package traffic

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	// maxEntries is how many requests are kept of an app.
	maxEntries = 200
	// maxBytes is what the entries of all apps may take. Where they take more, those of
	// the apps go that were asked for longest ago.
	maxBytes = 64 << 20
	// maxPath and maxMethod are how much is kept of what clients choose, in bytes.
	maxPath, maxMethod = 256, 16
	entryBytes         = 160 // without its strings
)

// Entry is a request as it is kept.
type Entry struct {
	Seq      int64  `json:"seq"` // of the app, on this replica
	At       int64  `json:"at"`  // when it began, Unix ms
	ID       string `json:"id"`
	Method   string `json:"method"`
	Path     string `json:"path"`
	Cut      bool   `json:"cut,omitempty"` // the path was longer
	Status   int    `json:"status"`
	Class    int    `json:"class"`
	Held     bool   `json:"held,omitempty"`
	FirstMS  int64  `json:"first_ms"`
	TookMS   int64  `json:"took_ms"`
	Received int64  `json:"received"`
	Sent     int64  `json:"sent"`
}

func (e *Entry) bytes() int64 {
	return entryBytes + int64(len(e.ID)+len(e.Method)+len(e.Path))
}

// log are the latest requests of one app: a ring that grows up to maxEntries.
type log struct {
	ring []Entry
	next int   // where the next one goes, once the ring is full
	seq  int64 // of the last one
}

// add keeps a request, and returns by how much the log has grown.
func (l *log) add(now time.Time, r *Request) (bytes int64) {
	l.seq++
	path := r.Path[:min(len(r.Path), maxPath)]
	kept := r.ID + path // one allocation for both
	e := Entry{
		Seq: l.seq, At: now.Add(-r.Took).UnixMilli(), ID: kept[:len(r.ID)], Path: kept[len(r.ID):], Method: methodOf(r.Method), Status: r.Status, Class: r.Class, Held: r.Held,
		FirstMS: r.First.Milliseconds(), TookMS: r.Took.Milliseconds(), Received: r.Received, Sent: r.Sent, Cut: len(r.Path) > maxPath,
	}
	bytes = e.bytes()
	if len(l.ring) < maxEntries {
		l.ring = append(l.ring, e)
		return bytes
	}
	bytes -= l.ring[l.next].bytes()
	l.ring[l.next] = e
	l.next = (l.next + 1) % maxEntries
	return bytes
}

// clear forgets all, and returns by how much the log has grown.
func (l *log) clear() (bytes int64) {
	for i := range l.ring {
		bytes -= l.ring[i].bytes()
	}
	l.ring, l.next = nil, 0
	return bytes
}

// after returns the latest entries after one, at most so many, oldest first.
func (l *log) after(seq int64, most int) []Entry {
	out := make([]Entry, 0, min(len(l.ring), most))
	for i := range l.ring {
		if e := l.ring[(l.next+i)%len(l.ring)]; e.Seq > seq {
			out = append(out, e)
		}
	}
	if len(out) > most {
		out = slices.Delete(out, 0, len(out)-most)
	}
	return out
}

// methodOf returns a method that holds on to no request.
func methodOf(m string) string {
	for _, known := range [...]string{
		http.MethodGet, http.MethodPost, http.MethodHead, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions,
	} {
		if m == known {
			return known
		}
	}
	return strings.Clone(m[:min(len(m), maxMethod)])
}
