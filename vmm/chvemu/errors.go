package chvemu

import (
	"errors"
	"fmt"
	"net/http"
)

// The states in which a request cannot be carried out (vm::Error in vmm/src/vm.rs).
var (
	errNotCreated     = errors.New("VM is not created")
	errMissingConfig  = errors.New("VM config is missing")
	errAlreadyCreated = errors.New("VM is already created")
	errNotRunning     = errors.New("VM is not running")
)

// badRequest is a body that is not what the endpoint takes.
type badRequest struct{ error }

// unsupported refuses what Cloud Hypervisor has and this program has not.
func unsupported(what string) error { return fmt.Errorf("chvemu does not support %s", what) }

// statusOf is the status of a refusal (api_error_status_code in
// vmm/src/api/http/mod.rs).
func statusOf(err error) int {
	switch {
	case errors.As(err, new(badRequest)):
		return http.StatusBadRequest
	case errors.Is(err, errNotCreated), errors.Is(err, errMissingConfig):
		return http.StatusNotFound
	default:
		return http.StatusInternalServerError
	}
}
