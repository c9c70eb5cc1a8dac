package sandbox

import (
	"slices"
	"strings"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/controlplane/template"
)

// How a create fails, for errors.Is; each has a detail of its own. It also fails with
// core.ErrNoHost and core.ErrUnreachable.
var (
	ErrNotStarted = &apierror.Error{Code: apierror.EInternal, Message: "sandbox failed to start", Detail: "report the request id if a retry does not help"}
	// ErrSnapshot means that a sandbox cannot be made from its snapshot: it is
	// gone, damaged, or of another engine.
	ErrSnapshot = &apierror.Error{Code: apierror.EUnprocessable, Message: "snapshot cannot be restored"}
)

// NoHost says that no host can take a sandbox, and why. That none has the
// template is the caller's mistake, as far as anyone can tell.
func NoHost(none *placement.Error) *apierror.Error {
	if none.Reason != placement.UnknownTemplate {
		return core.NoNode(none)
	}
	names := "none"
	if known := slices.DeleteFunc(slices.Clone(none.Templates), template.IsKey); len(known) > 0 {
		names = strings.Join(known, ", ")
	}
	e := apierror.Invalid("unknown template", "available: %s", names)
	e.Err = none
	return e
}
