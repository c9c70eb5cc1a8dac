package httpapi

import (
	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
)

// sandboxRoutes are the routes that create, show, use and delete sandboxes.
func sandboxRoutes() []route {
	return []route{
		{post, "/v1/sandboxes", workspace, (*API).createSandbox, operation{
			id: "createSandbox", tag: "Sandboxes", summary: "Create a sandbox",
			detail: "Answers once the sandbox is running. CPU and memory are the template's: `cpu` and `memory_mb` are " +
				"ignored if sent. Without an Idempotency-Key a create is not idempotent.",
			idempotent: true,
			body:       exampleCreate, status: 201, answer: exampleSandbox,
			failures: []apierror.Error{
				{Code: apierror.EInvalid, Message: "template is required"},
				{Code: apierror.EInvalid, Message: "unknown template", Detail: `no template "bse"; available: base`},
				{Code: apierror.EInvalid, Message: "invalid ttl_seconds", Detail: "ttl_seconds must be from 1 to 31536000"},
				{Code: apierror.EInvalid, Message: "invalid preview", Detail: `preview is "public" or "token"`},
				{Code: apierror.EInvalid, Message: "invalid idempotency key", Detail: "at most 255 characters"},
				{Code: apierror.EInvalid, Message: "env must be a string map", Detail: "env must be an object whose values are strings, not array"},
				{Code: apierror.EInvalid, Message: "invalid env", Detail: "CONFIG has more than 131072 bytes, with its name"},
				errLargeEnvs,
				{Code: apierror.ERateLimited, Message: "too much input at once"},
				{Code: apierror.EForbidden, Message: "account suspended"},
				{Code: apierror.EInvalid, Message: "template does not match the snapshot", Detail: `the snapshot is of template "base"`},
				{Code: apierror.EInvalid, Message: "invalid volumes", Detail: "volumes[0]: mount_path must be an absolute path"},
				{Code: apierror.EInvalid, Message: "invalid volumes", Detail: "mount_path /etc/passwd: not a directory"},
				{Code: apierror.EInvalid, Message: "volumes are on different hosts", Detail: `"logs" is on another host than "data"`},
				{Code: apierror.ENotFound, Message: "not found", Detail: "no such snapshot"},
				{Code: apierror.EConflict, Message: "volume in use", Detail: "data is attached to another sandbox"},
				{Code: apierror.EUnprocessable, Message: "snapshot cannot be restored", Detail: "snapshot refused: chunk 7 is damaged"},
				{Code: apierror.EUnprocessable, Message: "template could not be built", Detail: "python: run[2]: exit code 1"},
				{Code: apierror.EConflict, Message: "sandbox was deleted while it was being created"},
				{Code: apierror.EInternal, Message: "sandbox failed to start"},
				{Code: apierror.EBadGateway, Message: "no available compute node"},
				{Code: apierror.EBadGateway, Message: "agent unreachable"},
			},
		}},
		{get, "/v1/sandboxes", workspace, (*API).listSandboxes, operation{
			id: "listSandboxes", tag: "Sandboxes", summary: "List sandboxes, newest first", list: true,
			query: []parameter{{
				name: "metadata", schema: map[string]any{"type": "string", "pattern": "^[^=]+="},
				description: "`NAME=VALUE`: only those whose metadata has this member, a string, or another value that is written so in JSON.",
			}},
			failures: []apierror.Error{{Code: apierror.EInvalid, Message: "invalid metadata", Detail: "want NAME=VALUE"}},
			status:   200, answer: []api.Sandbox{exampleSandbox},
		}},
		{get, "/v1/sandboxes/:id", workspace, (*API).getSandbox, operation{
			id: "getSandbox", tag: "Sandboxes", summary: "Read one sandbox",
			status: 200, answer: exampleSandbox,
		}},
		{del, "/v1/sandboxes/:id", workspace, (*API).deleteSandbox, operation{
			id: "deleteSandbox", tag: "Sandboxes", summary: "Delete a sandbox, its memory and its disk",
			status: 204, also: goesOn,
			failures: []apierror.Error{
				{Code: apierror.EConflict, Message: "managed sandbox: delete it from the feature that owns it (Databases or Apps)"},
			},
		}},
		{post, "/v1/sandboxes/:id/exec", workspace, (*API).execInSandbox, operation{
			id: "exec", tag: "Sandboxes", summary: "Run a command and wait for its end",
			detail: "A string runs under `sh -c`, an array is an argv. Past `timeout_seconds` the process group is killed " +
				"and `timed_out` is true. A client that goes away kills the process group.",
			body: exampleExec, status: 200, answer: exampleExecResult,
			failures: []apierror.Error{
				{Code: apierror.EInvalid, Message: "cmd required"},
				{Code: apierror.EInvalid, Message: "invalid timeout_seconds", Detail: "timeout_seconds must be from 1 to 3600"},
				{Code: apierror.ENotFound, Message: "sandbox not found or not running", Detail: "its status is failed"},
				{Code: apierror.ERateLimited, Message: "too many commands at once in this sandbox"},
				{Code: apierror.ERateLimited, Message: "too much input at once"},
				{Code: apierror.EConflict, Message: "sandbox not running (paused or hibernated) — resume/wake it first"},
				{Code: apierror.EInsufficient, Message: "insufficient host memory for sandbox"},
				errMemoryLost,
				{Code: apierror.EBadGateway, Message: "agent unreachable"},
			},
		}},
	}
}
