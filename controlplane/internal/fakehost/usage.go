package fakehost

import (
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// usageLog is what boxes have used, as a host hands it out.
type usageLog struct {
	sequence uint64
	sealed   hostapi.UsageBatch
	open     []hostapi.BoxUsage
}

// Use adds to what the host's boxes have used: as if it had been measured in a time
// that ends now.
func (h *Host) Use(boxes ...hostapi.BoxUsage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, u := range boxes {
		i := slices.IndexFunc(h.usage.open, func(o hostapi.BoxUsage) bool { return o.ID == u.ID })
		if i < 0 {
			h.usage.open = append(h.usage.open, u)
			continue
		}
		o := &h.usage.open[i]
		o.RunMS, o.MemoryMS, o.DiskMS, o.CPUMS = o.RunMS+u.RunMS, o.MemoryMS+u.MemoryMS, o.DiskMS+u.DiskMS, o.CPUMS+u.CPUMS
	}
}

func (l *usageLog) next(q url.Values) (any, error) {
	after, err := strconv.ParseUint(q.Get("sequence"), 10, 64)
	now, terr := time.Parse(time.RFC3339Nano, q.Get("now"))
	if err != nil || terr != nil {
		return nil, &hostapi.Error{Code: hostapi.CodeInvalid, Message: "bad cursor"}
	}
	if l.sealed.Sequence > 0 && after >= l.sealed.Sequence {
		l.sealed = hostapi.UsageBatch{}
	}
	if l.sealed.Sequence == 0 && len(l.open) > 0 {
		l.sequence++
		slices.SortFunc(l.open, func(a, b hostapi.BoxUsage) int {
			if a.ID < b.ID {
				return -1
			}
			return 1
		})
		var longest int64
		for _, u := range l.open {
			longest = max(longest, u.DiskMS, u.RunMS)
		}
		l.sealed = hostapi.UsageBatch{
			Epoch: "fake", Sequence: l.sequence, From: now.Add(-time.Duration(longest) * time.Millisecond), To: now, Boxes: l.open,
		}
		l.open = nil
	}
	return l.sealed, nil
}
