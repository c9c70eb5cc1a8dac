package httpapi

import (
	"context"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/volume"
)

// Volumes are the use cases of /v1/volumes.
type Volumes interface {
	Create(ctx context.Context, c core.Caller, in api.CreateVolume, i core.Idempotency) (api.Volume, error)
	Get(ctx context.Context, c core.Caller, name string) (api.Volume, error)
	List(ctx context.Context, c core.Caller, o core.ListOptions) (page []api.Volume, next string, err error)
	Delete(ctx context.Context, c core.Caller, name string) error
}

// volumeRoutes are the routes of volumes.
func volumeRoutes() []route {
	return []route{
		{method: post, path: "/v1/volumes", access: workspace, handle: (*API).createVolume, doc: operation{
			id: "createVolume", tag: "Volumes", summary: "Make a volume",
			detail: "An ext4 file system on one host, where sandboxes that attach it are placed. It is attached by `volumes` of a create, and " +
				"is free again when that sandbox is deleted. Its size does not change.",
			idempotent: true, body: exampleCreateVolume, status: 201, answer: exampleVolume,
			failures: []apierror.Error{
				{Code: apierror.EInvalid, Message: "name is required"},
				{Code: apierror.EInvalid, Message: "invalid name", Detail: "a volume's name has 1 to 128 printable characters, and is neither . nor .."},
				{Code: apierror.EInvalid, Message: "size_mb must be from 16 to 65536"},
				{Code: apierror.EForbidden, Message: "account suspended"},
				{Code: apierror.EConflict, Message: "volume already exists"},
				{Code: apierror.EConflict, Message: "volume was deleted while it was being created"},
				{Code: apierror.ERateLimited, Message: "volume quota exceeded", Fields: map[string]any{"volume_mb_used": 102144, "volume_mb_max": 102400}},
				{Code: apierror.EInternal, Message: "volume could not be made"},
				{Code: apierror.EBadGateway, Message: "no available compute node"},
				{Code: apierror.EBadGateway, Message: "agent unreachable"},
				{Code: apierror.EInsufficient, Message: "insufficient host storage for volume"},
			},
		}},
		{method: get, path: "/v1/volumes", access: workspace, handle: (*API).listVolumes, doc: operation{
			id: "listVolumes", tag: "Volumes", summary: "List volumes, newest first", list: true,
			status: 200, answer: []api.Volume{exampleVolume},
		}},
		{method: get, path: "/v1/volumes/:name", access: workspace, handle: (*API).getVolume, doc: operation{
			id: "getVolume", tag: "Volumes", summary: "Read one volume", status: 200, answer: exampleVolume,
		}},
		{method: del, path: "/v1/volumes/:name", access: workspace, handle: (*API).deleteVolume, doc: operation{
			id: "deleteVolume", tag: "Volumes", summary: "Delete a volume and all that is in it", status: 204, also: goesOn,
			failures: []apierror.Error{{Code: apierror.EConflict, Message: "volume in use", Detail: "it is attached to a sandbox; delete that first"}},
		}},
	}
}

func (a *API) createVolume(c *gin.Context) error {
	in, key, err := bindCreate[api.CreateVolume](c)
	if err != nil {
		return err
	}
	out, err := a.cfg.Volumes.Create(c.Request.Context(), callerOf(c), in, key)
	if err != nil {
		return err
	}
	return created(c, out)
}

func (a *API) listVolumes(c *gin.Context) error {
	o, err := listOptions(c)
	if err != nil {
		return err
	}
	rows, next, err := a.cfg.Volumes.List(c.Request.Context(), callerOf(c), o)
	if err != nil {
		return err
	}
	return page(c, o, rows, next)
}

func (a *API) getVolume(c *gin.Context) error {
	name := c.Param("name")
	if !volume.IsName(name) {
		return apierror.NotFound()
	}
	out, err := a.cfg.Volumes.Get(c.Request.Context(), callerOf(c), name)
	if err != nil {
		return err
	}
	return ok(c, out)
}

func (a *API) deleteVolume(c *gin.Context) error {
	name := c.Param("name")
	if !volume.IsName(name) {
		return apierror.NotFound()
	}
	return removed(c, a.cfg.Volumes.Delete(c.Request.Context(), callerOf(c), name))
}
