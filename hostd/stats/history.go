package stats

import (
	"math"
	"slices"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// sample is what was used in the time before at. It is small: there are hundreds of
// each box.
type sample struct {
	at             int64  // Unix ms
	took           uint32 // ms
	cpu            uint32 // ms
	memory, disk   uint32 // KiB
	received, sent uint64
}

// history are the samples of one box, oldest first. They are added at least a second
// apart and pruned after an hour, and there are no more than maxSamples.
type history struct {
	samples []sample
	from    time.Time // when the next sample begins; zero: that is not known
	seen    totals    // what is in the samples before
}

const maxSamples = 720

// begin has the next sample begin now.
func (h *history) begin(now time.Time, t totals) { h.from, h.seen = now, t }

// add ends a sample, and begins the next one.
func (h *history) add(now time.Time, t totals, memory, disk int64) {
	took := now.Sub(h.from)
	switch {
	case h.from.IsZero(), took < 0:
		h.begin(now, t)
		return
	case took < time.Second:
		return
	}
	if len(h.samples) >= maxSamples {
		h.samples = slices.Delete(h.samples, 0, 1)
	}
	h.samples = append(h.samples, sample{
		at: now.UnixMilli(), took: small(took.Milliseconds()), cpu: small((t.CPU - h.seen.CPU).Milliseconds()),
		memory: small(memory >> 10), disk: small(disk >> 10),
		received: uint64(max(t.Received-h.seen.Received, 0)), sent: uint64(max(t.Sent-h.seen.Sent, 0)),
	})
	h.begin(now, t)
}

// prune drops what ended before a time.
func (h *history) prune(before time.Time) {
	old := 0
	for old < len(h.samples) && h.samples[old].at < before.UnixMilli() {
		old++
	}
	h.samples = slices.Delete(h.samples, 0, old)
	if len(h.samples) == 0 {
		h.samples = nil
	}
}

// since returns what ended after a time.
func (h *history) since(t time.Time) []hostapi.StatsSample {
	out := []hostapi.StatsSample{}
	for _, s := range h.samples {
		if s.at > t.UnixMilli() {
			out = append(out, hostapi.StatsSample{
				At: time.UnixMilli(s.at).UTC(), Took: time.Duration(s.took) * time.Millisecond, CPU: time.Duration(s.cpu) * time.Millisecond,
				MemoryBytes: int64(s.memory) << 10, DiskBytes: int64(s.disk) << 10, ReceivedBytes: int64(s.received), SentBytes: int64(s.sent),
			})
		}
	}
	return out
}

func small(n int64) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }
