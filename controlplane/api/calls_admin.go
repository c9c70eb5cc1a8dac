package api

import (
	"context"
	"io"
	"net/http"
	"net/url"
)

// RaftStatus returns the control store's status as one replica sees it (operators
// only).
func (c *Client) RaftStatus(ctx context.Context) (*RaftStatus, error) {
	return into[RaftStatus](ctx, c, get(Version, "admin", "raft-status"))
}

// AddPeer adds a replica, which votes once it is stable (operators only).
func (c *Client) AddPeer(ctx context.Context, id, address string) error {
	cl, err := post(AddPeer{ID: id, Address: address}, Version, "admin", "raft", "peers")
	if err != nil {
		return err
	}
	return c.done(ctx, cl)
}

// RemoveRouter refuses a router of databases from now on (operators only).
func (c *Client) RemoveRouter(ctx context.Context, name string) error {
	return c.done(ctx, remove(Version, "admin", "routers", name))
}

// RemovePeer removes a replica from the members (operators only).
func (c *Client) RemovePeer(ctx context.Context, id string) error {
	return c.done(ctx, remove(Version, "admin", "raft", "peers", id))
}

// TransferLeadership transfers leadership to a member, or to the most up-to-date one
// if to is empty (operators only).
func (c *Client) TransferLeadership(ctx context.Context, to string) error {
	cl, err := post(TransferLeadership{To: to}, Version, "admin", "raft", "transfer-leadership")
	if err != nil {
		return err
	}
	return c.done(ctx, cl)
}

// Backup writes a backup of the control store to w (operators only).
func (c *Client) Backup(ctx context.Context, w io.Writer) error {
	resp, err := c.do(ctx, get(Version, "admin", "raft", "snapshot"))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(w, resp.Body)
	return err
}

// Restore replaces everything in the control store with a backup of size bytes (-1: until
// the end of backup; operators only). A backup with secrets that the cluster's sealing keys
// do not open is refused.
func (c *Client) Restore(ctx context.Context, backup io.Reader, size int64) error {
	return c.done(ctx, restore(backup, size))
}

// RestoreWithoutKeys is Restore also of a backup with secrets that the cluster's sealing keys
// do not open: they are lost (operators only).
func (c *Client) RestoreWithoutKeys(ctx context.Context, backup io.Reader, size int64) error {
	cl := restore(backup, size)
	cl.query = url.Values{"without_keys": {"true"}}
	return c.done(ctx, cl)
}

func restore(backup io.Reader, size int64) call {
	return call{
		method: http.MethodPost,
		path:   join([]string{Version, "admin", "raft", "restore"}),
		header: http.Header{"Content-Type": {"application/octet-stream"}},
		reader: backup,
		size:   size,
	}
}

// AcceptRestore lets hosts remove at once what the restored backup does not know;
// otherwise it is kept for an hour (operators only).
func (c *Client) AcceptRestore(ctx context.Context) error {
	return c.done(ctx, remove(Version, "admin", "raft", "restore"))
}

// ListAgents returns one page of the hosts (operators only).
func (c *Client) ListAgents(ctx context.Context, p Page) ([]Agent, string, error) {
	return page[Agent](ctx, c, p, Version, "admin", "agents")
}

// AgentEvents returns a host's events that belong to no sandbox, oldest first
// (operators only).
func (c *Client) AgentEvents(ctx context.Context, id string, q EventQuery) ([]Event, error) {
	out, err := into[[]Event](ctx, c, q.call(Version, "admin", "agents", id, "events"))
	if err != nil {
		return nil, err
	}
	return *out, nil
}

// DrainAgent keeps new sandboxes away from a host (operators only).
func (c *Client) DrainAgent(ctx context.Context, id string) (*Agent, error) {
	return c.agentCall(ctx, id, "drain")
}

// GetAgent returns one host (operators only).
func (c *Client) GetAgent(ctx context.Context, id string) (*Agent, error) {
	return into[Agent](ctx, c, get(Version, "admin", "agents", id))
}

// EvacuateAgent drains a host and has what sleeps or can sleep on it moved to others.
// It returns at once; GetAgent tells how far it has come. Again, it tries again what
// could not be moved (operators only).
func (c *Client) EvacuateAgent(ctx context.Context, id string, in EvacuateAgent) (*Agent, error) {
	cl, err := post(in, Version, "admin", "agents", id, "evacuate")
	if err != nil {
		return nil, err
	}
	cl.safe = true // repeating it changes nothing
	return into[Agent](ctx, c, cl)
}

// Rebalance begins to move what sleeps on the fuller hosts to the emptier ones, or only
// tells what it would move. It returns at once; GetRebalancing tells how far it has come.
// Again, it tries again what could not be moved (operators only).
func (c *Client) Rebalance(ctx context.Context, in Rebalance) (*Rebalancing, error) {
	cl, err := post(in, Version, "admin", "rebalance")
	if err != nil {
		return nil, err
	}
	cl.safe = true // repeating it changes nothing
	return into[Rebalancing](ctx, c, cl)
}

// GetRebalancing returns how even hosts are, and how far the last rebalancing has come
// (operators only).
func (c *Client) GetRebalancing(ctx context.Context) (*Rebalancing, error) {
	return into[Rebalancing](ctx, c, get(Version, "admin", "rebalance"))
}

// StopRebalancing gives up a rebalancing; what is under way still arrives (operators only).
func (c *Client) StopRebalancing(ctx context.Context) error {
	return c.done(ctx, remove(Version, "admin", "rebalance"))
}

// UndrainAgent allows new sandboxes on a host again (operators only).
func (c *Client) UndrainAgent(ctx context.Context, id string) (*Agent, error) {
	return c.agentCall(ctx, id, "undrain")
}

func (c *Client) agentCall(ctx context.Context, id, verb string) (*Agent, error) {
	cl, err := post(Empty{}, Version, "admin", "agents", id, verb)
	if err != nil {
		return nil, err
	}
	cl.safe = true // repeating it changes nothing
	return into[Agent](ctx, c, cl)
}

// RemoveAgent forgets a host (operators only).
func (c *Client) RemoveAgent(ctx context.Context, id string) error {
	return c.done(ctx, remove(Version, "admin", "agents", id))
}

// CreateJoinToken creates a token with which one host can join (operators only).
func (c *Client) CreateJoinToken(ctx context.Context, in CreateJoinToken) (*JoinToken, error) {
	cl, err := post(in, Version, "admin", "join-tokens")
	if err != nil {
		return nil, err
	}
	return into[JoinToken](ctx, c, cl)
}
