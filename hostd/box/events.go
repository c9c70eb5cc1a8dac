package box

import (
	"maps"

	"github.com/berth-cloud/berth/hostd/guestio"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/ledger"
)

type noEvents struct{}

func (noEvents) Open(string, string, string)                            {}
func (noEvents) Emit(string, hostapi.EventType, string, map[string]any) {}
func (noEvents) Close(string)                                           {}

// open begins a box's stream of events.
func (h *Host) open(rec *ledger.Record) { h.events.Open(rec.ID, rec.WorkspaceID, rec.Template) }

// announce says that a box runs for the first time.
func (b *box) announce(src *source) {
	rec := b.record()
	meta := map[string]any{
		"boot_ms": rec.Took.Milliseconds(), "boot_mode": string(rec.Boot), "from_snapshot": nil, "warm": src.warm != nil,
	}
	maps.Copy(meta, src.origin)
	b.host.open(&rec)
	b.host.events.Emit(b.id, hostapi.EventRunning, "sandbox is running", meta)
	b.host.guests.ProbeSSH(guestio.NewGuest{ID: b.id, Line: b.line, Began: rec.StartedAt, Booted: rec.Boot != ledger.BootRestore, Removed: b.gone})
}
