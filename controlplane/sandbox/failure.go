package sandbox

import (
	"errors"
	"strings"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// The errors of creates, for errors.Is; each occurrence has its own detail. The
// others are core.ErrNoHost and core.ErrUnreachable.
var (
	ErrNotStarted = &apierror.Error{Code: apierror.EInternal, Message: "sandbox failed to start", Detail: "report the request id if a retry does not help"}
	// ErrSnapshot means that a sandbox cannot be created from its snapshot, or woken,
	// because the snapshot or its saved memory is gone, damaged, or from another engine.
	ErrSnapshot = &apierror.Error{Code: apierror.EUnprocessable, Message: "snapshot cannot be restored"}
)

// invalidMount converts the refusal of a path that only the guest could find wrong.
func invalidMount(err error) *apierror.Error {
	e := &apierror.Error{Code: apierror.EInvalid, Message: "invalid volumes", Err: err}
	var refusal *hostapi.Error
	if errors.As(err, &refusal) {
		e.Detail = whatIsWrong(refusal)
	}
	return e
}

// whatIsWrong returns the detail of a refusal without what the host was doing.
func whatIsWrong(refusal *hostapi.Error) string {
	if _, what, found := strings.Cut(refusal.Detail, refusal.Message+": "); found {
		return what
	}
	return refusal.Detail
}

// noHost converts the reason why no host can take a sandbox. If no host has the
// template, the caller has probably misspelled its name.
func noHost(r raftstore.Reader, row *record.Sandbox, none *placement.Error) *apierror.Error {
	if none.Reason != placement.UnknownTemplate {
		return core.NoNode(none)
	}
	e := template.Unknown(row.Template, append(template.Usable(r, row.WorkspaceID), none.Templates...))
	e.Err = none
	return e
}
