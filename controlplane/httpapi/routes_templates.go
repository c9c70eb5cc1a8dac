package httpapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
)

// Templates are the use cases of /v1/templates and /v1/builds.
type Templates interface {
	List(ctx context.Context, c core.Caller, o core.ListOptions) (page []api.Template, next string, err error)
	Get(ctx context.Context, c core.Caller, name string) (api.Template, error)
	Build(ctx context.Context, c core.Caller, in api.BuildTemplate, i core.Idempotency) (api.Build, error)
	Delete(ctx context.Context, c core.Caller, name string) error
	ListBuilds(ctx context.Context, c core.Caller, name string, o core.ListOptions) (page []api.Build, next string, err error)
	GetBuild(ctx context.Context, c core.Caller, id string) (api.Build, error)
	BuildLogs(ctx context.Context, c core.Caller, id string) (io.ReadCloser, error)
	FollowBuildLogs(ctx context.Context, c core.Caller, id string) (core.Follower[string], error)
}

// templateRoutes are the routes of templates and their builds.
func templateRoutes() []route {
	return []route{
		{method: get, path: "/v1/templates", access: workspace, handle: (*API).listTemplates, doc: operation{
			id: "listTemplates", tag: "Templates", summary: "List templates, newest first", list: true,
			detail: "Those of the hosts' operator, which are everybody's, and the organization's own.",
			status: 200, answer: []api.Template{exampleTemplate},
		}},
		{method: get, path: "/v1/templates/:name", access: workspace, handle: (*API).getTemplate, doc: operation{
			id: "getTemplate", tag: "Templates", summary: "Read one template", status: 200, answer: exampleTemplate,
		}},
		{method: post, path: "/v1/templates/build", access: workspace, handle: (*API).buildTemplate, doc: operation{
			id: "buildTemplate", tag: "Templates", summary: "Build a template",
			detail: "Starts from another template or an OCI image: `files` are written, the steps of `run` run in a guest, `start` is started, and " +
				"once `ready` holds the guest is stored with its memory. What is not given is as in the template that it is made from. A build that " +
				"fails leaves the template's earlier one in place. The answer comes before the build is done: follow its log.",
			idempotent: true, body: exampleBuildTemplate, status: 202, answer: exampleBuild,
			failures: []apierror.Error{
				{Code: apierror.EInvalid, Message: "name is required"},
				{Code: apierror.EInvalid, Message: "invalid name", Detail: "a template's name has up to 50 of a-z, 0-9, '.', '_' and '-', and begins with a letter or digit"},
				{Code: apierror.EInvalid, Message: "from is required"},
				{Code: apierror.EInvalid, Message: "invalid from", Detail: "an image reference has up to 512 printable characters"},
				{Code: apierror.EInvalid, Message: "unknown template"},
				{Code: apierror.EInvalid, Message: "template is not ready"},
				{Code: apierror.EInvalid, Message: "invalid run", Detail: "run[0] is empty or contains a NUL character"},
				{Code: apierror.EInvalid, Message: "invalid files", Detail: `"../x" is not a clean absolute path`},
				{Code: apierror.EInvalid, Message: "invalid start"},
				{Code: apierror.EInvalid, Message: "invalid ready", Detail: "neither port nor cmd"},
				{Code: apierror.EInvalid, Message: "invalid env"},
				{Code: apierror.EInvalid, Message: "invalid cpu", Detail: "cpu must be from 1 to 32"},
				{Code: apierror.EInvalid, Message: "invalid memory_mb", Detail: "memory_mb must be from 256 to 262144"},
				{Code: apierror.EInvalid, Message: "invalid disk_mb", Detail: "disk_mb must be from 256 to 4194304"},
				{Code: apierror.EForbidden, Message: "account suspended"},
				{Code: apierror.EConflict, Message: "template name is taken"},
				{Code: apierror.EConflict, Message: "template is being built"},
				{Code: apierror.ETooLarge, Message: "request too large"},
				{Code: apierror.ERateLimited, Message: "template quota exceeded", Fields: map[string]any{"templates_used": 200, "templates_max": 200}},
				{Code: apierror.ERateLimited, Message: "too many builds at once"},
			},
		}},
		{method: del, path: "/v1/templates/:name", access: workspace, handle: (*API).deleteTemplate, doc: operation{
			id: "deleteTemplate", tag: "Templates", summary: "Delete a template and its builds", status: 204,
			failures: []apierror.Error{
				{Code: apierror.EForbidden, Message: "template is not yours"},
				{Code: apierror.EConflict, Message: "template in use", Detail: "a sandbox is made from it"},
			},
		}},
		{method: get, path: "/v1/templates/:name/builds", access: workspace, handle: (*API).listBuilds, doc: operation{
			id: "listBuilds", tag: "Templates", summary: "List the builds of a template, newest first", list: true,
			status: 200, answer: []api.Build{exampleBuild},
		}},
		{method: get, path: "/v1/builds/:id", access: workspace, handle: (*API).getBuild, doc: operation{
			id: "getBuild", tag: "Templates", summary: "Read one build", status: 200, answer: exampleBuild,
		}},
		{method: get, path: "/v1/builds/:id/logs", access: workspace, handle: (*API).showBuildLogs, doc: operation{
			id: "buildLogs", tag: "Templates", summary: "Follow what a build says, until it ends",
			detail: "Server-sent events: `log` with a BuildLog for each line, then one `end` with a BuildEnd, or `error` with an Error when " +
				"the stream breaks off. To a request that accepts `text/plain` and no events: the lines there are, as text.",
			status: 200, answerType: typeEvents, acceptType: "text/plain",
			events:   map[string]any{"log": api.BuildLog{}, "end": api.BuildEnd{}, "error": api.ErrorBody{}},
			failures: []apierror.Error{manyStreams, {Code: apierror.EBadGateway, Message: "agent unreachable"}},
		}},
	}
}

func (a *API) listTemplates(c *gin.Context) error {
	o, err := listOptions(c)
	if err != nil {
		return err
	}
	rows, next, err := a.cfg.Templates.List(c.Request.Context(), callerOf(c), o)
	if err != nil {
		return err
	}
	return page(c, o, rows, next)
}

func (a *API) getTemplate(c *gin.Context) error {
	name, err := pathID(c, "name")
	if err != nil {
		return err
	}
	out, err := a.cfg.Templates.Get(c.Request.Context(), callerOf(c), name)
	if err != nil {
		return err
	}
	return ok(c, out)
}

func (a *API) buildTemplate(c *gin.Context) error {
	in, key, err := bindCreate[api.BuildTemplate](c)
	if err != nil {
		return err
	}
	out, err := a.cfg.Templates.Build(c.Request.Context(), callerOf(c), in, key)
	if err != nil {
		return err
	}
	return accepted(c, out)
}

func (a *API) deleteTemplate(c *gin.Context) error {
	name, err := pathID(c, "name")
	if err != nil {
		return err
	}
	if err := a.cfg.Templates.Delete(c.Request.Context(), callerOf(c), name); err != nil {
		return err
	}
	return noContent(c)
}

func (a *API) listBuilds(c *gin.Context) error {
	name, err := pathID(c, "name")
	if err != nil {
		return err
	}
	o, err := listOptions(c)
	if err != nil {
		return err
	}
	rows, next, err := a.cfg.Templates.ListBuilds(c.Request.Context(), callerOf(c), name, o)
	if err != nil {
		return err
	}
	return page(c, o, rows, next)
}

func (a *API) getBuild(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	out, err := a.cfg.Templates.GetBuild(c.Request.Context(), callerOf(c), id)
	if err != nil {
		return err
	}
	return ok(c, out)
}

func (a *API) showBuildLogs(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	ctx, caller := c.Request.Context(), callerOf(c)
	if accept := c.GetHeader("Accept"); strings.Contains(accept, "text/plain") && !strings.Contains(accept, typeEvents) {
		text, err := a.cfg.Templates.BuildLogs(ctx, caller, id)
		if err != nil {
			return err
		}
		defer text.Close()
		c.Header("Content-Type", "text/plain; charset=utf-8")
		return passOn(c, http.StatusOK, text, false)
	}
	lines, err := a.cfg.Templates.FollowBuildLogs(ctx, caller, id)
	if err != nil {
		return err
	}
	log := &buildLog{lines: lines, end: func() (api.Build, error) { return a.cfg.Templates.GetBuild(ctx, caller, id) }}
	return follow(c, log, func(e *events, m buildMessage) error { return e.send(m.event, "", m.data) })
}

// buildMessage is one event of a build's log stream.
type buildMessage struct {
	event string
	data  any
}

// buildLog follows a build's lines, and adds its end.
type buildLog struct {
	lines core.Follower[string]
	end   func() (api.Build, error)
	ended bool
}

// Next implements core.Follower.
func (l *buildLog) Next() (buildMessage, error) {
	if l.ended {
		return buildMessage{}, io.EOF
	}
	line, err := l.lines.Next()
	if err == nil {
		return buildMessage{"log", api.BuildLog{Line: line}}, nil
	}
	if !errors.Is(err, io.EOF) {
		return buildMessage{}, err
	}
	l.ended = true
	b, err := l.end()
	if err != nil {
		return buildMessage{}, err
	}
	return buildMessage{"end", api.BuildEnd{Status: b.Status, Error: b.Error}}, nil
}

// Close implements core.Follower.
func (l *buildLog) Close() error { return l.lines.Close() }
