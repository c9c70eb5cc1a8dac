package database

import (
	"errors"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
)

func TestWhatADatabaseIsShownAs(t *testing.T) {
	some := &record.DatabaseCredentials{}
	row := func(s record.DatabaseStatus, c *record.DatabaseCredentials, why string) *record.Database {
		return &record.Database{Status: s, Credentials: c, Error: why}
	}
	box := func(s record.SandboxStatus, why string) *record.Sandbox {
		return &record.Sandbox{Status: s, Error: why}
	}
	ready := row(record.DatabaseReady, some, "")
	for name, c := range map[string]struct {
		in   standing
		want api.DatabaseStatus
		hint string
	}{
		"being made":                  {standing{row: row(record.DatabaseProvisioning, nil, "PostgreSQL is starting")}, api.DatabaseProvisioning, "PostgreSQL is starting"},
		"being made, and its box up":  {standing{row: row(record.DatabaseProvisioning, nil, ""), box: box(record.SandboxRunning, "")}, api.DatabaseProvisioning, ""},
		"running":                     {standing{row: ready, box: box(record.SandboxRunning, ""), hostUp: true}, api.DatabaseRunning, ""},
		"running, and not serving":    {standing{row: ready, box: box(record.SandboxRunning, ""), hostUp: true, unwell: "PostgreSQL does not serve: why"}, api.DatabaseRunning, "PostgreSQL does not serve: why"},
		"asleep, and did not serve":   {standing{row: ready, box: box(record.SandboxHibernated, ""), hostUp: true, unwell: "PostgreSQL does not serve: why"}, api.DatabaseHibernated, ""},
		"running without credentials": {standing{row: row(record.DatabaseReady, nil, ""), box: box(record.SandboxRunning, ""), hostUp: true}, api.DatabaseProvisioning, errNoCredentials},
		"asleep":                      {standing{row: ready, box: box(record.SandboxHibernated, ""), hostUp: true}, api.DatabaseHibernated, ""},
		"asleep, and not woken":       {standing{row: ready, box: box(record.SandboxHibernated, ""), hostUp: true, trouble: "no room"}, api.DatabaseHibernated, "no room"},
		"asleep, and being woken":     {standing{row: ready, box: box(record.SandboxHibernated, ""), hostUp: true, waking: true}, api.DatabaseWaking, ""},
		"woken for long":              {standing{row: ready, box: box(record.SandboxHibernated, ""), hostUp: true, waking: true, since: 12 * time.Second}, api.DatabaseWaking, "its host has been waking it for 12 seconds"},
		"woken again":                 {standing{row: ready, box: box(record.SandboxHibernated, ""), hostUp: true, waking: true, trouble: "no room"}, api.DatabaseWaking, "it is tried again, for it could not be woken: no room"},
		"woken while it moves": {
			standing{row: ready, box: &record.Sandbox{Status: record.SandboxHibernated, Move: &record.Move{}}, hostUp: true, waking: true}, api.DatabaseWaking,
			"it is moving to another host, and wakes there",
		},
		"paused by its host":      {standing{row: ready, box: box(record.SandboxPaused, ""), hostUp: true}, api.DatabaseHibernated, ""},
		"its VM ended":            {standing{row: ready, box: box(record.SandboxFailed, "killed"), hostUp: true}, api.DatabaseWaking, "it is started again: killed"},
		"its VM ended in a pause": {standing{row: ready, box: box(record.SandboxFailed, "killed"), hostUp: true, paused: true}, api.DatabaseHibernated, "it is started again once its workspace goes on: killed"},
		"its VM was killed":       {standing{row: ready, box: box(record.SandboxFailed, "VMM died: killed by signal KILL"), hostUp: true}, api.DatabaseWaking, "it is started again: its virtual machine ended"},
		"its memory was refused": {
			standing{row: ready, box: box(record.SandboxFailed, "it did not go on from its saved memory: resume VM: open /run/berth/h1/x: no such file")}, api.DatabaseFailed,
			"it did not go on from its saved memory",
		},
		"it is booted": {
			standing{row: ready, box: box(record.SandboxRunning, ""), hostUp: true, boot: &boot{why: "it could not be booted again yet: start VMM: /usr/bin/x: not found"}}, api.DatabaseWaking,
			"it is booted from its disk, for its host was restarted: it could not be booted again yet",
		},
		"its host is lost":   {standing{row: ready, box: box(record.SandboxFailed, "its host is unreachable")}, api.DatabaseFailed, "its host is unreachable"},
		"without a box":      {standing{row: ready}, api.DatabaseFailed, errBoxGone},
		"with one that goes": {standing{row: ready, box: box(record.SandboxDeleting, "")}, api.DatabaseFailed, errBoxGone},
		"failed":             {standing{row: row(record.DatabaseFailed, some, "why"), box: box(record.SandboxFailed, ""), hostUp: true}, api.DatabaseFailed, "why"},
		"restoring":          {standing{row: row(record.DatabaseRestoring, some, "hint"), box: box(record.SandboxStarting, "")}, api.DatabaseRestoring, "hint"},
	} {
		if got, hint := c.in.status(); got != c.want || hint != c.hint {
			t.Errorf("%s: %s %q, want %s %q", name, got, hint, c.want, c.hint)
		}
	}
}

// What a host reports of PostgreSQL and of its archive is said of what runs, unless the report is from before
// it woke, or from before its host has asked.
func TestWhatIsSaidOfADatabaseThatRuns(t *testing.T) {
	const box, since = "box", 7
	stopped := time.Date(2026, 11, 20, 13, 5, 9, 0, time.UTC)
	for name, c := range map[string]struct {
		f    fact
		want string
	}{
		"it serves":                {fact{box, since, hostapi.DatabaseState{State: pgapi.StateReady, Ready: true, Volume: pgapi.VolumeStatus{Writes: pgapi.WritesOpen}}, time.Now()}, ""},
		"it has yet to be asked":   {fact{box, since, hostapi.DatabaseState{}, time.Now()}, ""},
		"it has yet to be tuned":   {fact{box, since, hostapi.DatabaseState{State: pgapi.StateReady}, time.Now()}, ""},
		"it starts":                {fact{box, since, hostapi.DatabaseState{State: pgapi.StateStarting}, time.Now()}, "PostgreSQL does not serve: it is starting"},
		"it ends again and again":  {fact{box, since + 1, hostapi.DatabaseState{State: pgapi.StateFailed, Error: "out of memory"}, time.Now()}, "PostgreSQL does not serve: out of memory"},
		"its guest is silent":      {fact{box, since, hostapi.DatabaseState{State: pgapi.StateReady, Error: hostapi.CauseMute}, time.Now()}, "PostgreSQL does not serve: " + hostapi.CauseMute},
		"it is fenced, and serves": {fact{box, since, hostapi.DatabaseState{State: pgapi.StateReady, Ready: true, Error: hostapi.ArchiveCauseFenced}, time.Now()}, ""},
		"writes are stopped": {
			fact{box, since, hostapi.DatabaseState{State: pgapi.StateRecovering, Volume: pgapi.VolumeStatus{Writes: pgapi.WritesStopped, Reason: "it is full"}}, time.Now()},
			"PostgreSQL serves reads alone: it is full",
		},
		"writes are limited": {
			fact{box, since, hostapi.DatabaseState{State: pgapi.StateReady, Ready: true, Volume: pgapi.VolumeStatus{Writes: pgapi.WritesLimited, Reason: "it is full"}}, time.Now()},
			"transactions are read-only unless they ask not to be: it is full",
		},
		"its archive fails": {
			fact{box, since, hostapi.DatabaseState{Ready: true, Archive: hostapi.ArchiveState{FailingSince: stopped, Error: hostapi.ArchiveCauseSilent, LagSeconds: 300}}, time.Now()},
			"its archive has not gone on since 2026-11-20T13:05:09.000Z: the archive's bucket does not answer",
		},
		"its archive fails, and fills the disk": {
			fact{box, since, hostapi.DatabaseState{
				Ready: true, Volume: pgapi.VolumeStatus{Writes: pgapi.WritesLimited, Reason: "it is full"}, Archive: hostapi.ArchiveState{FailingSince: stopped},
			}, time.Now()},
			"transactions are read-only unless they ask not to be: it is full; its archive has not gone on since 2026-11-20T13:05:09.000Z: " + hostapi.ArchiveCauseWaiting,
		},
		"its archive has just failed": {fact{box, since, hostapi.DatabaseState{Ready: true, Archive: hostapi.ArchiveState{FailingSince: time.Now(), LagSeconds: 30}}, time.Now()}, ""},
		"its archive trails":          {fact{box, since, hostapi.DatabaseState{Ready: true, Archive: hostapi.ArchiveState{LagSeconds: 121.4}}, time.Now()}, "its archive trails its writes by 121 seconds"},
		"its archive keeps up":        {fact{box, since, hostapi.DatabaseState{Ready: true, Archive: hostapi.ArchiveState{LagSeconds: 61}}, time.Now()}, ""},
		"no base backup can be made": {
			fact{box, since, hostapi.DatabaseState{Ready: true, Archive: hostapi.ArchiveState{BackupsFailingSince: stopped, BackupError: hostapi.ArchiveCauseUncopied}}, time.Now()},
			"no base backup of it could be made since 2026-11-20T13:05:09.000Z: " + hostapi.ArchiveCauseUncopied,
		},
		"its base backup has just failed": {
			fact{box, since, hostapi.DatabaseState{Ready: true, Archive: hostapi.ArchiveState{BackupsFailingSince: time.Now(), BackupError: hostapi.ArchiveCauseUncopied}}, time.Now()}, "",
		},
		"its archive failed before it woke": {
			fact{box, since - 1, hostapi.DatabaseState{Ready: true, Archive: hostapi.ArchiveState{FailingSince: stopped, LagSeconds: 300}}, time.Now()}, "",
		},
		"before it woke": {fact{box, since - 1, hostapi.DatabaseState{State: pgapi.StateFailed, Error: "out of memory"}, time.Now()}, ""},
		"another box":    {fact{"another", since, hostapi.DatabaseState{State: pgapi.StateFailed, Error: "out of memory"}, time.Now()}, ""},
	} {
		h := newHeard(time.Now)
		h.tell("d", c.f)
		if got := h.unwell("d", &record.Sandbox{Meta: record.Meta{ID: box}, HostSeq: since}, time.Minute); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// An owner sees a host's reason, but not the host's internal error text.
func TestAHostsOwnWordsAreItsOwn(t *testing.T) {
	for want, err := range map[string]error{
		"insufficient host disk space for sandbox": &hostapi.Error{Code: hostapi.CodeNoDisk, Message: "insufficient host disk space for sandbox", Detail: "write /var/lib/x: no space left"},
		"its host could not do it":                 &hostapi.Error{Code: hostapi.CodeInternal, Message: "internal error", Detail: "open /run/x"},
		"archive is damaged: pg/x/1/wal/2":         &hostapi.Error{Code: hostapi.CodeArchiveDamaged, Message: "archive is damaged", Detail: "pg/x/1/wal/2"},
		"the control plane could not do it":        errors.New("10.0.0.7: connection reset"),
	} {
		if got := reasonOf(err); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
