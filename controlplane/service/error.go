package service

import "github.com/berth-cloud/berth/controlplane/apierror"

// Error is what every use case fails with.
type Error = apierror.Error

// Code says what kind of failure an Error is.
type Code = apierror.Code

// The codes; see apierror.
const (
	EInvalid        = apierror.EInvalid
	EUnauthorized   = apierror.EUnauthorized
	EQuota          = apierror.EQuota
	EForbidden      = apierror.EForbidden
	ENotFound       = apierror.ENotFound
	EConflict       = apierror.EConflict
	ENoArchive      = apierror.ENoArchive
	ETooLarge       = apierror.ETooLarge
	ERange          = apierror.ERange
	EUnprocessable  = apierror.EUnprocessable
	ERateLimited    = apierror.ERateLimited
	EInternal       = apierror.EInternal
	ENotImplemented = apierror.ENotImplemented
	EBadGateway     = apierror.EBadGateway
	EUnavailable    = apierror.EUnavailable
	EInsufficient   = apierror.EInsufficient
)

// AsError returns err as an *Error; see apierror.As.
func AsError(err error) *Error { return apierror.As(err) }

// ErrorCode is the code of err, or "" when err is nil.
func ErrorCode(err error) Code { return apierror.CodeOf(err) }

// NotFound is the answer for an id that is unknown or another workspace's.
func NotFound() *Error { return apierror.NotFound() }

// Unavailable is the answer while no leader can serve the request.
func Unavailable(detail string, cause error) *Error { return apierror.Unavailable(detail, cause) }

func invalid(message, format string, args ...any) *Error {
	return apierror.Invalid(message, format, args...)
}
