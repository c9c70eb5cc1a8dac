package service

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

// AsError returns err as an *Error. Anything that is not one already becomes
// EInternal without a word of its text, which stays in Err for the log.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: EInternal, Message: "internal error", Err: err}
}

// ErrorCode is the code of err, or "" when err is nil.
func ErrorCode(err error) Code {
	if err == nil {
		return ""
	}
	return AsError(err).Code
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

func invalid(message, format string, args ...any) *Error {
	return &Error{Code: EInvalid, Message: message, Detail: fmt.Sprintf(format, args...)}
}
