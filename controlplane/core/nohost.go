package core

import (
	"errors"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/placement"
)

// How what is placed on a host fails, for errors.Is; each has a detail of its own.
var (
	ErrNoHost      = &apierror.Error{Code: apierror.EBadGateway, Message: "no available compute node", RetryAfter: time.Second}
	ErrUnreachable = apierror.Unreachable("", nil)
)

// NoNode is ErrNoHost with what placement says.
func NoNode(err error) *apierror.Error {
	var none *placement.Error
	if errors.As(err, &none) {
		return ErrNoHost.With(none.Reason.String(), err)
	}
	return ErrNoHost.With("", err)
}
