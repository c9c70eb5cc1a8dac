package database

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// cloneSuffix is appended to the source's label to make a clone's.
const cloneSuffix = " (clone)"

// Clone begins to create a database with the present or former data of another one, and
// returns at once. The source stays as it is.
func (s *Databases) Clone(ctx context.Context, c core.Caller, id string, in api.CloneDatabase, i core.Idempotency) (api.Database, error) {
	if err := c.RequireWorkspace(); err != nil {
		return api.Database{}, err
	}
	// A repeated key gets its earlier clone, even if the source has been deleted since.
	return core.Once(ctx, s.core, c, "POST /v1/databases/"+id+"/clone", i, s.replay(c), func(keyID string) (api.Database, error) {
		return s.clone(ctx, c, id, in, "", i, keyID)
	})
}

// clone begins a clone. previewID is the app preview that the clone is for, or "".
func (s *Databases) clone(ctx context.Context, c core.Caller, id string, in api.CloneDatabase, previewID string, i core.Idempotency, keyID string) (api.Database, error) {
	view, from, err := s.find(ctx, c, id)
	if err != nil {
		return api.Database{}, err
	}
	if err := validate(in.Label, in.Size); err != nil {
		return api.Database{}, err
	}
	if s.singleNode() {
		return api.Database{}, errSingleNode
	}
	at, err := s.targetTime(in.TargetTime)
	if err != nil {
		return api.Database{}, err
	}
	var found origin
	if at == nil {
		found, err = s.latest(ctx, view, from)
	} else {
		found, err = s.flows.origin(ctx, from, at)
	}
	switch {
	case errors.Is(err, errBeyond):
		return api.Database{}, &apierror.Error{
			Code: apierror.EInvalid, Message: fmt.Sprintf("target_time is beyond the last archived WAL (%s) of the source", api.Time{Time: found.end}),
		}
	case errors.Is(err, errNoBucket):
		return api.Database{}, core.ErrNoHost.With(errNoBucket.Error(), err)
	case err != nil:
		return api.Database{}, hostRefusal(err)
	}
	d := &record.Database{
		Label: in.Label, Size: string(core.OrZero(in.Size)), ClonedFrom: from.ID, TargetTime: at, PreviewID: previewID,
	}
	if d.Label == "" && from.Label != "" {
		d.Label = inherited(from.Label)
	}
	if d.Size == "" {
		d.Size = from.Size
	}
	standing := s.standing(view, from)
	status, _ := standing.status()
	data := provision{
		Source: &source{DatabaseID: from.ID, Archive: found.archive, TargetTime: at},
		Switch: at == nil && (status == api.DatabaseRunning || arriving(view, standing.box)),
	}
	if at == nil && d.Size == from.Size { // a copied disk keeps its size and its build
		data.Copy = s.flows.copyOf(ctx, view, from)
	}
	if at == nil && data.Copy == nil {
		if err := found.whole(); err != nil {
			return api.Database{}, err
		}
		if s.lacking(from, status, data.Switch) {
			data.Hint = lackHint(found.info.LastLSN, found.end)
			d.Error = data.Hint
		}
	}
	return s.begin(ctx, c, d, data, s.cfg.RestoreDeadline, i, keyID, func(tx *raftstore.Tx) error {
		now, err := Owned(tx, c, id)
		if err != nil {
			return err
		}
		if previewID != "" {
			if err := takePreview(tx, c.WorkspaceID, id, previewID); err != nil {
				return err
			}
		}
		return stillThere(now, found.archive)
	})
}

// lacking reports whether a clone of the latest from an archive may lack what its source
// wrote: the source has failed, so that what it wrote last is not known, or runs and its
// archive does not go on.
func (s *Databases) lacking(from *record.Database, status api.DatabaseStatus, runs bool) bool {
	fact, _ := s.heard.fact(from.ID, from.SandboxID)
	return status == api.DatabaseFailed || runs && !fact.state.Archive.FailingSince.IsZero()
}

// lackHint says from when on a clone may lack what its source wrote.
func lackHint(lsn string, end time.Time) string {
	return fmt.Sprintf("it is restored from its source's archive, which ends at LSN %s, %s; what its source wrote after that may be missing", lsn, api.Time{Time: end})
}

// inherited returns the label of a clone that was given none: the source's label, cut to
// leave room for the suffix.
func inherited(label string) string {
	r := []rune(label)
	return string(r[:min(len(r), maxLabel-len(cloneSuffix))]) + cloneSuffix
}

// targetTime parses and checks the moment of a clone; nil means the latest.
func (s *Databases) targetTime(raw *string) (*time.Time, error) {
	if raw == nil {
		return nil, nil
	}
	at, err := time.Parse(time.RFC3339, *raw)
	if err != nil {
		return nil, &apierror.Error{Code: apierror.EInvalid, Message: "invalid target_time (want RFC3339, such as 2026-11-20T13:05:09Z)"}
	}
	at = at.UTC().Truncate(time.Microsecond) // PostgreSQL's precision
	if now := s.core.Clock(); at.After(now.Add(-*s.cfg.TargetTimeAge)) {
		return nil, &apierror.Error{
			Code: apierror.EInvalid, Message: fmt.Sprintf("target_time must be at least %s in the past (it is now %s)", inWords(*s.cfg.TargetTimeAge), api.Time{Time: now}),
		}
	}
	if now := s.core.Clock(); at.Before(now.Add(-s.cfg.Retention)) { // pruning may remove it at any time
		return nil, errNoArchive.With(fmt.Sprintf("nothing is kept from more than %s ago", inWords(s.cfg.Retention)), nil)
	}
	return &at, nil
}

// inWords formats a duration for use in a sentence.
func inWords(d time.Duration) string {
	unit, n := "seconds", int(d/time.Second)
	for _, larger := range []struct {
		unit string
		of   int
	}{{"minutes", 60}, {"hours", 60}, {"days", 24}} {
		if n < larger.of || n%larger.of != 0 {
			break
		}
		unit, n = larger.unit, n/larger.of
	}
	if n == 1 {
		unit = unit[:len(unit)-1]
	}
	return fmt.Sprintf("%d %s", n, unit)
}

// switchTimeout is how long a running database may take to archive its latest WAL.
var switchTimeout = timescale.Limit(30 * time.Second)

// switchWAL makes a running source archive everything it has written, because only
// archived data is restored. If the host fails to, the flow goes on with what is
// archived, and a clone says so.
func (f *Flows) switchWAL(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data provision
	_, ok, err := step(run, &data)
	if err != nil || !ok {
		return resource.Finish, err
	}
	next := stepTemplate
	if run.Flow.Kind == KindFailover {
		next = stepFence
	}
	from, _ := raftstore.Get(run.View, record.Databases, data.Source.DatabaseID)
	if from == nil {
		return going(flow.Goto(next, data)), nil
	}
	box, ok := raftstore.Get(run.View, record.Sandboxes, from.SandboxID)
	if ok && arriving(run.View, box) {
		return going(flow.Wait(stepSwitch, time.Second, data, record.Sandboxes.Name)), nil
	}
	if ok && box.Status == record.SandboxRunning {
		sctx, cancel := context.WithTimeout(ctx, switchTimeout)
		defer cancel()
		err := f.call(sctx, data.RequestID, box, func(ctx context.Context, c *hosts.Client) error {
			_, err := c.SwitchWAL(ctx, box.ID)
			return err
		})
		switch {
		case err != nil && hosts.Superseded(ctx, err):
			return nil, err
		case err != nil:
			f.Logger.InfoContext(ctx, "database did not archive its latest WAL, what is archived is restored", "database_id", from.ID, "error", err)
		}
		if run.Flow.Kind == KindCreate {
			data.Hint = ""
			if a := from.Archive(); err != nil && a != nil {
				lsn, end := a.LastLSN, a.LastRestorable
				if fact, ok := f.heard.fact(from.ID, box.ID); ok {
					lsn, end = fact.state.Archive.LastLSN, fact.state.Archive.LastRestorable
				}
				data.Hint = lackHint(lsn, end)
			}
		}
	}
	return going(flow.Goto(next, data)), nil
}
