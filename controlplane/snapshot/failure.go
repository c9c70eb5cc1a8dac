package snapshot

import (
	"github.com/berth-cloud/berth/controlplane/apierror"
)

// How a sandbox is not captured, for errors.Is.
var (
	ErrNotTaken = &apierror.Error{Code: apierror.EInternal, Message: "snapshot failed", Detail: "report the request id if a retry does not help"}
)
