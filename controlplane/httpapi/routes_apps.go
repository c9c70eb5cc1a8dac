package httpapi

import (
	"context"
	"errors"
	"io"
	"math"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// Apps are the use cases of /v1/apps.
type Apps interface {
	Deployed
	Create(ctx context.Context, c core.Caller, in api.CreateApp, i core.Idempotency) (api.App, error)
	Get(ctx context.Context, c core.Caller, id string) (api.App, error)
	List(ctx context.Context, c core.Caller, o core.ListOptions) (page []api.App, next string, err error)
	Patch(ctx context.Context, c core.Caller, id string, in api.PatchApp) (api.App, error)

	Deploy(ctx context.Context, c core.Caller, id string, in api.CreateDeployment, i core.Idempotency) (api.Deployment, error)
	// PutSource keeps a tar.gz of an app's source.
	PutSource(ctx context.Context, c core.Caller, id string, tarball io.Reader) (api.SourceUpload, error)
}

// Deployed are the use cases that apps and functions have in common.
type Deployed interface {
	Delete(ctx context.Context, c core.Caller, id string) error

	Deployments(ctx context.Context, c core.Caller, id string, o core.ListOptions) (page []api.Deployment, next string, err error)
	Deployment(ctx context.Context, c core.Caller, id, deploymentID string) (api.Deployment, error)
	CancelDeployment(ctx context.Context, c core.Caller, id, deploymentID string) (api.Deployment, error)
	RollBack(ctx context.Context, c core.Caller, id string, in api.RollBackApp, i core.Idempotency) (api.Deployment, error)
	// DeploymentLogs returns a deployment's log from its beginning, and what is to
	// come until the deployment has ended.
	DeploymentLogs(ctx context.Context, c core.Caller, id, deploymentID string) (core.Follower[sandbox.LogLine], error)

	Logs(ctx context.Context, c core.Caller, id string, tail int) (io.ReadCloser, error)
	FollowLogs(ctx context.Context, c core.Caller, id string, tail int) (core.Follower[sandbox.LogLine], error)

	Env(ctx context.Context, c core.Caller, id string) ([]api.AppVariable, error)
	PutVariable(ctx context.Context, c core.Caller, id, key string, in api.PutAppVariable) (api.AppVariable, error)
	DeleteVariable(ctx context.Context, c core.Caller, id, key string) error
	ImportEnv(ctx context.Context, c core.Caller, id string, in api.ImportAppEnv) ([]api.AppVariable, error)
}

// maxSource is the size of the largest source that may be uploaded, in bytes.
const maxSource = 512 << 20

// atOnce is the refusal of what a workspace has too many of open.
func atOnce(what string, most int) apierror.Error {
	return apierror.Error{Code: apierror.ERateLimited, Message: "too many " + what + " at once", Fields: map[string]any{"max": most, "active": most}}
}

// manyStreams is the refusal of one more stream to follow.
var manyStreams = atOnce("streams", 100)

// appRoutes are the routes of apps and their deployments.
func appRoutes() []route {
	conflict := func(message, detail string) apierror.Error {
		return apierror.Error{Code: apierror.EConflict, Message: message, Detail: detail}
	}
	suspended := apierror.Error{Code: apierror.EForbidden, Message: "account suspended"}
	settings := append(refusals(apierror.EInvalid, "name is required", "git_url is required", "env must be a string map", "idle_timeout_seconds must be >= 60"),
		apierror.Error{Code: apierror.EInvalid, Message: "invalid git_url", Detail: "want an https:// clone URL"},
		apierror.Error{Code: apierror.EInvalid, Message: "invalid root_directory", Detail: `it must have no ".." in it`},
		apierror.Error{Code: apierror.EInvalid, Message: "invalid max_instances", Detail: "want an integer from 1 to 3"})
	badRef := apierror.Error{Code: apierror.EInvalid, Message: "invalid git_ref", Detail: "it is no name of a branch, a tag or a commit"}
	noSource := conflict("no source uploaded yet", "the source of this app is uploaded: send a tar.gz to PUT /v1/apps/"+exampleNewApp.ID+"/source first")
	manyLogs := atOnce("logs of apps", 100)
	away := apierror.Error{Code: apierror.EBadGateway, Message: "agent unreachable"}
	return []route{
		{post, "/v1/apps", workspace, (*API).createApp, operation{
			id: "createApp", tag: "Apps", summary: "Create an app",
			detail: "Stores the settings and builds nothing: deploy it next. With `source` \"upload\" there is no repository, and its source is uploaded. " +
				"`cpu` and `memory_mb` are recorded and have no effect.",
			idempotent: true, body: exampleCreateApp, status: 201, answer: exampleNewApp,
			failures: append(settings, suspended,
				apierror.Error{Code: apierror.ERateLimited, Message: "max apps reached", Fields: map[string]any{"max": 100, "active": 100}},
				apierror.Error{Code: apierror.EBadGateway, Message: "no available compute node"}),
		}},
		{get, "/v1/apps", workspace, (*API).listApps, operation{
			id: "listApps", tag: "Apps", summary: "List apps, newest first", list: true, status: 200, answer: []api.App{exampleApp},
		}},
		{get, "/v1/apps/:id", workspace, ofApp((*API).getApp), operation{
			id: "getApp", tag: "Apps", summary: "Read one app", status: 200, answer: exampleApp,
		}},
		{patch, "/v1/apps/:id", workspace, ofApp((*API).patchApp), operation{
			id: "patchApp", tag: "Apps", summary: "Change the settings of an app",
			detail: "What is absent stays as it is; null is the default. What runs goes on as it was built until the next deployment. After a change of " +
				"`framework`, `install_command`, `build_command`, `start_command`, `root_directory`, `port` or `env`, the next wake builds the app anew. " +
				"A change of `git_url`, `framework`, `runtime` or `root_directory` deletes the caches of its builds.",
			body: examplePatchApp, status: 200, answer: exampleApp, failures: append(settings[:len(settings):len(settings)],
				apierror.Error{Code: apierror.EInvalid, Message: "no updatable fields provided (supported: name, git_url, git_branch, framework, runtime, install_command, build_command, start_command, " +
					"root_directory, env, port, cpu, memory_mb, max_instances, auto_hibernate, idle_timeout_seconds, auto_deploy, previews, fork_previews)"}),
		}},
		{del, "/v1/apps/:id", workspace, ofApp((*API).deleteApp), operation{
			id: "deleteApp", tag: "Apps", summary: "Delete an app with its deployments, variables and uploaded sources", status: 204, also: goesOn,
		}},
		{put, "/v1/apps/:id/source", workspace, ofApp((*API).putAppSource), operation{
			id: "putAppSource", tag: "Apps", summary: "Upload the source of an app, a tar.gz of up to 512 MiB",
			detail:   "Deploy it by its `source_id`. The latest few are kept.",
			bodyType: "application/octet-stream", status: 200, answer: api.SourceUpload{SourceID: "src-p4t5r6sdk7m2qz4xw3v5", SizeBytes: 48213},
			failures: append(refusals(apierror.EInvalid, "invalid source", "incomplete body"), suspended, atOnce("uploads", 4),
				apierror.Error{Code: apierror.ERateLimited, Message: "too many old sources", Fields: map[string]any{"max": 100, "active": 100}},
				apierror.Error{Code: apierror.EUnavailable, Message: "no healthy agent available"}, away,
				apierror.Error{Code: apierror.EInsufficient, Message: "insufficient host disk space"}),
		}},
		{post, "/v1/apps/:id/deploys", workspace, ofApp((*API).deployApp), operation{
			id: "deployApp", tag: "Apps", summary: "Deploy an app",
			detail: "Clones `git_ref`, or takes an uploaded source, builds it in a virtual machine, starts it and, once it answers on its port, sends the traffic there. " +
				"What was live serves until then, and goes on if it fails. One deployment of an app is made at a time; the next is `queued`, and a newer one takes its place. " +
				"What package managers and compilers keep in caches is there in the app's next build; `clear_cache` deletes it first.",
			idempotent: true, body: exampleCreateDeploy, status: 202, answer: exampleNewDeployment,
			failures: []apierror.Error{
				badRef, {Code: apierror.EInvalid, Message: "invalid source_id", Detail: "an uploaded source has no git_ref"}, noSource, suspended,
				{Code: apierror.EBadGateway, Message: "no available compute node"},
			},
		}},
		{get, "/v1/apps/:id/deploys", workspace, ofApp((*API).listDeployments), operation{
			id: "listDeployments", tag: "Apps", summary: "List the deployments of an app, newest first", list: true,
			detail: "Those that have not ended, and the latest 100 that have.",
			status: 200, answer: []api.Deployment{exampleLiveDeployment},
		}},
		{get, "/v1/apps/:id/deploys/:deploy", workspace, ofApp(ofDeployment((*API).getDeployment)), operation{
			id: "getDeployment", tag: "Apps", summary: "Read one deployment", status: 200, answer: exampleLiveDeployment,
		}},
		{post, "/v1/apps/:id/deploys/:deploy/cancel", workspace, ofApp(ofDeployment((*API).cancelDeployment)), operation{
			id: "cancelDeployment", tag: "Apps", summary: "Cancel a deployment that has not ended",
			detail: "It has failed, with the error `cancelled`. What was live goes on.",
			body:   api.Empty{}, status: 200, answer: exampleCancelled,
			failures: []apierror.Error{conflict("deployment has ended", "it is live")},
		}},
		{get, "/v1/apps/:id/deploys/:deploy/logs", workspace, ofApp(ofDeployment((*API).followDeployment)), operation{
			id: "deploymentLogs", tag: "Apps", summary: "Follow the log of a deployment, from its beginning, until it ends",
			detail: "Server-sent events: `stdout` and `stderr` with a LogLine, then one `end` with the Deployment, or `error` with an Error when the stream " +
				"breaks off. The values of secret variables are left out. Of one that has ended, the log is kept with it, at most the last 4 MiB.",
			status: 200, answerType: typeEvents,
			events:   map[string]any{"stdout": api.LogLine{}, "stderr": api.LogLine{}, "end": api.Deployment{}, "error": api.ErrorBody{}},
			failures: []apierror.Error{manyLogs, away},
		}},
		{post, "/v1/apps/:id/rollback", workspace, ofApp((*API).rollBackApp), operation{
			id: "rollbackApp", tag: "Apps", summary: "Roll back to an earlier deployment",
			detail: "The one that was live before, or the one that is named. The answer is a new deployment, which builds nothing where the artifact " +
				"of the earlier one is kept. To repeat it is to go back to what it has replaced: use an Idempotency-Key, or name the deployment.",
			idempotent: true, body: api.RollBackApp{DeploymentID: exampleDeploymentID}, status: 202, answer: exampleRollback,
			failures: []apierror.Error{
				conflict("nothing to roll back to", "no deployment was live before the present one"), conflict("deployment was never live", "it is failed"),
				conflict("deployment cannot be rolled back to", "its artifact and its source are gone"), suspended,
			},
		}},
		{get, "/v1/apps/:id/runtime-logs", workspace, ofApp((*API).showAppLogs), operation{
			id: "appLogs", tag: "Apps", summary: "Read what an app has written",
			detail: "Of each of its instances since it started, one after the other; of several, each line begins with its instance in brackets. Text, or with `follow` " +
				"server-sent events named `stdout` or `stderr` with a LogLine, also of the instances that come later, until none is left.",
			query: []parameter{
				{name: "tail", description: "At most so many lines of those that are there.", schema: anInteger(1, math.MaxInt32)},
				toFollow,
			},
			status: 200, answerType: "text/plain", acceptType: typeEvents, events: map[string]any{
				"stdout": api.LogLine{}, "stderr": api.LogLine{}, "error": api.ErrorBody{},
			},
			failures: append(refusals(apierror.EInvalid, "invalid tail", "invalid follow"), conflict("app is not running", "its log is in its sandbox, and it has none now"), manyLogs, away),
		}},
	}
}

// ofApp is a handler of a route that names an app.
func ofApp(h func(*API, *gin.Context, string) error) func(*API, *gin.Context) error {
	return func(a *API, c *gin.Context) error {
		id, err := pathID(c, "id")
		if err != nil {
			return err
		}
		if a.cfg.Apps == nil {
			return apierror.NotFound()
		}
		return h(a, c, id)
	}
}

// ofFunction is a handler of a route that names a function.
func ofFunction(h func(*API, *gin.Context, string) error) func(*API, *gin.Context) error {
	return func(a *API, c *gin.Context) error {
		id, err := pathID(c, "id")
		if err != nil {
			return err
		}
		if a.cfg.Functions == nil {
			return apierror.NotFound()
		}
		return h(a, c, id)
	}
}

// deployed is what the request's route is about: apps or functions.
func (a *API) deployed(c *gin.Context) Deployed {
	if strings.HasPrefix(c.FullPath(), "/v1/functions/") {
		return a.cfg.Functions
	}
	return a.cfg.Apps
}

// ofDeployment is a handler of a route that names a deployment of an app or a function.
func ofDeployment(h func(a *API, c *gin.Context, id, deploymentID string) error) func(*API, *gin.Context, string) error {
	return func(a *API, c *gin.Context, id string) error {
		deploymentID, err := pathID(c, "deploy")
		if err != nil {
			return err
		}
		return h(a, c, id, deploymentID)
	}
}

func (a *API) createApp(c *gin.Context) error {
	in, key, err := bindCreate[api.CreateApp](c)
	if err != nil {
		return err
	}
	if a.cfg.Apps == nil {
		return apierror.NotFound()
	}
	app, err := a.cfg.Apps.Create(c.Request.Context(), callerOf(c), in, key)
	if err != nil {
		return err
	}
	return created(c, app)
}

func (a *API) listApps(c *gin.Context) error {
	o, err := listOptions(c)
	if err != nil {
		return err
	}
	if a.cfg.Apps == nil {
		return page(c, o, []api.App{}, "")
	}
	rows, next, err := a.cfg.Apps.List(c.Request.Context(), callerOf(c), o)
	if err != nil {
		return err
	}
	return page(c, o, rows, next)
}

func (a *API) getApp(c *gin.Context, id string) error {
	app, err := a.cfg.Apps.Get(c.Request.Context(), callerOf(c), id)
	if err != nil {
		return err
	}
	return ok(c, app)
}

func (a *API) patchApp(c *gin.Context, id string) error {
	in, _, err := bind[api.PatchApp](c, maxJSONBody)
	if err != nil {
		return err
	}
	app, err := a.cfg.Apps.Patch(c.Request.Context(), callerOf(c), id, in)
	if err != nil {
		return err
	}
	return ok(c, app)
}

func (a *API) deleteApp(c *gin.Context, id string) error {
	return removed(c, a.deployed(c).Delete(c.Request.Context(), callerOf(c), id))
}

// putAppSource passes the body on as it comes. One that is known to be too large is
// refused before any of it is read.
func (a *API) putAppSource(c *gin.Context, id string) error {
	body := newStream(c, maxSource)
	defer body.leave()
	if c.Request.ContentLength > maxSource {
		drain(c, body)
		return tooLarge(maxSource)
	}
	out, err := a.cfg.Apps.PutSource(c.Request.Context(), callerOf(c), id, body)
	switch {
	case err != nil && body.failure() != nil:
		return body.failure()
	case err != nil:
		drain(c, body)
		return err
	}
	return ok(c, out)
}

func (a *API) deployApp(c *gin.Context, id string) error {
	in, key, err := bindCreate[api.CreateDeployment](c)
	if err != nil {
		return err
	}
	d, err := a.cfg.Apps.Deploy(c.Request.Context(), callerOf(c), id, in, key)
	if err != nil {
		return err
	}
	return accepted(c, d)
}

func (a *API) listDeployments(c *gin.Context, id string) error {
	o, err := listOptions(c)
	if err != nil {
		return err
	}
	rows, next, err := a.deployed(c).Deployments(c.Request.Context(), callerOf(c), id, o)
	if err != nil {
		return err
	}
	return page(c, o, rows, next)
}

func (a *API) getDeployment(c *gin.Context, id, deploymentID string) error {
	d, err := a.deployed(c).Deployment(c.Request.Context(), callerOf(c), id, deploymentID)
	if err != nil {
		return err
	}
	return ok(c, d)
}

func (a *API) cancelDeployment(c *gin.Context, id, deploymentID string) error {
	if _, _, err := bind[api.Empty](c, maxJSONBody); err != nil {
		return err
	}
	d, err := a.deployed(c).CancelDeployment(c.Request.Context(), callerOf(c), id, deploymentID)
	if err != nil {
		return err
	}
	return ok(c, d)
}

func (a *API) rollBackApp(c *gin.Context, id string) error {
	in, key, err := bindCreate[api.RollBackApp](c)
	if err != nil {
		return err
	}
	d, err := a.deployed(c).RollBack(c.Request.Context(), callerOf(c), id, in, key)
	if err != nil {
		return err
	}
	return accepted(c, d)
}

func (a *API) followDeployment(c *gin.Context, id, deploymentID string) error {
	ctx, caller := c.Request.Context(), callerOf(c)
	lines, err := a.deployed(c).DeploymentLogs(ctx, caller, id, deploymentID)
	if err != nil {
		return err
	}
	log := &deploymentLog{lines: lines, end: func() (api.Deployment, error) { return a.deployed(c).Deployment(ctx, caller, id, deploymentID) }}
	return follow(c, log, func(e *events, m buildMessage) error { return e.send(m.event, "", m.data) })
}

// deploymentLog follows the lines of a deployment, and adds its end.
type deploymentLog struct {
	lines core.Follower[sandbox.LogLine]
	end   func() (api.Deployment, error)
	ended bool
}

// Next implements core.Follower.
func (l *deploymentLog) Next() (buildMessage, error) {
	if l.ended {
		return buildMessage{}, io.EOF
	}
	line, err := l.lines.Next()
	if err == nil {
		return buildMessage{line.Stream, line.LogLine}, nil
	}
	if !errors.Is(err, io.EOF) {
		return buildMessage{}, err
	}
	l.ended = true
	d, err := l.end()
	if err != nil {
		return buildMessage{}, err
	}
	return buildMessage{"end", d}, nil
}

// Close implements core.Follower.
func (l *deploymentLog) Close() error { return l.lines.Close() }

func (a *API) showAppLogs(c *gin.Context, id string) error { return showLines(c, a.deployed(c), id) }
