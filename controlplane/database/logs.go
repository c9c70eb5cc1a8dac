package database

import (
	"context"
	"io"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// Logs returns the existing lines of a database's log as text.
func (s *Databases) Logs(ctx context.Context, c core.Caller, id string, tail int) (io.ReadCloser, error) {
	box, err := s.logged(ctx, c, id)
	if err != nil {
		return nil, err
	}
	return s.cfg.Sandboxes.Logs.Text(ctx, c, box, api.LogQuery{Stream: logStream, Tail: tail})
}

// FollowLogs returns the existing lines of a database's log, then new ones as they come.
func (s *Databases) FollowLogs(ctx context.Context, c core.Caller, id string, tail int) (core.Follower[sandbox.LogLine], error) {
	box, err := s.logged(ctx, c, id)
	if err != nil {
		return nil, err
	}
	return s.cfg.Sandboxes.Logs.Follow(ctx, c, box, api.LogQuery{Stream: logStream, Tail: tail})
}

// logStream selects both streams of the sandbox's log, because PostgreSQL writes to both.
const logStream = "both"

// logged returns the id of the sandbox whose log is the database's. It fails if there is
// no log to read. Reading a log never wakes a database.
func (s *Databases) logged(ctx context.Context, c core.Caller, id string) (string, error) {
	view, d, err := s.find(ctx, c, id)
	if err != nil {
		return "", err
	}
	status, hint := s.standing(view, d).status()
	if status == api.DatabaseHibernated {
		return "", notNow(status, "its log is in its virtual machine: wake it first")
	}
	if d.SandboxID == "" {
		return "", notNow(status, hint)
	}
	return d.SandboxID, nil
}
