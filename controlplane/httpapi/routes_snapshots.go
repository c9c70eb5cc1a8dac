package httpapi

import (
	"slices"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
)

// snapshotRoutes are the routes of snapshots. more is an additional error of
// captures of memory.
func snapshotRoutes(more apierror.Error) []route {
	return []route{
		{method: post, path: "/v1/sandboxes/:id/snapshots", access: workspace, handle: (*API).createSnapshot, doc: operation{
			id: "createSnapshot", tag: "Snapshots and forks", summary: "Take a snapshot of a running sandbox: memory, device state and disk",
			detail: "The sandbox is paused for `pause_ms`. If its host has a snapshot store, the answer comes once the snapshot is in it, " +
				"and any host can start from it. Use it as `from_snapshot` of a create.",
			idempotent: true, body: exampleCreateSnapshot, status: 201, answer: exampleSnapshot,
			failures: slices.Concat(captureFailures, []apierror.Error{
				{Code: apierror.EInvalid, Message: "invalid name", Detail: "name has at most 63 characters"},
				more,
				{Code: apierror.EConflict, Message: "snapshot was deleted while it was being created"},
				{Code: apierror.EInternal, Message: "snapshot failed"},
			}),
		}},
		{method: get, path: "/v1/snapshots", access: workspace, handle: (*API).listSnapshots, doc: operation{
			id: "listSnapshots", tag: "Snapshots and forks", summary: "List snapshots, newest first", list: true,
			query:  []parameter{{name: "sandbox_id", description: "Only those of this sandbox.", schema: aFilter}},
			status: 200, answer: []api.Snapshot{exampleSnapshot},
		}},
		{method: get, path: "/v1/snapshots/:id", access: workspace, handle: (*API).getSnapshot, doc: operation{
			id: "getSnapshot", tag: "Snapshots and forks", summary: "Read one snapshot", status: 200, answer: exampleSnapshot,
		}},
		{method: del, path: "/v1/snapshots/:id", access: workspace, handle: (*API).deleteSnapshot, doc: operation{
			id: "deleteSnapshot", tag: "Snapshots and forks", summary: "Delete a snapshot and its stored copy",
			detail: "Sandboxes that were made from it live on.", status: 204, also: goesOn,
		}},
	}
}

func (a *API) createSnapshot(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	in, key, err := bindCreate[api.CreateSnapshot](c)
	if err != nil {
		return err
	}
	out, err := a.cfg.Snapshots.Create(c.Request.Context(), callerOf(c), id, in, key)
	if err != nil {
		return err
	}
	return created(c, out)
}

func (a *API) listSnapshots(c *gin.Context) error {
	o, err := listOptions(c)
	if err != nil {
		return err
	}
	q, err := queryOf(c, "sandbox_id")
	if err != nil {
		return err
	}
	sandboxID, err := filterOf(q, "sandbox_id")
	if err != nil {
		return err
	}
	rows, next, err := a.cfg.Snapshots.List(c.Request.Context(), callerOf(c), sandboxID, o)
	if err != nil {
		return err
	}
	return page(c, o, rows, next, "sandbox_id", sandboxID)
}

func (a *API) getSnapshot(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	out, err := a.cfg.Snapshots.Get(c.Request.Context(), callerOf(c), id)
	if err != nil {
		return err
	}
	return ok(c, out)
}

func (a *API) deleteSnapshot(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	return removed(c, a.cfg.Snapshots.Delete(c.Request.Context(), callerOf(c), id))
}
