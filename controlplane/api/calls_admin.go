package api

import (
	"context"
	"io"
	"net/http"
)

// RaftStatus asks one replica how it sees the control store (operators only).
func (c *Client) RaftStatus(ctx context.Context) (*RaftStatus, error) {
	return into[RaftStatus](ctx, c, get(Version, "admin", "raft-status"))
}

// AddPeer makes a replica a voting member (operators only).
func (c *Client) AddPeer(ctx context.Context, id, address string) error {
	cl, err := post(AddPeer{ID: id, Address: address}, Version, "admin", "raft", "peers")
	if err != nil {
		return err
	}
	return c.done(ctx, cl)
}

// RemovePeer takes a replica out of the members (operators only).
func (c *Client) RemovePeer(ctx context.Context, id string) error {
	return c.done(ctx, remove(Version, "admin", "raft", "peers", id))
}

// TransferLeadership hands leadership to a member, or to the most up to date
// one when to is empty (operators only).
func (c *Client) TransferLeadership(ctx context.Context, to string) error {
	cl, err := post(TransferLeadership{To: to}, Version, "admin", "raft", "transfer-leadership")
	if err != nil {
		return err
	}
	return c.done(ctx, cl)
}

// Backup writes a whole backup of the control store to w (operators only).
func (c *Client) Backup(ctx context.Context, w io.Writer) error {
	resp, err := c.do(ctx, get(Version, "admin", "raft", "snapshot"))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(w, resp.Body)
	return err
}

// Restore replaces the whole control store by a backup (operators only).
func (c *Client) Restore(ctx context.Context, backup []byte) error {
	return c.done(ctx, call{
		method: http.MethodPost,
		path:   join([]string{Version, "admin", "raft", "restore"}),
		header: http.Header{"Content-Type": {"application/octet-stream"}},
		body:   backup,
	})
}

// AcceptRestore lets go what hosts have and the backup that was restored does not
// know, which is kept for an hour otherwise (operators only).
func (c *Client) AcceptRestore(ctx context.Context) error {
	return c.done(ctx, remove(Version, "admin", "raft", "restore"))
}

// ListAgents reads one page of the hosts (operators only).
func (c *Client) ListAgents(ctx context.Context, p Page) ([]Agent, string, error) {
	return page[Agent](ctx, c, p, Version, "admin", "agents")
}

// AgentEvents reads what a host found that belongs to no sandbox, newest last
// (operators only).
func (c *Client) AgentEvents(ctx context.Context, id string, q EventQuery) ([]Event, error) {
	out, err := into[[]Event](ctx, c, q.call(Version, "admin", "agents", id, "events"))
	if err != nil {
		return nil, err
	}
	return *out, nil
}

// DrainAgent stops new sandboxes from being placed on a host (operators only).
func (c *Client) DrainAgent(ctx context.Context, id string) (*Agent, error) {
	return c.agentCall(ctx, id, "drain")
}

// UndrainAgent lets new sandboxes be placed on a host again (operators only).
func (c *Client) UndrainAgent(ctx context.Context, id string) (*Agent, error) {
	return c.agentCall(ctx, id, "undrain")
}

func (c *Client) agentCall(ctx context.Context, id, verb string) (*Agent, error) {
	cl, err := post(Empty{}, Version, "admin", "agents", id, verb)
	if err != nil {
		return nil, err
	}
	// Draining twice is draining once.
	cl.safe = true
	return into[Agent](ctx, c, cl)
}

// RemoveAgent forgets a host (operators only).
func (c *Client) RemoveAgent(ctx context.Context, id string) error {
	return c.done(ctx, remove(Version, "admin", "agents", id))
}

// CreateJoinToken makes a token with which one host can join (operators only).
func (c *Client) CreateJoinToken(ctx context.Context, in CreateJoinToken) (*JoinToken, error) {
	cl, err := post(in, Version, "admin", "join-tokens")
	if err != nil {
		return nil, err
	}
	return into[JoinToken](ctx, c, cl)
}
