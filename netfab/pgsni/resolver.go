package pgsni

import (
	"context"
	"errors"
	"net"
)

// ErrUnknown is what a Resolver answers for a name that stands for no database.
// The client is then shown a refused password, never the absence of the name.
var ErrUnknown = errors.New("no database of this name")

// Resolver knows the databases. Its methods are for concurrent use.
type Resolver interface {
	// Resolve finds the backend of a name, a lower-case DNS label. It may take
	// as long as Config.WaitTimeout, for it may wake what sleeps; a Resolver
	// whose backends are Verifying leaves that to Dial, so that a wrong password
	// wakes nothing.
	//
	// Callers that ask for the same name at once should share one wake. The end
	// of ctx (the client went away, or its time is over) ends only this caller's
	// wait and must not cancel the others'.
	//
	// ErrUnknown, at once and without waking anything, is for names that stand
	// for nothing. A *Refusal reaches the client as it is; any other error is
	// logged and reaches the client as cannot_connect_now (57P03).
	Resolve(ctx context.Context, name string) (Backend, error)
}

// Backend is one database's server.
type Backend interface {
	// Dial connects to the server. What it returns carries the PostgreSQL
	// protocol from the StartupMessage on, and the server must see a connection
	// without TLS of PostgreSQL's own: see "Channel binding" in DESIGN.md. Where
	// the way there is encrypted, that is below this connection.
	//
	// A connection that has CloseWrite() error, as those of package net and
	// crypto/tls do, passes a client's half-close on; another is closed whole.
	//
	// What is said of Resolve's waiting, context and errors holds here too. Dial
	// is called once for the session and once for each cancel request.
	Dial(ctx context.Context) (net.Conn, error)
}

// Verifying is a Backend some of whose passwords the router can check by itself,
// before it calls Dial.
type Verifying interface {
	Backend
	// Verifier is the stored SCRAM-SHA-256 secret of a user, as pg_authid has
	// it. It must be the server's present one: the router logs in with what it
	// learns from it. ErrPassThrough leaves the user to the server; ErrUnknown
	// refuses the login as a wrong password.
	Verifier(ctx context.Context, user string) (*Verifier, error)
}

// ErrPassThrough is what Verifier answers for a user whose login the server
// itself has to check.
var ErrPassThrough = errors.New("the server checks this user's password")

// Owned is a Backend whose owner may have other databases, too. All of an owner's clients
// together get no more places than are left to those of others.
type Owned interface {
	Backend
	Owner() string // "": unknown, and not bounded
}

func ownerOf(b Backend) string {
	if o, ok := b.(Owned); ok {
		return o.Owner()
	}
	return ""
}
