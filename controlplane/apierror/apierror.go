// Package apierror defines the errors of the API. A use case returns one, a failed
// flow keeps one for whoever waits for it, and httpapi turns one into a response.
package apierror

import (
	"errors"
	"fmt"
	"time"
)

// Code says what kind of failure an Error is; httpapi maps it to one status.
type Code string

// The codes and their statuses.
const (
	EInvalid        Code = "invalid"         // 400
	EUnauthorized   Code = "unauthorized"    // 401
	EQuota          Code = "quota"           // 402
	EForbidden      Code = "forbidden"       // 403
	ENotFound       Code = "not_found"       // 404
	EConflict       Code = "conflict"        // 409
	ENoArchive      Code = "no_archive"      // 412
	ETooLarge       Code = "too_large"       // 413
	ERange          Code = "range"           // 416
	EUnprocessable  Code = "unprocessable"   // 422
	ERateLimited    Code = "rate_limited"    // 429
	EInternal       Code = "internal"        // 500
	ENotImplemented Code = "not_implemented" // 501
	EBadGateway     Code = "bad_gateway"     // 502
	EUnavailable    Code = "unavailable"     // 503
	EUnwoken        Code = "unwoken"         // 503: what sleeps could not be woken, unlike where nobody leads
	EInsufficient   Code = "insufficient"    // 507
)

// Error is the error of every use case. Message and Detail are sent to the caller
// unchanged; Err is only logged.
type Error struct {
	Code       Code
	Message    string         // the body's "error"
	Detail     string         // the body's "detail", omitted if empty
	Fields     map[string]any // further members of the body (quotas)
	RetryAfter time.Duration  // the Retry-After header, omitted if 0
	// ContentRange is the header of that name, omitted if empty. With ERange it
	// contains the file's size.
	ContentRange string
	Err          error // the cause, never shown to a caller
}

// Error implements error. It includes the cause, so it is only for logs.
func (e *Error) Error() string {
	s := e.Message
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// With returns a copy with another detail and cause.
func (e *Error) With(detail string, cause error) *Error {
	c := *e
	c.Detail, c.Err = detail, cause
	return &c
}

// Is makes errors.Is compare only code and message: an error that a flow kept has
// lost the rest.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Message == e.Message
}

// As returns err as an *Error. Any other error becomes EInternal; its text stays in
// Err, for the log.
func As(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: EInternal, Message: "internal error", Err: err}
}

// CodeOf returns the code of err, or "" if err is nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return As(err).Code
}

// The details of a 401. The specification prescribes the texts.
const (
	DetailMissingToken = "missing bearer token"
	DetailInvalidToken = "invalid api token"
	DetailJWTRequired  = "jwt required"
)

// Unauthorized returns a 401 with one of the details above.
func Unauthorized(detail string) *Error {
	return &Error{Code: EUnauthorized, Message: "unauthorized", Detail: detail}
}

// NotFound is the answer for an id that is unknown or of another workspace.
func NotFound() *Error { return &Error{Code: ENotFound, Message: "not found"} }

// Unavailable is the answer while there is no leader, or if a write's outcome is
// unknown because leadership was lost during it.
func Unavailable(detail string, cause error) *Error {
	return &Error{
		Code: EUnavailable, Message: "control plane unavailable", Detail: detail,
		RetryAfter: time.Second, Err: cause,
	}
}

// Unreachable is the answer if a host does not answer, or refuses for now.
func Unreachable(detail string, cause error) *Error {
	return &Error{Code: EBadGateway, Message: "agent unreachable", Detail: detail, RetryAfter: time.Second, Err: cause}
}

// NotRunning is the answer if a sandbox that has to run does not.
func NotRunning(detail string) *Error {
	return &Error{Code: ENotFound, Message: "sandbox not found or not running", Detail: detail}
}

// Invalid returns a 400 with a formatted detail.
func Invalid(message, format string, args ...any) *Error {
	return &Error{Code: EInvalid, Message: message, Detail: fmt.Sprintf(format, args...)}
}
