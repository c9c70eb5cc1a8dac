package database

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// errBoxGone is the error of a database without a sandbox.
const errBoxGone = "its virtual machine is gone"

// boxFault returns what to tell a database's owner about a failed sandbox. A host's error
// starts with its reason. What follows a colon names internals of the host; those are in
// the host's log, and the owner does not see them.
func boxFault(text string) string {
	what, _, _ := strings.Cut(text, ":")
	switch what {
	case "":
		return "its virtual machine failed"
	case "VMM died":
		return "its virtual machine ended"
	}
	return what
}

// unwell returns why PostgreSQL does not serve as it should, as its host reports it; "" if
// it does, or if its host has yet to ask.
func unwell(s hostapi.DatabaseState) string {
	starting := s.State != "" && s.State != pgapi.StateReady
	switch {
	case !s.Ready && s.Error != "":
		return "PostgreSQL does not serve: " + s.Error
	case s.Volume.Writes == pgapi.WritesStopped:
		return "PostgreSQL serves reads alone: " + s.Volume.Reason
	case s.Volume.Writes == pgapi.WritesLimited:
		return "transactions are read-only unless they ask not to be: " + s.Volume.Reason
	case !s.Ready && starting:
		return "PostgreSQL does not serve: it is " + s.State
	}
	return ""
}

// behind returns why what was committed lately may be lost with the host, or in time with
// the last base backup: the archive has not gone on for longer than it may trail, or base
// backups fail; "" if it keeps up.
func behind(a hostapi.ArchiveState, most time.Duration, now time.Time) string {
	lag := time.Duration(a.LagSeconds * float64(time.Second)).Round(time.Second)
	switch {
	case !a.FailingSince.IsZero() && now.Sub(a.FailingSince) > most:
		return fmt.Sprintf("its archive has not gone on since %s: %s", api.Time{Time: a.FailingSince}, cmp.Or(a.Error, hostapi.ArchiveCauseWaiting))
	case lag > 2*most:
		return fmt.Sprintf("its archive trails its writes by %d seconds", int(lag.Seconds()))
	case !a.BackupsFailingSince.IsZero() && now.Sub(a.BackupsFailingSince) > most:
		return notBackedUp(a)
	}
	return ""
}

// notBackedUp returns why no base backup can be made; "" if none has failed.
func notBackedUp(a hostapi.ArchiveState) string {
	if a.BackupsFailingSince.IsZero() {
		return ""
	}
	return fmt.Sprintf("no base backup of it could be made since %s: %s", api.Time{Time: a.BackupsFailingSince}, a.BackupError)
}

// reasonOf returns what to tell a database's owner about an error.
func reasonOf(err error) string {
	var own *apierror.Error
	var refusal *hostapi.Error
	switch {
	case errors.As(err, &own) && own.Code == apierror.EInternal && own.Message == "internal error":
		return "the control plane could not do it"
	case errors.As(err, &own) && own.Detail != "":
		return own.Message + ": " + own.Detail
	case errors.As(err, &own):
		return own.Message
	case hosts.Unreachable(err), errors.Is(err, hosts.ErrNotLeading):
		return "its host does not answer"
	case !errors.As(err, &refusal):
		return "the control plane could not do it"
	}
	switch refusal.Code {
	case hostapi.CodeNotFound:
		return errBoxGone
	case hostapi.CodeInternal, hostapi.CodeInvalid:
		return "its host could not do it"
	case hostapi.CodeGuest:
		return "its virtual machine does not answer"
	case hostapi.CodeArchiveDamaged:
		return refusal.Error() // it names the object
	}
	return refusal.Message
}

// hostRefusal converts a host's error from waking a database, or from reading its
// archive, into an API error.
func hostRefusal(err error) error {
	var own *apierror.Error
	var refusal *hostapi.Error
	var illegal *sandbox.IllegalError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return own
	case errors.As(err, &illegal):
		return &apierror.Error{Code: apierror.EConflict, Message: fmt.Sprintf("database cannot be woken: its sandbox is %s", illegal.Status), Err: err}
	case errors.Is(err, sandbox.ErrGone):
		return &apierror.Error{Code: apierror.EConflict, Message: "database has failed", Detail: errBoxGone, Err: err}
	case errors.Is(err, sandbox.ErrMoving):
		return apierror.Unavailable(sandbox.ErrMoving.Error(), err)
	case errors.Is(err, hosts.ErrNotLeading):
		return core.StoreError(err)
	case hosts.Unreachable(err):
		return apierror.Unreachable("", err)
	case !errors.As(err, &refusal):
		return core.StoreError(err)
	}
	switch refusal.Code {
	case hostapi.CodeNoMemory, hostapi.CodeNoSlot, hostapi.CodeNoDisk:
		return core.ErrNoHost.With("its host has no room to wake it: "+refusal.Message, err)
	case hostapi.CodeNotFound:
		return &apierror.Error{Code: apierror.EConflict, Message: "database has failed", Detail: errBoxGone, Err: err}
	case hostapi.CodeDraining:
		return apierror.Unreachable("its host is restarting", err)
	case hostapi.CodeGuest, hostapi.CodeNotReady:
		return apierror.Unreachable("PostgreSQL does not serve yet, or not any more", err)
	case hostapi.CodeArchiveDamaged:
		return &apierror.Error{Code: apierror.EUnprocessable, Message: "archive is damaged", Detail: refusal.Detail, Err: err}
	case hostapi.CodeStaleTerm:
		return apierror.Unavailable("leadership has changed", err)
	}
	return apierror.As(err)
}
