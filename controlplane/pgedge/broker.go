package pgedge

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/authn"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/netfab/pgsni"
	"github.com/berth-cloud/berth/timescale"
)

// Broker forwards requests to the query brokers in databases' guests.
type Broker struct {
	reach *Reach

	mu    sync.Mutex
	calls map[string]int // calls under way, by database id
}

// NewBroker returns a Broker.
func NewBroker(r *Reach) *Broker { return &Broker{reach: r, calls: map[string]int{}} }

// maxCalls bounds the concurrent calls to one database in one replica. It is many times
// what a query broker runs at once. It keeps a database that never becomes ready, or a
// guest that never answers, from using up the replica's memory.
const maxCalls = 100

// enter counts one more call to a database. leave takes it back, once.
func (b *Broker) enter(id string) (leave func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.calls[id] >= maxCalls {
		return nil, &apierror.Error{
			Code: apierror.ERateLimited, Message: "too many requests at once to this database", RetryAfter: time.Second,
			Fields: map[string]any{"sqlstate": tooManyConnections},
		}
	}
	b.calls[id]++
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.calls[id]--; b.calls[id] == 0 {
			delete(b.calls, id)
		}
	}), nil
}

const tooManyConnections = "53300"

// answerBody is the body of an answer. Its call counts until the body is closed.
type answerBody struct {
	io.ReadCloser
	leave func()
}

// Close implements io.Closer.
func (a answerBody) Close() error {
	defer a.leave()
	return a.ReadCloser.Close()
}

// brokerWait is how long a request waits for its database: as long as a PostgreSQL
// client.
var brokerWait = timescale.Limit(pgsni.DefaultWaitTimeout)

// Admit checks a request's broker token and returns the workspace of the database. A
// database that does not exist gets the same answer as a wrong token, so that nobody can
// learn which exist.
func (b *Broker) Admit(r *http.Request, id string) (workspaceID string, err error) {
	token, ok := authn.Bearer(r.Header.Values("Authorization"))
	if !ok {
		return "", apierror.Unauthorized(apierror.DetailMissingToken)
	}
	// This copy of the store may be behind: it may not know a new token yet, and still
	// know the one that was replaced.
	b.reach.catchUp(r.Context(), id)
	if ws, ok := b.admit(id, token); ok {
		return ws, nil
	}
	return "", apierror.Unauthorized(apierror.DetailInvalidToken)
}

func (b *Broker) admit(id, token string) (workspaceID string, ok bool) {
	sum := sha256.Sum256([]byte(token))
	e, ok := b.reach.lookup(id)
	ok = ok && e.known() && len(e.BrokerTokenHash) == len(sum)
	if !ok {
		e.BrokerTokenHash = make([]byte, len(sum))
	}
	ok = subtle.ConstantTimeCompare(e.BrokerTokenHash, sum[:]) == 1 && ok
	return e.WorkspaceID, ok
}

// Call sends a request to a database's broker, and wakes the database first if it sleeps.
// The answer may be a refusal by the broker. The caller closes its body. If ctx ends, so
// does the statement.
func (b *Broker) Call(ctx context.Context, id, method, operation string, header http.Header, body io.Reader) (*http.Response, error) {
	leave, err := b.enter(id)
	if err != nil {
		return nil, err
	}
	resp, err := b.untilServed(ctx, id, method, operation, header, body)
	if err != nil {
		leave()
		return nil, err
	}
	resp.Body = answerBody{resp.Body, leave}
	return resp, nil
}

// untilServed is call, again for as long as PostgreSQL does not serve yet: a database that
// was woken by a boot from its disk starts it first. Then the answer is the guest's
// refusal.
func (b *Broker) untilServed(ctx context.Context, id, method, operation string, header http.Header, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://guest/v1/"+operation, body)
	if err != nil {
		return nil, err
	}
	if header != nil {
		req.Header = header
	}
	repeatable := body == nil || req.GetBody != nil
	until := time.Now().Add(brokerWait)
	for retry := firstRetry; ; retry = min(2*retry, lastRetry) {
		resp, err := b.call(ctx, id, req)
		if err != nil || !repeatable || !notBegun(resp) || time.Now().After(until) {
			return resp, err
		}
		resp.Body.Close()
		if err := pause(ctx, retry); err != nil {
			return nil, err
		}
		req = req.Clone(ctx) // the transport may not have let go of the one before
		if req.GetBody != nil {
			if req.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
		}
	}
}

// notBegun reports whether a guest ran nothing, because PostgreSQL does not serve.
func notBegun(resp *http.Response) bool {
	return resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get(pgapi.HeaderRetryAfter) != ""
}

func (b *Broker) call(ctx context.Context, id string, req *http.Request) (*http.Response, error) {
	conn, err := b.dial(ctx, id)
	if err != nil {
		return nil, err
	}
	resp, err := pgapi.NewClient(func(context.Context) (net.Conn, error) { return conn, nil }).Transport().RoundTrip(req)
	if err == nil {
		return resp, nil
	}
	conn.Close() // the transport may never have used it
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, apierror.Unreachable("the database broke off; the statement may or may not have run", err)
}

func (b *Broker) dial(ctx context.Context, id string) (net.Conn, error) {
	wait, cancel := context.WithTimeout(ctx, brokerWait)
	defer cancel()
	conn, err := b.reach.Dial(wait, id, pgapi.Port)
	if e, ok := errors.AsType[*apierror.Error](err); ok {
		told := *e
		told.Fields = map[string]any{"sqlstate": stateOf(e)}
		maps.Copy(told.Fields, e.Fields) // it may be shared, as with all who wait for the same wake
		return nil, &told
	}
	switch {
	case err == nil:
		return conn, nil
	case hostapi.HasCode(err, hostapi.CodeBusy):
		told := *errCrowded
		told.Err, told.Fields = err, map[string]any{"sqlstate": tooManyConnections}
		return nil, &told
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case wait.Err() != nil:
		return nil, &apierror.Error{Code: apierror.EUnavailable, Message: "the database did not become ready in time", RetryAfter: time.Second, Err: err, Fields: sqlstate()}
	}
	return nil, apierror.Unreachable("the database's host refuses the connection", err)
}

// sqlstate returns the fields that errors on the way to a database have in common with
// PostgreSQL's errors.
func sqlstate() map[string]any { return map[string]any{"sqlstate": cannotConnectNow} }
