package eventstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

const (
	// maxBatch limits a batch's body: 500 events with metadata of a few kilobytes
	// each.
	maxBatch  = 8 << 20
	maxEvents = 2000
	// maxID, maxMessage and maxMeta limit the parts of an event.
	maxID      = 128
	maxMessage = 4 << 10
	maxMeta    = 64 << 10
	// maxAhead is how far a host's clock may be ahead of ours.
	maxAhead = time.Hour

	pruneInterval = time.Hour
)

var errBadBatch = errors.New("bad event batch")

// Intake stores the events that hosts send.
type Intake struct {
	Store *Store
	Log   *slog.Logger
}

// ServeEvents handles hostapi.PathEvents. host is the name in the caller's
// certificate.
func (i *Intake) ServeEvents(w http.ResponseWriter, r *http.Request, host string) {
	if r.Method != http.MethodPost {
		reply(w, http.StatusMethodNotAllowed, hostapi.Error{Code: hostapi.CodeInvalid, Message: "POST only"})
		return
	}
	var b hostapi.EventBatch
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBatch)).Decode(&b); err != nil {
		reply(w, http.StatusBadRequest, hostapi.Error{Code: hostapi.CodeInvalid, Message: "event batch is not valid JSON"})
		return
	}
	if b.HostID != host {
		reply(w, http.StatusForbidden, hostapi.Error{Code: hostapi.CodeUnauthorized, Message: "the certificate is of host " + host})
		return
	}
	cursor, err := i.take(r.Context(), b)
	switch {
	case errors.Is(err, errBadBatch):
		reply(w, http.StatusBadRequest, hostapi.Error{Code: hostapi.CodeInvalid, Message: err.Error()})
	case err != nil:
		i.Log.WarnContext(r.Context(), "events were not stored; the host tells them again", "agent_id", host, "events", len(b.Events), "error", err)
		reply(w, http.StatusServiceUnavailable, hostapi.Error{Code: hostapi.CodeInternal, Message: "try again"})
	default:
		reply(w, http.StatusOK, hostapi.EventCursor{Seq: cursor})
	}
}

func (i *Intake) take(ctx context.Context, b hostapi.EventBatch) (uint64, error) {
	if err := check(b); err != nil {
		return 0, err
	}
	i.clip(b.Events)
	have, err := i.Store.Cursor(ctx, b.HostID)
	if err != nil || len(b.Events) == 0 {
		return have, err
	}
	if first := b.Events[0].Seq; have > 0 && first > have+1 {
		if b.First <= have+1 {
			// The host still has the missing ones, and sends them from the returned
			// cursor.
			return have, nil
		}
		i.Log.WarnContext(ctx, "events of a host are lost: its spool is shorter than the time this store was away",
			"agent_id", b.HostID, "events", first-have-1)
	}
	return i.Store.Append(ctx, b)
}

// check refuses a batch that no correct host sends.
func check(b hostapi.EventBatch) error {
	if len(b.Events) > maxEvents {
		return fmt.Errorf("%w: %d events, at most %d", errBadBatch, len(b.Events), maxEvents)
	}
	var last uint64
	for i := range b.Events {
		seq := b.Events[i].Seq
		if seq <= last || seq > math.MaxInt64 {
			return fmt.Errorf("%w: seq %d after %d", errBadBatch, seq, last)
		}
		last = seq
	}
	return nil
}

// clip truncates what is too long, and corrects times that are too far ahead. It
// does not refuse such an event: the host would send it again and again, and never
// the events after it.
func (i *Intake) clip(events []hostapi.Event) {
	latest := i.Store.clock().Add(maxAhead)
	for n := range events {
		e := &events[n]
		e.SandboxID, e.WorkspaceID, e.Template = first(e.SandboxID, maxID), first(e.WorkspaceID, maxID), first(e.Template, maxID)
		e.Type, e.Code = hostapi.EventType(first(string(e.Type), maxID)), hostapi.EventCode(first(string(e.Code), maxID))
		e.Message = first(e.Message, maxMessage)
		if len(e.Metadata) > maxMeta || !json.Valid(e.Metadata) {
			e.Metadata = nil
		}
		if e.Time.After(latest) {
			e.Time = latest
		}
	}
}

func first(s string, n int) string { return s[:min(n, len(s))] }

// KeepPruned removes old events every hour until ctx ends.
func (i *Intake) KeepPruned(ctx context.Context) {
	tick := time.NewTicker(pruneInterval)
	defer tick.Stop()
	for {
		n, err := i.Store.Prune(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			i.Log.WarnContext(ctx, "old events were not removed", "error", err)
		case n > 0:
			i.Log.InfoContext(ctx, "old events were removed", "events", n)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the caller may be gone
}
