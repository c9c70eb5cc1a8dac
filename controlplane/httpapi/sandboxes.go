package httpapi

import (
	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
)

func (a *API) createSandbox(c *gin.Context) error {
	release, err := a.admitBody(c, maxCreateBody)
	if err != nil {
		return err
	}
	defer release()
	in, key, err := bindCreateOf[api.CreateSandbox](c, maxCreateBody)
	if err != nil {
		return err
	}
	sb, err := a.cfg.Sandboxes.Create(c.Request.Context(), callerOf(c), in, key)
	if err != nil {
		return err
	}
	c.Set(keySandboxID, sb.ID)
	return created(c, sb)
}

func (a *API) listSandboxes(c *gin.Context) error {
	o, err := listOptions(c)
	if err != nil {
		return err
	}
	q, err := queryOf(c, "metadata")
	if err != nil {
		return err
	}
	if o.Metadata, err = filterOf(q, "metadata"); err != nil {
		return err
	}
	rows, next, err := a.cfg.Sandboxes.List(c.Request.Context(), callerOf(c), o)
	if err != nil {
		return err
	}
	return page(c, o, rows, next, "metadata", o.Metadata)
}

func (a *API) getSandbox(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	sb, err := a.cfg.Sandboxes.Get(c.Request.Context(), callerOf(c), id)
	if err != nil {
		return err
	}
	return ok(c, sb)
}

func (a *API) deleteSandbox(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	return removed(c, a.cfg.Sandboxes.Delete(c.Request.Context(), callerOf(c), id))
}

func (a *API) execInSandbox(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	in, release, err := a.bindExec(c)
	if err != nil {
		return err
	}
	result, err := a.cfg.Commands.Exec(c.Request.Context(), callerOf(c), id, in)
	release()
	if err != nil {
		return err
	}
	writeExec(c, result)
	return nil
}

// bindExec reads an exec. The caller calls release when it no longer needs it.
func (a *API) bindExec(c *gin.Context) (in api.Exec, release func(), err error) {
	release, err = a.admitBody(c, maxExecBody)
	if err != nil {
		return in, nil, err
	}
	in, _, err = bind[api.Exec](c, maxExecBody)
	if err != nil {
		release()
	}
	return in, release, err
}
