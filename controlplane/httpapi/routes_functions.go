package httpapi

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
)

// Functions are the use cases of /v1/functions.
type Functions interface {
	Deployed
	Create(ctx context.Context, c core.Caller, in api.CreateFunction, i core.Idempotency) (api.Function, error)
	Get(ctx context.Context, c core.Caller, id string) (api.Function, error)
	List(ctx context.Context, c core.Caller, o core.ListOptions) (page []api.Function, next string, err error)
	Patch(ctx context.Context, c core.Caller, id string, in api.PatchFunction) (api.Function, error)

	DeployFiles(ctx context.Context, c core.Caller, id string, files map[string]string, i core.Idempotency) (api.Deployment, error)
	// DeployArchive deploys a tar.gz.
	DeployArchive(ctx context.Context, c core.Caller, id string, tarball io.Reader, i core.Idempotency) (api.Deployment, error)
	// Invocable refuses what no invocation can do.
	Invocable(ctx context.Context, c core.Caller, id string) error
}

const (
	// maxCode is the size of the largest code that may be uploaded, in bytes.
	maxCode = 50 << 20
	// maxCodeBody is the largest body with files as JSON: 8 MiB of texts, escaped.
	maxCodeBody = 12 << 20
)

// functionRoutes are the routes of functions. Their deployments, logs and variables are
// those of apps.
func functionRoutes() []route {
	suspended := apierror.Error{Code: apierror.EForbidden, Message: "account suspended"}
	taken := apierror.Error{Code: apierror.EConflict, Message: "function already exists", Detail: "its id is " + exampleNewFunction.ID}
	settings := append(refusals(apierror.EInvalid, "name is required", "env must be a string map"),
		apierror.Error{Code: apierror.EInvalid, Message: "invalid timeout_seconds", Detail: "want an integer from 1 to 240"}, taken)
	conflict := func(message, detail string) apierror.Error {
		return apierror.Error{Code: apierror.EConflict, Message: message, Detail: detail}
	}
	away := apierror.Error{Code: apierror.EBadGateway, Message: "agent unreachable"}
	out := []route{
		{post, "/v1/functions", workspace, (*API).createFunction, operation{
			id: "createFunction", tag: "Functions", summary: "Create a function",
			detail:     "Stores the settings: deploy its code next.",
			idempotent: true, body: exampleCreateFunction, status: 201, answer: exampleNewFunction,
			failures: append(settings, apierror.Error{Code: apierror.EInvalid, Message: "invalid runtime", Detail: "want python or node"}, suspended,
				apierror.Error{Code: apierror.ERateLimited, Message: "max functions reached", Fields: map[string]any{"max": 100, "active": 100}}),
		}},
		{get, "/v1/functions", workspace, (*API).listFunctions, operation{
			id: "listFunctions", tag: "Functions", summary: "List functions, newest first", list: true, status: 200, answer: []api.Function{exampleFunction},
		}},
		{get, "/v1/functions/:id", workspace, ofFunction((*API).getFunction), operation{
			id: "getFunction", tag: "Functions", summary: "Read one function", status: 200, answer: exampleFunction,
		}},
		{patch, "/v1/functions/:id", workspace, ofFunction((*API).patchFunction), operation{
			id: "patchFunction", tag: "Functions", summary: "Change the settings of a function",
			detail: "What is absent stays as it is; null is the default. What runs goes on as it is until the next deployment, or the next wake.",
			body:   examplePatchFunction, status: 200, answer: exampleFunction, failures: settings,
		}},
		{del, "/v1/functions/:id", workspace, ofFunction((*API).deleteApp), operation{
			id: "deleteFunction", tag: "Functions", summary: "Delete a function with its code, deployments and variables", status: 204, also: goesOn,
		}},
		{post, "/v1/functions/:id/deploy", workspace, ofFunction((*API).deployFunction), operation{
			id: "deployFunction", tag: "Functions", summary: "Deploy the code of a function",
			detail: "Files as JSON, or a tar.gz of up to 50 MiB, with `handler.py`, or `handler.mjs`, `handler.js` or `handler.cjs`, at its top. " +
				"What `requirements.txt` or `package.json` name is installed. The code that is live serves until the new one answers, and goes on if it fails.",
			idempotent: true,
			body:       api.DeployFunction{Files: api.StringMap{"handler.py": "def handler(request):\n    return {\"hello\": request.query.get(\"name\", \"world\")}\n"}}, bodyType: "application/gzip",
			status: 202, answer: exampleFunctionDeployment,
			failures: []apierror.Error{
				{Code: apierror.EInvalid, Message: "invalid code", Detail: "there is no handler.py at its top"},
				{Code: apierror.EInvalid, Message: errNoFiles.Message}, {Code: apierror.ETooLarge, Message: "code too large", Detail: "the files of a function have at most 250 MiB together"},
				suspended, {Code: apierror.EBadGateway, Message: "no available compute node"}, away,
				{Code: apierror.EInsufficient, Message: "insufficient host disk space"},
			},
		}},
		{get, "/v1/functions/:id/deploys", workspace, ofFunction((*API).listDeployments), operation{
			id: "listFunctionDeployments", tag: "Functions", summary: "List the deployments of a function, newest first", list: true,
			status: 200, answer: []api.Deployment{exampleFunctionDeployment},
		}},
		{get, "/v1/functions/:id/deploys/:deploy", workspace, ofFunction(ofDeployment((*API).getDeployment)), operation{
			id: "getFunctionDeployment", tag: "Functions", summary: "Read one deployment of a function", status: 200, answer: exampleFunctionDeployment,
		}},
		{post, "/v1/functions/:id/deploys/:deploy/cancel", workspace, ofFunction(ofDeployment((*API).cancelDeployment)), operation{
			id: "cancelFunctionDeployment", tag: "Functions", summary: "Cancel a deployment of a function that has not ended",
			body: api.Empty{}, status: 200, answer: exampleFunctionDeployment, failures: []apierror.Error{conflict("deployment has ended", "it is live")},
		}},
		{get, "/v1/functions/:id/deploys/:deploy/logs", workspace, ofFunction(ofDeployment((*API).followDeployment)), operation{
			id: "functionDeploymentLogs", tag: "Functions", summary: "Follow the log of a function's deployment, from its beginning, until it ends",
			detail: "Server-sent events, as of an app's deployment.",
			status: 200, answerType: typeEvents,
			events:   map[string]any{"stdout": api.LogLine{}, "stderr": api.LogLine{}, "end": api.Deployment{}, "error": api.ErrorBody{}},
			failures: []apierror.Error{atOnce("logs of apps", 100), away},
		}},
		{post, "/v1/functions/:id/rollback", workspace, ofFunction((*API).rollBackApp), operation{
			id: "rollbackFunction", tag: "Functions", summary: "Roll back to an earlier deployment of a function",
			idempotent: true, body: api.RollBackApp{}, status: 202, answer: exampleFunctionDeployment,
			failures: []apierror.Error{
				conflict("nothing to roll back to", "no deployment was live before the present one"), conflict("deployment was never live", "it is failed"),
				conflict("deployment cannot be rolled back to", "its artifact and its source are gone"), suspended,
			},
		}},
		{get, "/v1/functions/:id/logs", workspace, ofFunction((*API).showAppLogs), operation{
			id: "functionLogs", tag: "Functions", summary: "Read what a function has written",
			detail: "What its handler wrote, a line for each invocation, and the traces of its errors. Text, or with `follow` server-sent events named `stdout` with a LogLine.",
			query: []parameter{
				{name: "tail", description: "At most so many lines of those that are there.", schema: anInteger(1, math.MaxInt32)},
				toFollow,
			},
			status: 200, answerType: "text/plain", acceptType: typeEvents, events: map[string]any{
				"stdout": api.LogLine{}, "stderr": api.LogLine{}, "error": api.ErrorBody{},
			},
			failures: append(refusals(apierror.EInvalid, "invalid tail", "invalid follow"), atOnce("logs of apps", 100), away),
		}},
		{get, "/v1/functions/:id/env", workspace, ofFunction((*API).listVariables), operation{
			id: "listFunctionEnv", tag: "Functions", summary: "List the environment variables of a function, with secret values masked",
			status: 200, answer: []api.AppVariable{exampleVariable},
		}},
		{put, "/v1/functions/:id/env/:key", workspace, ofFunction((*API).putVariable), operation{
			id: "putFunctionEnv", tag: "Functions", summary: "Set an environment variable of a function",
			detail: "The next deployment or wake has it. A secret one is masked when it is read, and in logs.",
			body:   api.PutAppVariable{Value: "sk_live_4242", Secret: new(true)}, status: 200, answer: exampleVariable,
			failures: []apierror.Error{{Code: apierror.EInvalid, Message: errNoValue.Message}},
		}},
		{del, "/v1/functions/:id/env/:key", workspace, ofFunction((*API).deleteVariable), operation{
			id: "deleteFunctionEnv", tag: "Functions", summary: "Remove an environment variable of a function", status: 204,
		}},
	}
	return append(out, invokeRoutes()...)
}

// A request that pathInvoke matches is passed on, with any method, to the handler of a function;
// pathInvokeRoot is its path "/" without the slash.
const (
	pathInvokeRoot = "/v1/functions/:id/invoke"
	pathInvoke     = pathInvokeRoot + "/*rest"
)

// invokeRoutes are the invocations, with the methods that the document can name.
func invokeRoutes() []route {
	var out []route
	for _, m := range []struct{ method, path, id string }{
		{post, pathInvokeRoot, "invokeFunction"},
		{get, pathInvokeRoot, "readFunction"},
		{get, pathInvoke, "getFromFunction"}, {post, pathInvoke, "postToFunction"},
		{put, pathInvoke, "putToFunction"}, {patch, pathInvoke, "patchAtFunction"},
		{del, pathInvoke, "deleteAtFunction"}, {http.MethodOptions, pathInvoke, "optionsOfFunction"},
	} {
		doc := operation{
			id: m.id, tag: "Functions", summary: fmt.Sprintf("Invoke a function with a %s", m.method), action: writing,
			detail: "The handler gets the method, the path after `invoke`, the query, the headers, but the Authorization header and cookies, and the body, of up to " +
				"10 MiB. Its answer is the answer. A function that sleeps is woken first. What fails in it is a 500, with the last lines of its log as `log`.",
			proxied: true, status: 200, answerType: "*/*",
			failures: append(ceilingRefusals(),
				apierror.Error{Code: apierror.ENotFound, Message: "no code deployed yet"}, apierror.Error{Code: apierror.EInternal, Message: "the function failed", Fields: map[string]any{"log": []string{"KeyError: 'name'"}}},
				apierror.Error{Code: apierror.EBadGateway, Message: "agent unreachable"}),
		}
		if m.method != get && m.method != http.MethodOptions {
			doc.bodyType = "application/octet-stream"
		}
		out = append(out, route{m.method, m.path, workspace, ofFunction((*API).invokeFunction), doc})
	}
	return out
}

var errNoFiles = &apierror.Error{Code: apierror.EInvalid, Message: "files is required", Detail: `send {"files": {"<name>": "<text>"}}, or a tar.gz with Content-Type: application/gzip`}

func (a *API) createFunction(c *gin.Context) error {
	in, key, err := bindCreate[api.CreateFunction](c)
	if err != nil {
		return err
	}
	if a.cfg.Functions == nil {
		return apierror.NotFound()
	}
	f, err := a.cfg.Functions.Create(c.Request.Context(), callerOf(c), in, key)
	if err != nil {
		return err
	}
	return created(c, f)
}

func (a *API) listFunctions(c *gin.Context) error {
	o, err := listOptions(c)
	if err != nil {
		return err
	}
	if a.cfg.Functions == nil {
		return page(c, o, []api.Function{}, "")
	}
	rows, next, err := a.cfg.Functions.List(c.Request.Context(), callerOf(c), o)
	if err != nil {
		return err
	}
	return page(c, o, rows, next)
}

func (a *API) getFunction(c *gin.Context, id string) error {
	f, err := a.cfg.Functions.Get(c.Request.Context(), callerOf(c), id)
	if err != nil {
		return err
	}
	return ok(c, f)
}

func (a *API) patchFunction(c *gin.Context, id string) error {
	in, _, err := bind[api.PatchFunction](c, maxJSONBody)
	if err != nil {
		return err
	}
	f, err := a.cfg.Functions.Patch(c.Request.Context(), callerOf(c), id, in)
	if err != nil {
		return err
	}
	return ok(c, f)
}

// deployFunction takes what is an object, whatever it is declared as, for files, and
// anything else for a tar.gz.
func (a *API) deployFunction(c *gin.Context, id string) error {
	if media, _, _ := mime.ParseMediaType(c.GetHeader("Content-Type")); media != "application/json" && firstOf(c) != '{' {
		return a.deployArchive(c, id)
	}
	release, err := a.admitBody(c, maxCodeBody)
	if err != nil {
		return err
	}
	defer release()
	key, err := idempotency(c)
	if err != nil {
		return err
	}
	in, raw, err := bind[api.DeployFunction](c, maxCodeBody)
	if err != nil {
		return err
	}
	if !given(raw, "files") {
		return errNoFiles
	}
	digest := sha256.Sum256(raw)
	key.BodySHA256 = digest[:]
	d, err := a.cfg.Functions.DeployFiles(c.Request.Context(), callerOf(c), id, in.Files, key)
	if err != nil {
		return err
	}
	return accepted(c, d)
}

// firstOf is the first byte of a body, which is read again; 0 where there is none.
func firstOf(c *gin.Context) byte {
	r := c.Request
	if r.ContentLength != 0 {
		setReadDeadline(c, time.Now().Add(bodyTimeout))
	}
	body := bufio.NewReader(r.Body)
	first, err := body.Peek(1)
	pauseBody(c)
	r.Body = struct {
		io.Reader
		io.Closer
	}{body, r.Body}
	if err != nil {
		return 0
	}
	return first[0]
}

// deployArchive passes the body on as it comes, as putAppSource does.
func (a *API) deployArchive(c *gin.Context, id string) error {
	key, err := idempotency(c)
	if err != nil {
		return err
	}
	body := newStream(c, maxCode)
	defer body.leave()
	if c.Request.ContentLength > maxCode {
		drain(c, body)
		return tooLarge(maxCode)
	}
	d, err := a.cfg.Functions.DeployArchive(c.Request.Context(), callerOf(c), id, body, key)
	switch {
	case err != nil && body.failure() != nil:
		return body.failure()
	case err != nil:
		drain(c, body)
		return err
	}
	return accepted(c, d)
}

// invokeFunction passes a request on to a function.
func (a *API) invokeFunction(c *gin.Context, id string) error {
	if a.cfg.Invoke == nil {
		return apierror.NotFound()
	}
	if err := a.cfg.Functions.Invocable(c.Request.Context(), callerOf(c), id); err != nil {
		return err
	}
	_, rest, _ := strings.Cut(strings.TrimPrefix(c.Request.URL.EscapedPath(), "/v1/functions/"), "/invoke/")
	passTo(c, a.cfg.Invoke(id, rest))
	return nil
}
