package box

import (
	"bytes"
	"context"
	"io"
	"maps"
	"time"

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
func (h *Host) announce(b *box, src *source, began time.Time) {
	rec := b.record()
	meta := map[string]any{
		"boot_ms": rec.Took.Milliseconds(), "boot_mode": string(rec.Boot), "from_snapshot": nil, "warm": src.warm != nil,
	}
	maps.Copy(meta, src.origin)
	h.open(&rec)
	h.events.Emit(b.id, hostapi.EventRunning, "sandbox is running", meta)
	h.probeSSH(b, rec.Slot, began)
}

const (
	sshPort = 22
	// sshDelay is how long a new guest is left alone: to answer a probe it starts a
	// server, which takes from what its user is waiting for.
	sshDelay    = 3 * time.Second
	sshPatience = 10 * time.Second // a guest without an SSH server is the rule
	sshPause    = 100 * time.Millisecond
)

// probeSSH tells when the guest's SSH server first answered, if it has one.
func (h *Host) probeSSH(b *box, slot int, began time.Time) {
	h.spawn(func() {
		select {
		case <-h.life.Done():
			return
		case <-b.gone:
			return
		case <-time.After(sshDelay):
		}
		ctx, cancel := context.WithTimeout(h.life, sshPatience)
		defer cancel()
		for pause := sshPause; ; pause *= 2 {
			if h.sshAnswers(ctx, slot) {
				// The slot may be another's by now, if this box is gone.
				if b.status() == hostapi.StatusRunning {
					h.events.Emit(b.id, hostapi.EventSSHReady, "SSH server answers",
						map[string]any{"ssh_ready_ms": h.now().Sub(began).Milliseconds()})
				}
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-b.gone:
				return
			case <-time.After(pause):
			}
		}
	})
}

func (h *Host) sshAnswers(ctx context.Context, slot int) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := h.slots.Dial(ctx, slot, sshPort)
	if err != nil {
		return false
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetReadDeadline(deadline)
	}
	greeting := make([]byte, 4)
	_, err = io.ReadFull(conn, greeting)
	return err == nil && bytes.Equal(greeting, []byte("SSH-"))
}
