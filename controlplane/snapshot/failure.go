package snapshot

import (
	"github.com/berth-cloud/berth/controlplane/apierror"
)

// ErrNotTaken is the error of a snapshot that its host could not take, for errors.Is.
var ErrNotTaken = &apierror.Error{Code: apierror.EInternal, Message: "snapshot failed", Detail: "report the request id if a retry does not help"}
