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

// emitRunning says that a box runs for the first time.
func (c *creation) emitRunning() {
	rec := c.record()
	meta := map[string]any{
		"boot_ms": rec.Took.Milliseconds(), "boot_mode": string(rec.Boot), "from_snapshot": nil, "warm": c.source.warm != nil,
	}
	maps.Copy(meta, c.source.origin)
	c.host.open(&rec)
	c.host.events.Emit(c.id, hostapi.EventRunning, "sandbox is running", meta)
	c.host.guests.ProbeSSH(guestio.NewGuest{ID: c.id, Line: c.line, Began: rec.StartedAt, Booted: rec.Boot != ledger.BootRestore, Removed: c.gone})
}
