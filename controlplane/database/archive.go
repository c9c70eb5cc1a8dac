package database

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

var errNoArchive = &apierror.Error{Code: apierror.ENoArchive, Message: "no restorable archive"}

// origin is where a restore starts.
type origin struct {
	archive string // the archive's name
	info    hostapi.ArchiveInfo
	end     time.Time // the last moment that is archived
}

// origin finds the archive from which a database can be restored to a moment; nil means
// the latest. It tries the latest incarnation first. It fails with errNoArchive, with
// errBeyond, or with a host's error.
func (f *Flows) origin(ctx context.Context, d *record.Database, at *time.Time) (origin, error) {
	limit := f.cfg.OriginTimeout
	ctx, cancel := asking(ctx, limit)
	defer cancel()
	var newest origin
	first := time.Time{}
	for i := len(d.Archives) - 1; i >= 0; i-- {
		a := &d.Archives[i]
		if a.Removing {
			continue
		}
		info, err := f.info(ctx, a, limit)
		if err != nil {
			return origin{}, err
		}
		if info.FirstRestorable.IsZero() {
			continue
		}
		o := origin{archive: a.Name, info: info, end: info.LastRestorable}
		if fact, ok := f.heard.fact(d.ID, d.SandboxID); ok && i == len(d.Archives)-1 && fact.state.Archive.LastRestorable.After(o.end) {
			o.end = fact.state.Archive.LastRestorable // nothing was written since: the host's end advances, the bucket's does not
		}
		switch {
		case at == nil:
			return o, nil
		case newest.archive == "" && at.After(o.end):
			return o, errBeyond
		case !at.Before(info.FirstRestorable) && !at.After(o.end):
			return o, nil
		case slices.ContainsFunc(info.Earlier, func(w hostapi.Window) bool { return !at.Before(w.First) && !at.After(w.Last) }):
			return o, nil
		}
		if newest.archive == "" {
			newest = o
		}
		if first = info.FirstRestorable; len(info.Earlier) > 0 {
			first = info.Earlier[0].First
		}
	}
	if first.IsZero() {
		return origin{}, errNoArchive.With("the first base backup is yet to be made", nil)
	}
	return origin{}, errNoArchive.With("nothing of that moment is archived; the first that can be restored is "+api.Time{Time: first}.String(), nil)
}

// latest returns the origin of a restore to the latest archived state. While a database
// is alive, only its current archive has the writes since its last failover. An earlier
// archive would pass for the latest state and lack them, so latest refuses it.
func (s *Databases) latest(ctx context.Context, r raftstore.Reader, d *record.Database) (origin, error) {
	found, err := s.flows.origin(ctx, d, nil)
	if err != nil || found.archive == d.Archive().Name {
		return found, err
	}
	switch status, _ := s.standing(r, d).status(); status {
	case api.DatabaseRunning, api.DatabaseHibernated, api.DatabaseWaking:
		return origin{}, errNoArchive.With("the first base backup since its failover is yet to be made; a clone at a target_time of before can be", nil)
	}
	return found, nil
}

// whole refuses a restore to the end of an archive that lacks something before it: the
// database would be stopped, or a clone begun, for a restore that its host refuses.
func (o *origin) whole() error {
	if !o.info.EndLost {
		return nil
	}
	return &apierror.Error{
		Code: apierror.EUnprocessable, Message: "archive is damaged", Detail: o.info.Damage + "; a clone at a target_time of before can be, and all again after the next base backup",
	}
}

// stillThere refuses a restore if the removal of its archive has begun since the archive
// was found.
func stillThere(d *record.Database, archive string) error {
	for i := range d.Archives {
		if a := &d.Archives[i]; a.Name == archive && !a.Removing {
			return nil
		}
	}
	return errNoArchive.With("the archive of that moment is being removed: it is older than all that is kept", nil)
}

// errBeyond means that a moment is later than everything in the archive.
var errBeyond = errors.New("beyond the last archived WAL")

// restorable returns the latest archive that a database can be restored from, judging by
// its row alone.
func restorable(d *record.Database) (*record.DatabaseArchive, bool) {
	for i := len(d.Archives) - 1; i >= 0; i-- {
		if a := &d.Archives[i]; !a.FirstRestorable.IsZero() && !a.Removing {
			return a, true
		}
	}
	return nil, false
}

// errStale is the error shown with an archive whose facts are as a host last reported
// them.
var errStale = errNoBucket.Error() + ": this is what was told last"

// Archive returns what a database can be restored from. If no host that reaches the
// bucket answers, it returns what a host last reported, and the answer says so.
func (s *Databases) Archive(ctx context.Context, c core.Caller, id string) (api.DatabaseArchive, error) {
	view, d, err := s.find(ctx, c, id)
	if err != nil {
		return api.DatabaseArchive{}, err
	}
	out := api.DatabaseArchive{BaseBackups: []api.DatabaseBaseBackup{}}
	var last hostapi.ArchiveInfo
	asking, cancel := asking(ctx, s.cfg.BucketTimeout)
	defer cancel()
	away := false // no host answers, so do not ask about the other archives
	for i := range d.Archives {
		a := &d.Archives[i]
		if a.Removing {
			continue
		}
		info := hostapi.ArchiveInfo{FirstRestorable: a.FirstRestorable, LastRestorable: a.LastRestorable, LastLSN: a.LastLSN}
		if !away {
			found, err := s.flows.info(asking, a, s.cfg.BucketTimeout)
			switch {
			case err == nil:
				info = found
			case errors.Is(err, errNoBucket):
				s.core.Logger.WarnContext(ctx, "archive is shown as it was told last", "database_id", d.ID, "archive", a.Name, "error", err)
				away, out.Error = true, &errStale
			default:
				return out, hostRefusal(err)
			}
		}
		for _, b := range info.BaseBackups {
			out.BaseBackups = append(out.BaseBackups, api.DatabaseBaseBackup{ID: b.ID, StartedAt: api.Time{Time: b.StartedAt}, SizeBytes: b.SizeBytes})
		}
		out.SizeBytes += info.SizeBytes
		if info.Damage != "" {
			out.Error = &info.Damage
		}
		if out.FirstRestorable == nil {
			out.FirstRestorable = api.NewTime(info.FirstRestorable)
		}
		if !info.LastRestorable.IsZero() || info.LastLSN != "" {
			if info.LastRestorable.IsZero() { // until its first base backup, what can be restored is in the earlier ones
				info.LastRestorable = last.LastRestorable
			}
			last = info
		}
	}
	fact, ok := s.heard.fact(d.ID, d.SandboxID)
	if ok {
		st := fact.state.Archive
		if st.LastRestorable.After(last.LastRestorable) && !last.LastRestorable.IsZero() {
			last.LastRestorable = st.LastRestorable
		}
		if st.LastLSN != "" {
			last.LastLSN = st.LastLSN
		}
		out.FailingSince = api.NewTime(st.FailingSince)
		if why := cmp.Or(st.Error, notBackedUp(st)); why != "" {
			out.Error = &why
		}
	}
	standing := s.standing(view, d)
	status, _ := standing.status()
	// One of a paused workspace may sleep with what it could not archive, and one that moves.
	box := standing.box
	asleep := box != nil && box.Status == record.SandboxHibernated && box.Move == nil && !standing.paused
	out.LagSeconds = lagSeconds(status, asleep, fact, last.LastRestorable, s.core.Clock())
	// The base backup that is kept for the oldest moment is older than that. A minute later a
	// clone as of the moment that is told is not refused yet.
	if kept := s.core.Clock().Add(time.Minute - s.cfg.Retention); out.FirstRestorable != nil && out.FirstRestorable.Before(kept) && last.LastRestorable.After(kept) {
		out.FirstRestorable = api.NewTime(kept)
	}
	out.LastRestorable, out.LastArchivedLSN = api.NewTime(last.LastRestorable), core.OrNull(last.LastLSN)
	return out, nil
}

// lagSeconds returns for how many seconds a database may have written what is not
// archived, by its host's last report and by its archive. asleep: it sleeps with all archived.
func lagSeconds(status api.DatabaseStatus, asleep bool, last fact, restorable, now time.Time) float64 {
	known := !last.state.Archive.LastAt.IsZero()
	lag := last.state.Archive.LagSeconds
	switch {
	case asleep:
		return 0
	case known && status == api.DatabaseRunning: // it may have written since
		return lag + max(0, now.Sub(last.at).Seconds())
	case known:
		return lag
	case !restorable.IsZero():
		return max(0, now.Sub(restorable).Seconds())
	}
	return 0
}
