package pgsni

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"
)

// Defaults of Config.
const (
	DefaultHandshakeTimeout             = 10 * time.Second
	DefaultWaitTimeout                  = 2 * time.Minute
	DefaultAuthTimeout                  = time.Minute // authentication_timeout of PostgreSQL
	DefaultCancelTimeout                = 10 * time.Second
	DefaultMaxSessions                  = 10_000
	DefaultMaxUnauthenticated           = 2_000
	DefaultMaxUnauthenticatedPerAddress = 200
	DefaultMaxPerDatabase               = 500 // of which PostgreSQL takes fewer
)

// DefaultKeepAlive finds a peer that vanished within two minutes.
var DefaultKeepAlive = net.KeepAliveConfig{Enable: true, Idle: time.Minute, Interval: 15 * time.Second, Count: 4}

// Config is what a Router is told. Domain and TLS are required; of everything
// else the zero value means the default.
type Config struct {
	// Domain is what follows a database's name in its host name, such as
	// "db.example.com", without a dot at either end and in any case.
	Domain string
	// TLS has the certificates: GetCertificate, or Certificates. It is copied.
	// It should have an answer for a client that sends no or another server
	// name, because only after the handshake can that client be told why it is
	// refused. Versions below 1.2, session tickets and protocol names (ALPN) are
	// the router's to say.
	TLS *tls.Config
	// Log gets a line for each failure of a Resolver or a Backend, and at debug
	// level one for each connection that is refused. By default nothing is logged.
	Log *slog.Logger
	// Observe is told of connections. The zero value observes nothing.
	Observe Observe

	// HandshakeTimeout is how long a client has from its connection until its
	// StartupMessage is complete.
	HandshakeTimeout time.Duration
	// WaitTimeout is how long a client is held while its database is resolved,
	// woken and dialled. Only the waiting counts, before authentication. A client whose
	// password the router has checked is held as long again while its server starts.
	WaitTimeout time.Duration
	// AuthTimeout is how long authentication may take.
	AuthTimeout time.Duration
	// CancelTimeout bounds what is done for one cancel request.
	CancelTimeout time.Duration

	// MaxSessions is how many clients may be logged in. One whose password the router
	// has checked counts from then on, while it waits for its database. Those of one
	// owner (Owned) are no more than are left to others.
	MaxSessions int
	// MaxUnauthenticated is how many connections there may be that are not
	// logged in yet. Over it the one that has waited longest with its
	// StartupMessage, or with its password where the router checks that, makes room.
	// Those whose password the router has checked do not count.
	MaxUnauthenticated int
	// MaxUnauthenticatedPerAddress is the same for one remote address: an IPv4
	// address, or an IPv6 prefix of 64 bits.
	MaxUnauthenticatedPerAddress int
	// MaxPerDatabase is how many clients whose password the router has checked may
	// wait for one database, or be logged in.
	MaxPerDatabase int
	// KeepAlive is set on both sides' TCP connections.
	KeepAlive net.KeepAliveConfig

	// AllowReplication lets connections with the parameter "replication" through
	// (physical and logical walsenders, pg_basebackup).
	AllowReplication bool
	// ServerMinor is the newest minor protocol version of the servers, for the
	// logins that the router plays by itself: 0 until PostgreSQL 17, 2 from 18.
	ServerMinor uint32
	// ChecksLogins says that the Resolver's backends are Verifying, so that the
	// login at a name that stands for nothing is played as theirs are.
	ChecksLogins bool
	// DecoySecret makes up the salts of databases that do not exist. All routers
	// of one domain share it, so that a name looks the same at each. By default
	// it is random.
	DecoySecret []byte

	// CancelElsewhere is called with a cancel key that is not of this router, so
	// that others may be asked (Router.Cancel). ctx ends after CancelTimeout.
	CancelElsewhere func(ctx context.Context, key CancelKey)
}

// complete checks a Config and fills in its defaults.
func (c Config) complete() (Config, error) {
	c.Domain = strings.ToLower(c.Domain)
	if c.Domain == "" || strings.Trim(c.Domain, ".") != c.Domain {
		return c, fmt.Errorf("domain %q: must be a host name without a dot at either end", c.Domain)
	}
	if c.TLS == nil || c.TLS.GetCertificate == nil && len(c.TLS.Certificates) == 0 {
		return c, errors.New("TLS: needs GetCertificate or Certificates")
	}
	if c.TLS.GetConfigForClient != nil {
		return c, errors.New("TLS: GetConfigForClient would go round the router's own settings; use GetCertificate")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	for _, d := range []struct {
		value *time.Duration
		or    time.Duration
	}{
		{&c.HandshakeTimeout, DefaultHandshakeTimeout},
		{&c.WaitTimeout, DefaultWaitTimeout},
		{&c.AuthTimeout, DefaultAuthTimeout},
		{&c.CancelTimeout, DefaultCancelTimeout},
	} {
		if *d.value <= 0 {
			*d.value = d.or
		}
	}
	for _, d := range []struct {
		value *int
		or    int
	}{
		{&c.MaxSessions, DefaultMaxSessions},
		{&c.MaxUnauthenticated, DefaultMaxUnauthenticated},
		{&c.MaxUnauthenticatedPerAddress, DefaultMaxUnauthenticatedPerAddress},
		{&c.MaxPerDatabase, DefaultMaxPerDatabase},
	} {
		if *d.value <= 0 {
			*d.value = d.or
		}
	}
	if c.KeepAlive == (net.KeepAliveConfig{}) {
		c.KeepAlive = DefaultKeepAlive
	}
	if len(c.DecoySecret) == 0 {
		c.DecoySecret = make([]byte, 32)
		_, _ = rand.Read(c.DecoySecret) // never fails
	}
	return c, nil
}
