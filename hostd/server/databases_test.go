package server

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// databases note what they are asked, and fail as they are told.
type databases struct {
	err   error
	calls []string
}

func (d *databases) note(what string, args ...any) error {
	d.calls = append(d.calls, fmt.Sprintf(what, args...))
	return d.err
}

func (d *databases) Put(id string, s hostapi.DatabaseSpec) (hostapi.DatabaseState, error) {
	return hostapi.DatabaseState{State: "x"}, d.note("put %s %s %d", id, s.Archive.Name, s.ArchiveIntervalSeconds)
}

func (d *databases) Get(_ context.Context, id string) (hostapi.DatabaseState, error) {
	return hostapi.DatabaseState{Ready: true}, d.note("get %s", id)
}

func (d *databases) SetCredentials(_ context.Context, id string, c pgapi.Credentials) (pgapi.CredentialsApplied, error) {
	return pgapi.CredentialsApplied{Tenant: c.Tenant(), SessionsCut: 3}, d.note("credentials %s %s", id, c.Password)
}
func (d *databases) Backup(id string) error { return d.note("backup %s", id) }
func (d *databases) Switch(_ context.Context, id string) (hostapi.DatabaseState, error) {
	return hostapi.DatabaseState{}, d.note("switch %s", id)
}

func (d *databases) Sleep(_ context.Context, id string, s hostapi.DatabaseSleep) (hostapi.Box, error) {
	return hostapi.Box{ID: id}, d.note("sleep %s %d", id, s.IdleSeconds)
}

type archives struct{ *databases }

func (a archives) Info(_ context.Context, of hostapi.Archive) (hostapi.ArchiveInfo, error) {
	return hostapi.ArchiveInfo{LastLSN: "0/1"}, a.note("info %s %x", of.Name, of.Key)
}

func (a archives) Prune(_ context.Context, p hostapi.ArchivePrune) (hostapi.ArchiveInfo, error) {
	return hostapi.ArchiveInfo{LastLSN: "0/2"}, a.note("prune %s %s", p.Name, p.Before.Format(time.RFC3339))
}
func (a archives) Fence(_ context.Context, of hostapi.Archive) error {
	return a.note("fence %s", of.Name)
}
func (a archives) Delete(_ context.Context, of hostapi.Archive) error {
	return a.note("delete %s", of.Name)
}

func TestRoutesOfDatabases(t *testing.T) {
	f := serve(t, &boxes{}, "replica:r1")
	d := &databases{}
	f.server.cfg.Databases, f.server.cfg.Archives = d, archives{d}
	ctx := t.Context()
	archive := hostapi.Archive{Name: "db/1", Key: []byte{1, 2}}
	before := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for want, call := range map[string]func() (any, error){
		"put " + id + " db/1 60": func() (any, error) {
			return f.PutDatabase(ctx, id, hostapi.DatabaseSpec{Archive: archive, ArchiveIntervalSeconds: 60})
		},
		"get " + id: func() (any, error) { return f.GetDatabase(ctx, id) },
		"credentials " + id + " pw": func() (any, error) {
			return f.SetCredentials(ctx, id, pgapi.Credentials{Username: "app", Password: "pw"})
		},
		"backup " + id:         func() (any, error) { return nil, f.StartBackup(ctx, id) },
		"switch " + id:         func() (any, error) { return f.SwitchWAL(ctx, id) },
		"sleep " + id + " 900": func() (any, error) { return f.SleepDatabase(ctx, id, hostapi.DatabaseSleep{IdleSeconds: 900}) },
		"info db/1 0102":       func() (any, error) { return f.ArchiveInfo(ctx, archive) },
		"prune db/1 2026-01-02T03:04:05Z": func() (any, error) {
			return f.PruneArchive(ctx, hostapi.ArchivePrune{Archive: archive, Before: before})
		},
		"fence db/1":  func() (any, error) { return nil, f.FenceArchive(ctx, archive) },
		"delete db/1": func() (any, error) { return nil, f.DeleteArchive(ctx, archive) },
	} {
		d.calls, d.err = nil, nil
		if _, err := call(); err != nil || len(d.calls) != 1 || d.calls[0] != want {
			t.Errorf("%s: %v, calls %q", want, err, d.calls)
		}
		for cause, code := range map[error]hostapi.Code{
			hosterr.ErrDatabaseBusy: hostapi.CodeDatabaseBusy, hosterr.ErrDatabaseUnready: hostapi.CodeNotReady, hosterr.ErrNotVerified: hostapi.CodeNotVerified,
			hosterr.ErrNoArchive: hostapi.CodeNoArchive, hosterr.ErrArchiveDamaged: hostapi.CodeArchiveDamaged, hosterr.ErrArchiveFenced: hostapi.CodeArchiveFenced,
		} {
			d.err = fmt.Errorf("%w: because", cause)
			if _, err := call(); !hostapi.HasCode(err, code) && !(err == nil && want == "delete db/1" && code == hostapi.CodeNoArchive) {
				t.Errorf("%s: %v, want the code %s", want, err, code)
			}
		}
	}
	// A deposed leader changes nothing; who only asks needs no term.
	d.calls, d.err = nil, nil
	stale := f.Bind(hostapi.Binding{Term: 1})
	for what, err := range map[string]error{
		"put":    second(stale.PutDatabase(ctx, id, hostapi.DatabaseSpec{})),
		"backup": stale.StartBackup(ctx, id),
		"sleep":  second(stale.SleepDatabase(ctx, id, hostapi.DatabaseSleep{})),
		"prune":  second(stale.PruneArchive(ctx, hostapi.ArchivePrune{})),
		"fence":  stale.FenceArchive(ctx, archive),
		"delete": stale.DeleteArchive(ctx, archive),
	} {
		if !hostapi.HasCode(err, hostapi.CodeStaleTerm) {
			t.Errorf("%s: %v, want a stale term", what, err)
		}
	}
	if len(d.calls) != 0 {
		t.Errorf("calls = %q", d.calls)
	}
	_, err := f.Bind(hostapi.Binding{}).ArchiveInfo(ctx, archive)
	must(t, err)

	f.server.cfg.Databases, f.server.cfg.Archives = nil, nil
	for what, err := range map[string]error{
		"put": second(f.PutDatabase(ctx, id, hostapi.DatabaseSpec{})), "info": second(f.ArchiveInfo(ctx, archive)),
	} {
		if !hostapi.HasCode(err, hostapi.CodeNoStore) {
			t.Errorf("%s without a store: %v", what, err)
		}
	}
	if _, err := f.GetDatabase(ctx, "no-id"); !hostapi.HasCode(err, hostapi.CodeInvalid) {
		t.Errorf("an id that is none: %v", err)
	}
}
