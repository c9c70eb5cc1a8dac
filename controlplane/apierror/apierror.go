// Package apierror holds the errors that the API answers with. A use case fails
// with one, a flow that fails keeps one for whoever asked for it, and httpapi
// turns one into a response.
package apierror

import (
	"errors"
	"fmt"
	"time"
)

// Code says what kind of failure an Error is; httpapi maps it to one status.
type Code string

// The codes, each with the status it becomes.
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
	EInsufficient   Code = "insufficient"    // 507
)

// Error is what every use case fails with. Message and Detail go to the caller
// as they are; Err is for the log only.
type Error struct {
	Code       Code
	Message    string         // the body's "error"
	Detail     string         // the body's "detail", left out when empty
	Fields     map[string]any // further members of the body (quotas)
	RetryAfter time.Duration  // the Retry-After header, left out when 0
	// ContentRange is the header of that name, left out when empty: of an ERange
	// it says how long the whole is.
	ContentRange string
	Err          error // the cause, never shown to a caller
}

// Error implements error; it includes the cause, so it is for logs.
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

// With is the error with another detail and cause.
func (e *Error) With(detail string, cause error) *Error {
	c := *e
	c.Detail, c.Err = detail, cause
	return &c
}

// Is makes errors of one code and message the same to errors.Is, whatever their
// details: one that a flow kept has lost everything else.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Message == e.Message
}

// As returns err as an *Error. Anything that is not one already becomes
// EInternal without a word of its text, which stays in Err for the log.
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

// CodeOf is the code of err, or "" when err is nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return As(err).Code
}

// The details of a 401, as the specification words them.
const (
	DetailMissingToken = "missing bearer token"
	DetailInvalidToken = "invalid api token"
	DetailJWTRequired  = "jwt required"
)

// Unauthorized is a 401 with one of the details above.
func Unauthorized(detail string) *Error {
	return &Error{Code: EUnauthorized, Message: "unauthorized", Detail: detail}
}

// NotFound is the answer for an id that is unknown or another workspace's.
func NotFound() *Error { return &Error{Code: ENotFound, Message: "not found"} }

// Unavailable is the answer while no leader can serve the request, or when a
// write's outcome is unknown because leadership was lost under it.
func Unavailable(detail string, cause error) *Error {
	return &Error{
		Code: EUnavailable, Message: "control plane unavailable", Detail: detail,
		RetryAfter: time.Second, Err: cause,
	}
}

// Unreachable is the answer when a host did not do what was asked of it because
// it does not answer, or not now.
func Unreachable(detail string, cause error) *Error {
	return &Error{Code: EBadGateway, Message: "agent unreachable", Detail: detail, RetryAfter: time.Second, Err: cause}
}

// NotRunning is the answer for a sandbox that should run and does not.
func NotRunning(detail string) *Error {
	return &Error{Code: ENotFound, Message: "sandbox not found or not running", Detail: detail}
}

// Invalid is a 400 whose detail is formatted.
func Invalid(message, format string, args ...any) *Error {
	return &Error{Code: EInvalid, Message: message, Detail: fmt.Sprintf(format, args...)}
}
