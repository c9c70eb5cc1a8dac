package stats

import (
	"context"
	"log/slog"
	"time"

	"github.com/berth-cloud/berth/controlplane/eventstore"
	"github.com/berth-cloud/berth/controlplane/traffic"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// RequestNotes is where a RequestRecorder writes.
type RequestNotes interface {
	NoteRequests(ctx context.Context, all []eventstore.Requested) error
}

// RequestRecorder writes what all replicas have counted of requests to apps into the event
// store of this one. Replicas keep it for an hour after the one in which it was counted:
// what a replica that is away for longer does not read is in the stores of the others.
type RequestRecorder struct {
	View  func() *raftstore.Snapshot
	Hours func(ctx context.Context) (counted []traffic.Counted, missing []string)
	Notes RequestNotes
	Log   *slog.Logger
	Every time.Duration // between two looks; default a minute

	told map[hourKey]int64 // how many requests were told of
}

type hourKey struct {
	replica, epoch, appID string
	at                    int64
}

// Run looks once in a while until ctx ends.
func (r *RequestRecorder) Run(ctx context.Context) {
	if r.Every == 0 {
		r.Every = time.Minute
	}
	tick := time.NewTicker(r.Every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := r.look(ctx); err != nil && ctx.Err() == nil {
			r.Log.WarnContext(ctx, "the event store was not told of requests to apps", "error", err)
		}
	}
}

// look tells what has grown since it was told.
func (r *RequestRecorder) look(ctx context.Context) error {
	view := r.View()
	counted, _ := r.Hours(ctx) // who does not answer is asked again
	told := map[hourKey]int64{}
	var news []eventstore.Requested
	for _, c := range counted {
		for _, h := range c.Hours {
			a, ok := raftstore.Get(view, record.Apps, h.AppID)
			if !ok {
				continue
			}
			k, total := hourKey{c.Replica, c.Epoch, h.AppID, h.At}, int64(0)
			for _, n := range h.Statuses {
				total += n
			}
			told[k] = total
			if r.told[k] != total {
				news = append(news, eventstore.Requested{
					Replica: c.Replica, Epoch: c.Epoch, AppID: h.AppID, WorkspaceID: a.WorkspaceID, Hour: time.Unix(h.At, 0), Counts: h.Counts,
				})
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, noteTimeout)
	defer cancel()
	for len(news) > 0 {
		part := news[:min(len(news), maxNotes)]
		if err := r.Notes.NoteRequests(ctx, part); err != nil {
			return err
		}
		news = news[len(part):]
	}
	r.told = told
	return nil
}
