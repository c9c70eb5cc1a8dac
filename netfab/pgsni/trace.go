package pgsni

import (
	"context"
	"errors"
	"strings"

	"github.com/berth-cloud/berth/telemetry"
)

// spanLogin is a client's login, from the complete StartupMessage with a name until it is
// logged in, or refused. What comes before is not traced: strangers send that all day.
const spanLogin = "pg.login"

// Outcomes of logins.
const (
	outcomeOK      = "ok"
	outcomeRefused = "refused"    // the client was told a SQLSTATE
	outcomeBroken  = "broken_off" // it was told nothing: it left, mostly
)

// traced is one login's span. It has no name, user or address of the client's: a Resolver
// adds what may be said of the database, to the span that its context has.
type traced struct {
	ctx  context.Context // has the span; nil: there is none
	span telemetry.Span
}

// errNotServed marks the span of a login that failed on this side.
var errNotServed = errors.New("the database cannot be reached")

func (c *conn) beginLogin() {
	c.traced.ctx, c.traced.span = telemetry.Serve(c.router.open, nil, spanLogin)
}

// endLogin ends the span of a login that has one, once, and forgets it: a session may go
// on for days.
func (c *conn) endLogin(outcome, sqlstate string) {
	span := c.traced.span
	c.traced = traced{}
	span.Set(telemetry.KeyOutcome, outcome)
	span.Set(telemetry.KeySQLState, codeShown(sqlstate))
	if sqlstate == codeCannotConnectNow {
		span.End(errNotServed)
		return
	}
	span.End(nil)
}

// codeShown is a SQLSTATE as a span has it. A tenant's server may send any text as one.
func codeShown(code string) string {
	if code == "" || len(code) == 5 && strings.Trim(code, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == "" {
		return code
	}
	return "other"
}
