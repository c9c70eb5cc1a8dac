package httpapi

import (
	"cmp"
	"context"
	"io"
	"math"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/stall"
)

func (a *API) raftStatus(c *gin.Context) error {
	status, err := a.cfg.Cluster.RaftStatus(c.Request.Context())
	if err != nil {
		return err
	}
	return ok(c, status)
}

func (a *API) addPeer(c *gin.Context) error {
	in, _, err := bind[api.AddPeer](c, maxJSONBody)
	if err != nil {
		return err
	}
	if err := a.cfg.Cluster.AddPeer(c.Request.Context(), in); err != nil {
		return err
	}
	return noContent(c)
}

func (a *API) removePeer(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	if err := a.cfg.Cluster.RemovePeer(c.Request.Context(), id); err != nil {
		return err
	}
	return noContent(c)
}

func (a *API) removeRouter(c *gin.Context) error {
	name, err := pathID(c, "name")
	if err != nil {
		return err
	}
	if err := a.cfg.Cluster.RemoveRouter(c.Request.Context(), name); err != nil {
		return err
	}
	return noContent(c)
}

func (a *API) transferLeadership(c *gin.Context) error {
	in, _, err := bind[api.TransferLeadership](c, maxJSONBody)
	if err != nil {
		return err
	}
	if err := a.cfg.Cluster.TransferLeadership(c.Request.Context(), in); err != nil {
		return err
	}
	return noContent(c)
}

func (a *API) backup(c *gin.Context) error {
	if c.Request.Method == http.MethodHead {
		// Do not create a backup only to send its headers.
		c.Header("Content-Type", backupType)
		c.Status(http.StatusOK)
		c.Writer.WriteHeaderNow()
		return nil
	}
	return a.cfg.Cluster.Backup(c.Request.Context(), &backupWriter{c: c, out: stall.New(c.Writer, stallTimeout)})
}

const backupType = "application/octet-stream"

// backupWriter sends the header with the first byte, so that a backup that fails
// before it is answered with an error.
type backupWriter struct {
	c   *gin.Context
	out io.Writer
}

// Write implements io.Writer.
func (w *backupWriter) Write(p []byte) (int, error) {
	if !w.c.Writer.Written() {
		w.c.Header("Content-Type", backupType)
		w.c.Header("Content-Disposition", `attachment; filename="berth-backup"`)
		w.c.Status(http.StatusOK)
	}
	return w.out.Write(p)
}

func (a *API) restore(c *gin.Context) error {
	q, err := queryOf(c, "without_keys")
	if err != nil {
		return err
	}
	withoutKeys, err := booleanOf(q, "without_keys")
	if err != nil {
		return err
	}
	body := newStream(c, math.MaxInt64)
	defer body.leave()
	if err := a.cfg.Cluster.Restore(c.Request.Context(), body, withoutKeys); err != nil {
		// An incomplete upload must not be reported as a damaged backup.
		return cmp.Or(body.failure(), err)
	}
	return noContent(c)
}

func (a *API) acceptRestore(c *gin.Context) error {
	if err := a.cfg.Cluster.AcceptRestore(c.Request.Context()); err != nil {
		return err
	}
	return noContent(c)
}

func (a *API) listAgents(c *gin.Context) error {
	o, err := listOptions(c)
	if err != nil {
		return err
	}
	rows, next, err := a.cfg.Cluster.Agents(c.Request.Context(), o)
	if err != nil {
		return err
	}
	return page(c, o, rows, next)
}

func (a *API) showAgentEvents(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	q, err := queryOf(c, "tail", "since")
	if err != nil {
		return err
	}
	in, err := eventQuery(c, q)
	if err != nil {
		return err
	}
	found, err := a.cfg.Cluster.AgentEvents(c.Request.Context(), id, in)
	if err != nil {
		return err
	}
	return ok(c, orEmpty(found))
}

func (a *API) drainAgent(c *gin.Context) error {
	return changeAgent(c, a.cfg.Cluster.DrainAgent)
}

func (a *API) getAgent(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	agent, err := a.cfg.Cluster.Agent(c.Request.Context(), id)
	if err != nil {
		return err
	}
	return ok(c, agent)
}

func (a *API) evacuateAgent(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	in, _, err := bind[api.EvacuateAgent](c, maxJSONBody)
	if err != nil {
		return err
	}
	agent, err := a.cfg.Cluster.EvacuateAgent(c.Request.Context(), id, in)
	if err != nil {
		return err
	}
	return ok(c, agent)
}

func (a *API) rebalance(c *gin.Context) error {
	in, _, err := bind[api.Rebalance](c, maxJSONBody)
	if err != nil {
		return err
	}
	out, err := a.cfg.Cluster.Rebalance(c.Request.Context(), in)
	if err != nil {
		return err
	}
	return ok(c, out)
}

func (a *API) showRebalancing(c *gin.Context) error {
	out, err := a.cfg.Cluster.Rebalancing(c.Request.Context())
	if err != nil {
		return err
	}
	return ok(c, out)
}

func (a *API) stopRebalancing(c *gin.Context) error {
	if err := a.cfg.Cluster.StopRebalancing(c.Request.Context()); err != nil {
		return err
	}
	return noContent(c)
}

func (a *API) undrainAgent(c *gin.Context) error {
	return changeAgent(c, a.cfg.Cluster.UndrainAgent)
}

func (a *API) removeAgent(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	if err := a.cfg.Cluster.RemoveAgent(c.Request.Context(), id); err != nil {
		return err
	}
	return noContent(c)
}

func (a *API) createJoinToken(c *gin.Context) error {
	in, key, err := bindCreate[api.CreateJoinToken](c)
	if err != nil {
		return err
	}
	token, err := a.cfg.Cluster.CreateJoinToken(c.Request.Context(), in, key)
	if err != nil {
		return err
	}
	return created(c, token)
}

// changeAgent handles drain and undrain. The request's body is empty, but it must be
// JSON like any other.
func changeAgent(c *gin.Context, change func(context.Context, string) (api.Agent, error)) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	if _, _, err := bind[api.Empty](c, maxJSONBody); err != nil {
		return err
	}
	agent, err := change(c.Request.Context(), id)
	if err != nil {
		return err
	}
	return ok(c, agent)
}
