package httpapi

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
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
		// A whole backup is not made only to tell its headers.
		c.Header("Content-Type", backupType)
		c.Status(http.StatusOK)
		c.Writer.WriteHeaderNow()
		return nil
	}
	return a.cfg.Cluster.Backup(c.Request.Context(), &backupWriter{c: c})
}

const backupType = "application/octet-stream"

// backupWriter sends the header with the first byte, so that a backup that
// fails before it can still be answered with an error.
type backupWriter struct{ c *gin.Context }

// Write implements io.Writer.
func (w *backupWriter) Write(p []byte) (int, error) {
	if !w.c.Writer.Written() {
		w.c.Header("Content-Type", backupType)
		w.c.Header("Content-Disposition", `attachment; filename="berth-backup"`)
		w.c.Status(http.StatusOK)
	}
	_ = http.NewResponseController(w.c.Writer).SetWriteDeadline(time.Now().Add(stallTimeout))
	return w.c.Writer.Write(p)
}

func (a *API) restore(c *gin.Context) error {
	body := &stream{c: c, limit: maxRestoreBody}
	if err := a.cfg.Cluster.Restore(c.Request.Context(), body); err != nil {
		// A backup that did not arrive is not one that is damaged.
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
	in, _, err := bind[api.CreateJoinToken](c, maxJSONBody)
	if err != nil {
		return err
	}
	token, err := a.cfg.Cluster.CreateJoinToken(c.Request.Context(), in)
	if err != nil {
		return err
	}
	return created(c, token)
}

// changeAgent is the body of drain and undrain. The request's own body says
// nothing, but it has to be JSON like any other.
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
