package sandbox

import (
	"errors"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
)

// The errors of captures, for errors.Is.
var (
	// ErrAsleep is for a sandbox that is paused or hibernated.
	ErrAsleep = &apierror.Error{Code: apierror.EConflict, Message: "sandbox not running (paused or hibernated) — resume/wake it first"}
	// ErrVolumes is for a sandbox with a volume, which would change after the memory
	// is captured.
	ErrVolumes = &apierror.Error{
		Code: apierror.EConflict, Message: "volumes are attached",
		Detail: "memory cannot be captured while a volume is attached: what is cached of it would not agree with it later",
	}
)

// CanCapture refuses a sandbox that does not run or has an owner, and a capture of
// memory while volumes are attached.
func CanCapture(row *record.Sandbox, memory bool) error {
	switch {
	case row.Owner != nil:
		return Unmanaged(row)
	case row.Status == record.SandboxPaused, row.Status == record.SandboxHibernated:
		return ErrAsleep
	case row.Status != record.SandboxRunning:
		return apierror.NotRunning("its status is " + string(row.Status))
	case memory && len(row.Volumes) > 0:
		return ErrVolumes
	}
	return nil
}

// NotCaptured converts a host's error about a capture to one of the API. It returns
// otherwise for causes that users should not see.
func NotCaptured(cause error, otherwise *apierror.Error) *apierror.Error {
	var refusal *hostapi.Error
	switch {
	case hosts.Unreachable(cause):
		return apierror.Unreachable("", cause)
	case !errors.As(cause, &refusal):
		return otherwise.With(otherwise.Detail, cause)
	}
	switch refusal.Code {
	case hostapi.CodeNotFound, hostapi.CodeStaleGeneration:
		return apierror.NotRunning("its host does not run it")
	case hostapi.CodeNotRunning:
		return ErrAsleep.With(ErrAsleep.Detail, cause) // the record lagged behind its host
	case hostapi.CodeIllegalState:
		return ErrVolumes.With(ErrVolumes.Detail, cause)
	case hostapi.CodeNoMemory:
		return &apierror.Error{Code: apierror.EInsufficient, Message: "insufficient host memory for sandbox", Err: cause}
	case hostapi.CodeNoDisk:
		return &apierror.Error{Code: apierror.EInsufficient, Message: "insufficient host storage for snapshot", Err: cause}
	case hostapi.CodeGuest:
		return apierror.Unreachable("the sandbox does not answer", cause)
	case hostapi.CodeDraining:
		return apierror.Unreachable("its host is restarting", cause)
	case hostapi.CodeBusy:
		return &apierror.Error{Code: apierror.ERateLimited, Message: "too many requests at once in this sandbox", RetryAfter: time.Second, Err: cause}
	}
	return otherwise.With(otherwise.Detail, cause)
}
