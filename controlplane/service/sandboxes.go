package service

import "context"

// Sandboxes are the use cases of /v1/sandboxes.
type Sandboxes struct{}

// Create makes a sandbox and returns once it runs.
func (s *Sandboxes) Create(ctx context.Context, c Caller, in CreateSandbox) (Sandbox, error) {
	return Sandbox{}, &Error{Code: ENotImplemented, Message: "not implemented"}
}

// Get returns one sandbox of the caller's workspace.
func (s *Sandboxes) Get(ctx context.Context, c Caller, id string) (Sandbox, error) {
	return Sandbox{}, &Error{Code: ENotImplemented, Message: "not implemented"}
}

// List returns a page of the workspace's sandboxes, newest first, and the
// cursor of the next page ("" after the last).
func (s *Sandboxes) List(ctx context.Context, c Caller, o ListOptions) (page []Sandbox, next string, err error) {
	return nil, "", &Error{Code: ENotImplemented, Message: "not implemented"}
}

// Delete removes a sandbox; it returns once it is gone from its host.
func (s *Sandboxes) Delete(ctx context.Context, c Caller, id string) error {
	return &Error{Code: ENotImplemented, Message: "not implemented"}
}

// Exec runs a command in a running sandbox and waits for its end.
func (s *Sandboxes) Exec(ctx context.Context, c Caller, id string, in Exec) (ExecResult, error) {
	return ExecResult{}, &Error{Code: ENotImplemented, Message: "not implemented"}
}
