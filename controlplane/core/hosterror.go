package core

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// HostError converts a host's error about a sandbox that should be running to one of
// the API.
func HostError(err error) error {
	var refusal *hostapi.Error
	var own *apierror.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return own
	case errors.Is(err, hosts.ErrNotLeading):
		return StoreError(err)
	case errors.Is(err, hostapi.ErrUnknownOutcome):
		return apierror.Unreachable("the command may have run", err)
	case errors.Is(err, hostapi.ErrUnreachable):
		return apierror.Unreachable("", err)
	case !errors.As(err, &refusal):
		return apierror.As(err)
	}
	switch refusal.Code {
	case hostapi.CodeNotFound, hostapi.CodeNotRunning:
		e := apierror.NotRunning("its host does not run it")
		e.Err = err
		return e
	case hostapi.CodeCutOff:
		return cutOff(refusal, err)
	case hostapi.CodeInvalid:
		return invalidRequest(refusal.Message, refusal, err)
	case hostapi.CodeInvalidCwd:
		return invalidRequest("invalid cwd", refusal, err)
	case hostapi.CodeInvalidUser:
		return invalidRequest("invalid user", refusal, err)
	case hostapi.CodeTooLarge:
		return &apierror.Error{Code: apierror.ETooLarge, Message: refusal.Message, Detail: refusal.Detail, Err: err}
	case hostapi.CodeBusy:
		return TooBusy(strings.TrimPrefix(refusal.Detail, refusal.Message+": "), err)
	case hostapi.CodeGuest:
		return apierror.Unreachable("the sandbox does not answer", err)
	case hostapi.CodeGuestSays:
		return guestSays(refusal, err)
	case hostapi.CodeDraining:
		return apierror.Unreachable("its host is restarting", err)
	case hostapi.CodeStaleTerm:
		return apierror.Unavailable("leadership has changed", err)
	}
	return apierror.As(err)
}

// TooBusy is the error of a sandbox that has no room for another command. detail says
// which limit was reached.
func TooBusy(detail string, cause error) *apierror.Error {
	return &apierror.Error{
		Code: apierror.ERateLimited, Message: "too many commands at once in this sandbox", Detail: detail, RetryAfter: time.Second, Err: cause,
	}
}

// cutOff is the error of an operation during which the sandbox stopped. The
// operation is not repeated, because nobody knows how far it came.
func cutOff(refusal *hostapi.Error, err error) error {
	detail := strings.TrimPrefix(refusal.Detail, refusal.Message+": ")
	return &apierror.Error{
		Code: apierror.EConflict, Message: "sandbox stopped while this was under way",
		Detail: strings.TrimPrefix(detail+"; what had begun is not done again", "; "), Err: err,
	}
}

// invalidRequest converts a host's or a guest's complaint about a request.
func invalidRequest(message string, refusal *hostapi.Error, err error) error {
	detail := refusal.Detail
	// Each part on the way adds that the request is invalid.
	for again := true; again; {
		detail, again = strings.CutPrefix(detail, refusal.Message+": ")
	}
	return &apierror.Error{Code: apierror.EInvalid, Message: message, Detail: detail, Err: err}
}

// guestSays converts the guest's own refusal, according to its status.
func guestSays(refusal *hostapi.Error, err error) error {
	code, ok := map[int]apierror.Code{
		http.StatusBadRequest: apierror.EInvalid, http.StatusForbidden: apierror.EForbidden, http.StatusNotFound: apierror.ENotFound,
		http.StatusConflict: apierror.EConflict, http.StatusRequestEntityTooLarge: apierror.ETooLarge,
		http.StatusRequestedRangeNotSatisfiable: apierror.ERange, http.StatusUnprocessableEntity: apierror.EUnprocessable,
		http.StatusTooManyRequests: apierror.ERateLimited, http.StatusInsufficientStorage: apierror.EInsufficient,
		http.StatusNotImplemented: apierror.ENotImplemented,
	}[refusal.HTTPStatus]
	if !ok {
		return apierror.Unreachable("the sandbox answered: "+refusal.Message, err)
	}
	e := &apierror.Error{Code: code, Message: refusal.Message, Detail: refusal.Detail, ContentRange: refusal.ContentRange, Err: err}
	if code == apierror.ERateLimited {
		e.RetryAfter = time.Second
	}
	return e
}
