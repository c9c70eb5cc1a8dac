package pgedge

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/netfab/pgsni"
	"github.com/berth-cloud/berth/telemetry"
)

// resolver gives pgsni the table of databases. A database's name is its id.
type resolver struct {
	reach   *Reach
	metrics *metrics
}

// Resolve implements pgsni.Resolver. It wakes nothing, because a wrong password must not
// wake a database. It waits in the same way whether or not the database exists.
func (r *resolver) Resolve(ctx context.Context, name string) (pgsni.Backend, error) {
	login := telemetry.Current(ctx)
	ctx, span := telemetry.Start(ctx, "pg.lookup")
	r.reach.catchUp(ctx, name)
	e, ok := r.reach.lookup(name)
	span.End(nil)
	if !ok || !e.known() {
		return nil, pgsni.ErrUnknown // of the name nothing is said: a stranger made it up
	}
	login.SetDatabase(name)
	login.SetBool(telemetry.KeyWoken, false)
	return &backend{resolver: r, id: name, workspace: e.WorkspaceID}, nil
}

// backend is one database.
type backend struct {
	*resolver
	id        string
	workspace string
}

// Owner implements pgsni.Owned.
func (b *backend) Owner() string { return b.workspace }

// Verifier implements pgsni.Verifying.
func (b *backend) Verifier(_ context.Context, user string) (*pgsni.Verifier, error) {
	e, ok := b.reach.lookup(b.id)
	if !ok || !e.known() || user != e.User {
		return nil, pgsni.ErrUnknown
	}
	return pgsni.ParseVerifier(e.Verifier)
}

// Dial implements pgsni.Backend.
func (b *backend) Dial(ctx context.Context) (net.Conn, error) {
	began := time.Now()
	conn, woken, err := b.reach.dial(ctx, b.id, pgapi.PostgresPort)
	b.metrics.dialled(woken, err, time.Since(began))
	if woken {
		telemetry.Current(ctx).SetBool(telemetry.KeyWoken, true)
	}
	if err != nil {
		return nil, refusal(err)
	}
	return conn, nil
}

const (
	cannotConnectNow = "57P03" // drivers take it for "try again"
	limitExceeded    = "53400" // what the workspace may use in a month is spent: to try again does not help
)

// stateOf returns the SQLSTATE of a refusal to bring a database up.
func stateOf(e *apierror.Error) string {
	if e.Code == apierror.EQuota || e.Code == apierror.ERateLimited {
		return limitExceeded
	}
	return cannotConnectNow
}

// errCrowded means that a host admits no more connections to a database.
var errCrowded = &apierror.Error{Code: apierror.ERateLimited, Message: "too many connections to this database", RetryAfter: time.Second}

// refusal converts an error into what a client is told. Internal errors are returned as
// they are; pgsni logs them and does not show them to the client.
func refusal(err error) error {
	var e *apierror.Error
	switch {
	case hostapi.HasCode(err, hostapi.CodeBusy):
		return &pgsni.Refusal{Code: tooManyConnections, Message: errCrowded.Message}
	case !errors.As(err, &e), e.Code == apierror.EInternal:
		return err
	case errors.Is(err, errFailed):
		return &pgsni.Refusal{
			Code: cannotConnectNow, Message: e.Message, Detail: e.Detail,
			Hint: "A failover restores it from its archive: POST /v1/databases/{id}/failover.",
		}
	}
	return &pgsni.Refusal{Code: stateOf(e), Message: e.Message, Detail: e.Detail}
}
