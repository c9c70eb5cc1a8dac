package edge

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/peer"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/timescale"
)

// What replicas tell and ask the leader, below peer.PathApps:
//
//	POST activity  activityReport → 204
//	POST {id}/wake {} → 204 once the app runs
//
// What the leader asks any replica there:
//
//	POST {id}/traffic traffic.Question → traffic.Report
//
// What each replica asks every other:
//
//	POST hours {} → traffic.Counted
const (
	pathActivity = peer.PathApps + "activity"
	pathWake     = peer.PathApps + "{id}/wake"
	pathTraffic  = peer.PathApps + "{id}/traffic"
	pathHours    = peer.PathApps + "hours"
)

const (
	reportEvery = 2 * time.Second
	// maxReport is how many apps without an open request one report has. Those with one
	// are no more than the replica's connections and their streams.
	maxReport = 2000
	// maxReportBytes is the size of the largest report: an app takes some 150 bytes
	// and 40 for each of its sandboxes.
	maxReportBytes = 16 << 20
)

var reportLimit = timescale.Limit(5 * time.Second)

type activityReport struct {
	Apps []Activity `json:"apps"`
}

// leadership is one term of one leader. What another has heard is not known in it.
type leadership struct {
	id   string
	term uint64
}

// Run reports to the leader what this replica has seen of apps, until ctx ends.
func (e *Edge) Run(ctx context.Context) {
	if e.apps == nil {
		return
	}
	ticker := time.NewTicker(e.apps.cfg.ReportEvery)
	defer ticker.Stop()
	var told leadership
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := leadership{term: e.apps.cfg.Term()}
		now.id, _ = e.apps.cfg.Leader()
		if now.id == "" {
			continue
		}
		if err := e.report(ctx, now != told); err != nil {
			e.cfg.Log.DebugContext(ctx, "activity of apps was not reported", "leader", now.id, "error", err)
			told = leadership{} // part of it may have arrived
			continue
		}
		told = now
	}
}

func (e *Edge) report(ctx context.Context, newLeader bool) error {
	ctx, cancel := context.WithTimeout(ctx, reportLimit)
	defer cancel()
	seen := e.apps.ledger.report(newLeader, maxReport)
	if len(seen) == 0 {
		return nil
	}
	if e.cfg.Leading() {
		e.apps.cfg.Heard(e.apps.cfg.Self, seen)
	} else if err := peer.AskLeader(ctx, e.apps.cfg.Transport, e.apps.cfg.Leader, pathActivity, activityReport{seen}); err != nil {
		return err
	}
	e.apps.ledger.told(seen)
	return nil
}

// wake has the leader wake an app, whichever replica that is.
func (e *Edge) wake(ctx context.Context, id string) error {
	err := e.awake(ctx, id)
	if err != nil {
		e.metrics.wakes.WithLabelValues("error").Inc()
		return err
	}
	e.metrics.wakes.WithLabelValues("ok").Inc()
	e.apps.book.Woken(id)
	return nil
}

func (e *Edge) awake(ctx context.Context, id string) error {
	if e.cfg.Leading() {
		return e.apps.cfg.Awake(ctx, id)
	}
	return peer.AskLeader(ctx, e.apps.cfg.Transport, e.apps.cfg.Leader, peer.PathApps+url.PathEscape(id)+"/wake", struct{}{})
}

// ServePeer answers another replica.
func (e *Edge) ServePeer(w http.ResponseWriter, r *http.Request, replica string) {
	mux := http.NewServeMux()
	if e.apps != nil {
		mux.HandleFunc("POST "+pathHours, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(e.hoursHere()) // the asker may be gone
		})
		mux.HandleFunc("POST "+pathActivity, func(w http.ResponseWriter, r *http.Request) { e.serveActivity(w, r, replica) })
		mux.HandleFunc("POST "+pathWake, e.serveWake)
		mux.HandleFunc("POST "+pathTraffic, e.serveTraffic)
	}
	mux.ServeHTTP(w, r)
}

func (e *Edge) serveActivity(w http.ResponseWriter, r *http.Request, replica string) {
	var in activityReport
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxReportBytes)).Decode(&in)
	if err != nil || slices.ContainsFunc(in.Apps, impossible) {
		peer.Refuse(w, apierror.Invalid("invalid json", "a report of activity"))
		return
	}
	if !e.cfg.Leading() {
		peer.Refuse(w, peer.ErrNotLeading)
		return
	}
	e.apps.cfg.Heard(replica, in.Apps)
	w.WriteHeader(http.StatusNoContent)
}

// impossible reports whether no ledger can have said this.
func impossible(a Activity) bool {
	for _, n := range a.Open {
		if n < 1 {
			return true
		}
	}
	return a.AppID == ""
}

func (e *Edge) serveWake(w http.ResponseWriter, r *http.Request) {
	if !e.cfg.Leading() {
		peer.Refuse(w, peer.ErrNotLeading)
		return
	}
	ctx := hostapi.WithRequestID(r.Context(), r.Header.Get(hostapi.HeaderRequestID))
	if err := e.apps.cfg.Awake(ctx, r.PathValue("id")); err != nil {
		if apierror.CodeOf(err) == apierror.EInternal && r.Context().Err() == nil {
			e.cfg.Log.ErrorContext(ctx, "app not woken", "app_id", r.PathValue("id"), "error", err)
		}
		peer.Refuse(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
