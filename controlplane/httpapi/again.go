package httpapi

import (
	"context"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/core"
)

// againEvery is how long a stream may outlast the right to it.
const againEvery = 30 * time.Second

// whileAllowed ends the request's context once its caller may not make the request any
// more, if the route is one whose answer lasts as long as the client or a tenant's program
// likes: who was removed, or whose key was revoked, does not keep a terminal. The handler's
// end comes before end is called. Most requests that are passed on to programs are short,
// and cost a timer that is stopped.
func (a *API) whileAllowed(c *gin.Context, rt *route) (end func()) {
	if a.cfg.Again == nil || rt.access != workspace || !rt.doc.websocket && !rt.doc.proxied && rt.doc.events == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(c.Request.Context())
	c.Request = c.Request.WithContext(ctx)
	caller, need, on, id := callerOf(c), rt.actionOf(), rt.resourceOf(c), requestID(c)
	if rt.doc.proxied && c.GetHeader("Upgrade") != "" {
		need = core.Write // as passToApp asks of a socket, whatever its method
	}
	var (
		looking sync.Mutex
		ended   bool
		timer   *time.Timer
	)
	look := func() {
		looking.Lock()
		defer looking.Unlock()
		if ended || ctx.Err() != nil {
			return
		}
		now, err := a.cfg.Again(caller)
		if err == nil {
			err = core.Authorize(now, need, on)
		}
		if err != nil {
			a.log.InfoContext(ctx, "a stream ends, because its caller has lost the right to it", "request_id", id, "workspace_id", caller.WorkspaceID, "error", err)
			cancel()
			return
		}
		timer.Reset(againEvery)
	}
	looking.Lock()
	timer = time.AfterFunc(againEvery, look)
	looking.Unlock()
	return func() {
		cancel()
		looking.Lock() // a look that is under way ends first
		defer looking.Unlock()
		ended = true
		timer.Stop()
	}
}
