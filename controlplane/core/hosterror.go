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

// HostError says why a host did not do what was asked of a sandbox that should
// have run.
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
		return invalidThere(refusal, err)
	case hostapi.CodeTooLarge:
		return &apierror.Error{Code: apierror.ETooLarge, Message: refusal.Message, Detail: refusal.Detail, Err: err}
	case hostapi.CodeBusy:
		return &apierror.Error{Code: apierror.ERateLimited, Message: "too many commands at once in this sandbox", RetryAfter: time.Second, Err: err}
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

// cutOff answers for what had begun when its sandbox stopped. It is not done
// again, whatever it was: nobody knows how far it had come.
func cutOff(refusal *hostapi.Error, err error) error {
	detail := strings.TrimPrefix(refusal.Detail, refusal.Message+": ")
	return &apierror.Error{
		Code: apierror.EConflict, Message: "sandbox stopped while this was under way",
		Detail: strings.TrimPrefix(detail+"; what had begun is not done again", "; "), Err: err,
	}
}

// invalidThere is for what only the sandbox can tell to be wrong: a directory
// or a user that it does not have.
func invalidThere(refusal *hostapi.Error, err error) error {
	e := &apierror.Error{Code: apierror.EInvalid, Message: refusal.Message, Detail: refusal.Detail, Err: err}
	// Host and guest each say that it is invalid, before they say what.
	for again := true; again; {
		e.Detail, again = strings.CutPrefix(e.Detail, refusal.Message+": ")
		if !again {
			e.Detail, again = strings.CutPrefix(e.Detail, "invalid command: ")
		}
	}
	// Which part of the command is wrong guests say in words alone, also those that
	// were stored by an earlier version. Nothing but the message depends on it.
	for _, what := range []string{"cwd", "user"} {
		if strings.HasPrefix(e.Detail, what+" ") {
			e.Message = "invalid " + what
		}
	}
	return e
}

// guestSays passes on the guest's own refusal with its status.
func guestSays(refusal *hostapi.Error, err error) error {
	code, ok := map[int]apierror.Code{
		http.StatusBadRequest: apierror.EInvalid, http.StatusForbidden: apierror.EForbidden, http.StatusNotFound: apierror.ENotFound,
		http.StatusConflict: apierror.EConflict, http.StatusRequestEntityTooLarge: apierror.ETooLarge,
		http.StatusRequestedRangeNotSatisfiable: apierror.ERange, http.StatusUnprocessableEntity: apierror.EUnprocessable,
		http.StatusTooManyRequests: apierror.ERateLimited, http.StatusInsufficientStorage: apierror.EInsufficient,
	}[refusal.HTTPStatus]
	if !ok {
		return apierror.Unreachable("the sandbox answered: "+refusal.Message, err)
	}
	return &apierror.Error{Code: code, Message: refusal.Message, Detail: refusal.Detail, ContentRange: refusal.ContentRange, Err: err}
}
