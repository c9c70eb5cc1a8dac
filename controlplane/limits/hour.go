package limits

import (
	"encoding/binary"
	"time"
)

// An Hour counts what happened in each second of the last hour. It is stored as pairs
// of varints, oldest first: the seconds since the pair before (the first: since 1970)
// and a count.
type Hour []second

type second struct {
	at int64
	n  uint64
}

// ReadHour decodes what Bytes returned. What cannot be decoded counts nothing.
func ReadHour(raw []byte) (h Hour) {
	at := int64(0)
	for len(raw) > 0 {
		since, k := binary.Uvarint(raw)
		n, l := binary.Uvarint(raw[max(k, 0):])
		if k <= 0 || l <= 0 || since > 1<<40 || n > 1<<40 {
			return nil
		}
		at += int64(since)
		h, raw = append(h, second{at, n}), raw[k+l:]
	}
	return h
}

// Bytes encodes h.
func (h Hour) Bytes() []byte {
	out, at := []byte{}, int64(0)
	for _, s := range h {
		out = binary.AppendUvarint(out, uint64(max(0, s.at-at)))
		out = binary.AppendUvarint(out, s.n)
		at = max(at, s.at)
	}
	return out
}

// Since returns h without the seconds that ended an hour before now or earlier. Those of more
// than an hour from now are of a leader whose clock was wrong. They count nothing, or they
// would until then.
func (h Hour) Since(now time.Time) Hour {
	first, last := now.Add(-time.Hour).Unix(), now.Add(time.Hour).Unix()
	for len(h) > 0 && h[0].at < first {
		h = h[1:]
	}
	for len(h) > 0 && h[len(h)-1].at > last {
		h = h[:len(h)-1]
	}
	return h
}

// Total returns how much happened.
func (h Hour) Total() (n int) {
	for _, s := range h {
		n += int(s.n)
	}
	return n
}

// Add returns h with n more at now. If the clock was set back, they count as having
// happened at the last known second.
func (h Hour) Add(now time.Time, n int) Hour {
	at := now.Unix()
	if last := len(h) - 1; last >= 0 && h[last].at >= at {
		out := append(Hour(nil), h...)
		out[last].n += uint64(n)
		return out
	}
	return append(h[:len(h):len(h)], second{at, uint64(n)})
}
