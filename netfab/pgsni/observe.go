package pgsni

import (
	"net/netip"
	"time"
)

// Observe are functions that a Router calls, each of which may be nil. They are
// called from the connection's own goroutine, at once with others, and must not
// block.
type Observe struct {
	// Opened is called when a client is logged in and its server ready for the
	// first query.
	Opened func(Session)
	// Closed is called once for each call of Opened, when both sides are closed.
	Closed func(Session, Traffic)
	// Refused is called for each connection that ended before it was a session,
	// with the SQLSTATE that the client was told, or "" if it was told nothing.
	Refused func(sqlstate string)
}

// Session is one logged-in client.
type Session struct {
	Name   string         // of the database, as in SNI
	User   string         // the role that logged in
	Client netip.AddrPort // where the client connected from
	Opened time.Time
	Login  time.Duration // from its StartupMessage until then, the wait for its server included
}

// Traffic is what a session carried, in bytes of the PostgreSQL protocol
// without TLS, its login included.
type Traffic struct {
	FromClient, ToClient int64
}

func (o Observe) opened(s Session) {
	if o.Opened != nil {
		o.Opened(s)
	}
}

func (o Observe) closed(s Session, t Traffic) {
	if o.Closed != nil {
		o.Closed(s, t)
	}
}

func (o Observe) refused(sqlstate string) {
	if o.Refused != nil {
		o.Refused(sqlstate)
	}
}
