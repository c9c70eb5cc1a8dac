package pgsni

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Cancel carries a cancel request to the server of the session that has the key,
// and returns when the server has taken note of it. false says that no session of
// this router has the key: one to ask for another router, that a client's cancel
// request reached by chance.
func (r *Router) Cancel(ctx context.Context, key CancelKey) bool {
	t, ok := r.keys.find(key)
	if !ok {
		return false
	}
	if err := cancelAt(ctx, t); err != nil {
		r.cfg.Log.Warn("cancel request not delivered", "error", err)
	}
	return true
}

// cancelAt sends a server its key back and waits for the close that says that
// the signal was sent (manual, "Canceling Requests in Progress").
func cancelAt(ctx context.Context, t target) error {
	server, err := t.backend.Dial(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	defer context.AfterFunc(ctx, func() { _ = server.SetDeadline(past) })()
	out, err := encode(&pgproto3.CancelRequest{ProcessID: t.real.PID, SecretKey: t.real.Secret})
	if err != nil {
		return err
	}
	if _, err := server.Write(out); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if _, err := io.Copy(io.Discard, server); err != nil {
		return fmt.Errorf("await the close: %w", err)
	}
	return nil
}

// cancelRequest serves a client's cancel request. The client learns nothing from
// it, as with PostgreSQL, but that it is over.
func (c *conn) cancelRequest(key CancelKey) {
	r := c.router
	_ = c.wire.SetDeadline(time.Time{})
	ctx, cancel := context.WithTimeout(r.life, r.cfg.CancelTimeout)
	defer cancel()
	if !r.Cancel(ctx, key) && r.cfg.CancelElsewhere != nil {
		r.cfg.CancelElsewhere(ctx, key)
	}
	c.hangUp()
}
