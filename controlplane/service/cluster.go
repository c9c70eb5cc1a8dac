package service

import (
	"context"
	"io"
	"time"
)

// Cluster are the operator's use cases. Every one needs Caller.Admin, which
// httpapi checks for the whole route group.
type Cluster struct{}

// RaftStatus is this replica's view; any replica answers.
func (s *Cluster) RaftStatus(ctx context.Context) (RaftStatus, error) {
	return RaftStatus{}, &Error{Code: ENotImplemented, Message: "not implemented"}
}

// AddPeer adds a voter.
func (s *Cluster) AddPeer(ctx context.Context, id, address string) error {
	return &Error{Code: ENotImplemented, Message: "not implemented"}
}

// RemovePeer removes a member.
func (s *Cluster) RemovePeer(ctx context.Context, id string) error {
	return &Error{Code: ENotImplemented, Message: "not implemented"}
}

// TransferLeadership gives the leadership to a member, or to any when to is "".
func (s *Cluster) TransferLeadership(ctx context.Context, to string) error {
	return &Error{Code: ENotImplemented, Message: "not implemented"}
}

// Backup writes a whole copy of the control store.
func (s *Cluster) Backup(ctx context.Context, w io.Writer) error {
	return &Error{Code: ENotImplemented, Message: "not implemented"}
}

// Restore puts a backup in place of the control store's content.
func (s *Cluster) Restore(ctx context.Context, r io.Reader) error {
	return &Error{Code: ENotImplemented, Message: "not implemented"}
}

// Agents lists every host, by id.
func (s *Cluster) Agents(ctx context.Context) ([]Agent, error) {
	return nil, &Error{Code: ENotImplemented, Message: "not implemented"}
}

// DrainAgent keeps new sandboxes off a host.
func (s *Cluster) DrainAgent(ctx context.Context, id string) (Agent, error) {
	return Agent{}, &Error{Code: ENotImplemented, Message: "not implemented"}
}

// UndrainAgent lets new sandboxes on a host again.
func (s *Cluster) UndrainAgent(ctx context.Context, id string) (Agent, error) {
	return Agent{}, &Error{Code: ENotImplemented, Message: "not implemented"}
}

// RemoveAgent forgets a host that has no sandbox left.
func (s *Cluster) RemoveAgent(ctx context.Context, id string) error {
	return &Error{Code: ENotImplemented, Message: "not implemented"}
}

// CreateJoinToken makes a one-time token with which one host can join within
// ttl (0: one hour; at most 24 hours).
func (s *Cluster) CreateJoinToken(ctx context.Context, ttl time.Duration) (JoinToken, error) {
	return JoinToken{}, &Error{Code: ENotImplemented, Message: "not implemented"}
}
