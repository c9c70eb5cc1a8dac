package pgsni

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
)

// SQLSTATE codes that the router itself answers with (manual, appendix A).
const (
	codeRejectedConnection = "08004" // sqlserver_rejected_establishment_of_sqlconnection
	codeProtocolViolation  = "08P01"
	codeUnsupported        = "0A000" // feature_not_supported
	codeInvalidAuth        = "28000" // invalid_authorization_specification
	codeInvalidPassword    = "28P01"
	codeTooManyConnections = "53300"
	codeQueryCanceled      = "57014" // what PostgreSQL says when authentication times out
	codeAdminShutdown      = "57P01"
	codeCannotConnectNow   = "57P03"
)

// What clients are told. Where PostgreSQL says the same, it is in its words.
const (
	messageWaitTimeout      = "the database did not become ready in time; try again"
	messageUnavailable      = "the database cannot be reached now; try again"
	messageTooMany          = "sorry, too many clients already"
	messageShutdown         = "terminating connection due to administrator command"
	messageShuttingDown     = "this router is shutting down; connect again"
	messageAuthTimeout      = "canceling authentication due to timeout"
	messageReplication      = "replication connections are not permitted here"
	messageNoUser           = "no PostgreSQL user name specified in startup packet"
	messageTLSRequired      = "this server takes only encrypted connections: connect with sslmode=require"
	messageTLSHint          = "Set sslmode=require or sslmode=verify-full in the connection string, or your driver's option for TLS."
	messageDoubleEncryption = "the connection is encrypted already"
)

const severityFatal = "FATAL"

// Refusal is an ErrorResponse to the client that ends its connection. A Resolver
// may return one (as a pointer, wrapped or not) for what a client should read.
type Refusal struct {
	Code    string // SQLSTATE
	Message string
	Hint    string // may be empty
	Detail  string // may be empty
}

// Error is the text for logs.
func (r *Refusal) Error() string { return fmt.Sprintf("refused (%s): %s", r.Code, r.Message) }

// response is the message as it goes to the client. Refusals end a connection,
// so the severity is always FATAL.
func (r *Refusal) response() *pgproto3.ErrorResponse {
	text := strings.NewReplacer("\x00", "").Replace // which would end a field
	return &pgproto3.ErrorResponse{
		Severity: severityFatal, SeverityUnlocalized: severityFatal,
		Code: text(r.Code), Message: text(r.Message), Detail: text(r.Detail), Hint: text(r.Hint),
	}
}

func refuse(code, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Message: fmt.Sprintf(format, args...)}
}

// wrongPassword is PostgreSQL's answer to a wrong password, an unknown role and
// a role without a password alike.
func wrongPassword(user string) *Refusal {
	// Not %q, which would escape: PostgreSQL puts the name between plain quotes.
	return refuse(codeInvalidPassword, `password authentication failed for user "%s"`, user)
}

// Why a connection ended without anybody to tell it to.
var (
	errClientGone = errors.New("the client went away")
	errNotOurs    = errors.New("not the PostgreSQL protocol")
	errDraining   = errors.New("the router is shutting down")
	errNoRoom     = errors.New("too many connections that are not logged in")
)
