package core

import (
	"errors"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/placement"
)

// The errors of placements, for errors.Is; each occurrence has its own detail.
var (
	ErrNoHost      = &apierror.Error{Code: apierror.EBadGateway, Message: "no available compute node", RetryAfter: time.Second}
	ErrUnreachable = apierror.Unreachable("", nil)
)

// NoNode returns ErrNoHost with placement's reason.
func NoNode(err error) *apierror.Error {
	var none *placement.Error
	if errors.As(err, &none) {
		return ErrNoHost.With(none.Reason.String(), err)
	}
	return ErrNoHost.With("", err)
}
