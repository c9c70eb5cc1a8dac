package httpapi

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/service"
)

// route is one route of the API: what the router needs and what the document
// says of it.
type route struct {
	method string
	path   string // in gin's form, parameters as ":id"
	access access
	handle func(*API, *gin.Context) error
	doc    operation
}

// operation is what the document says of a route beyond its access.
type operation struct {
	id      string // operationId, from which clients name their methods
	tag     string
	summary string
	detail  string // sentences that the summary has no room for

	list       bool // takes limit and cursor, answers with a Link header
	idempotent bool // takes an Idempotency-Key

	body       any    // a value of the request's type, shown as its example; nil: none
	bodyType   string // of a body that is not JSON
	status     int    // of success
	answer     any    // a value of the answer's type, shown as its example; nil: none
	answerType string // of an answer that is not JSON
	failures   []service.Error
}

const (
	get  = http.MethodGet
	post = http.MethodPost
	del  = http.MethodDelete
)

// routes is every route of the public API.
func routes() []route {
	return []route{
		{get, "/healthz", public, (*API).healthz, operation{
			id: "healthz", tag: "Service", summary: "Tell whether this replica is well",
			detail: "It stays 200 while sandboxes cannot be placed.",
			status: 200, answer: api.Health{Status: "ok"},
			failures: []service.Error{{Code: service.EUnavailable, Message: "unhealthy"}},
		}},
		{get, "/version", public, (*API).version, operation{
			id: "version", tag: "Service", summary: "Tell which build answers",
			status: 200, answer: exampleVersion,
		}},
		{get, "/metrics", public, (*API).showMetrics, operation{
			id: "metrics", tag: "Service", summary: "Prometheus metrics of this replica",
			status: 200, answerType: "text/plain",
		}},
		{get, "/openapi.json", public, (*API).showOpenAPI, operation{
			id: "openapi", tag: "Service", summary: "This document",
			status: 200, answerType: "application/json",
		}},

		{post, "/v1/sandboxes", tenant, (*API).createSandbox, operation{
			id: "createSandbox", tag: "Sandboxes", summary: "Create a sandbox",
			detail: "Answers once the sandbox is running. CPU and memory are the template's: `cpu` and `memory_mb` are " +
				"ignored if sent. Without an Idempotency-Key a create is not idempotent.",
			idempotent: true,
			body:       exampleCreate, status: 201, answer: exampleSandbox,
			failures: []service.Error{
				{Code: service.EInvalid, Message: "template is required"},
				{Code: service.EInvalid, Message: "unknown template", Detail: `no template "bse"; available: base`},
				{Code: service.EInvalid, Message: "invalid ttl_seconds", Detail: "ttl_seconds must be from 1 to 31536000"},
				{Code: service.EInvalid, Message: "invalid idempotency key", Detail: "at most 255 characters"},
				{Code: service.EInvalid, Message: "env must be a string map", Detail: "env must be an object whose values are strings, not array"},
				{Code: service.EForbidden, Message: "account suspended"},
				{Code: service.ENotFound, Message: "not found", Detail: "no such snapshot"},
				{Code: service.EConflict, Message: "idempotency key reused"},
				{Code: service.EConflict, Message: "sandbox was deleted while it was being created"},
				{Code: service.EInternal, Message: "sandbox failed to start"},
				{Code: service.EBadGateway, Message: "no available compute node"},
				{Code: service.EBadGateway, Message: "agent unreachable"},
				{Code: service.EInsufficient, Message: "insufficient host memory for sandbox"},
			},
		}},
		{get, "/v1/sandboxes", tenant, (*API).listSandboxes, operation{
			id: "listSandboxes", tag: "Sandboxes", summary: "List sandboxes, newest first", list: true,
			status: 200, answer: []api.Sandbox{exampleSandbox},
		}},
		{get, "/v1/sandboxes/:id", tenant, (*API).getSandbox, operation{
			id: "getSandbox", tag: "Sandboxes", summary: "Read one sandbox",
			status: 200, answer: exampleSandbox,
		}},
		{del, "/v1/sandboxes/:id", tenant, (*API).deleteSandbox, operation{
			id: "deleteSandbox", tag: "Sandboxes", summary: "Delete a sandbox, its memory and its disk",
			status: 204,
			failures: []service.Error{
				{Code: service.EConflict, Message: "managed sandbox: delete it from the feature that owns it (Databases or Apps)"},
			},
		}},
		{post, "/v1/sandboxes/:id/exec", tenant, (*API).execInSandbox, operation{
			id: "exec", tag: "Sandboxes", summary: "Run a command and wait for its end",
			detail: "A string runs under `sh -c`, an array is an argv. Past `timeout_seconds` the process group is killed " +
				"and `timed_out` is true. A client that goes away kills the process group.",
			body: exampleExec, status: 200, answer: exampleExecResult,
			failures: []service.Error{
				{Code: service.EInvalid, Message: "cmd required"},
				{Code: service.EInvalid, Message: "invalid timeout_seconds", Detail: "timeout_seconds must be from 1 to 3600"},
				{Code: service.ENotFound, Message: "sandbox not found or not running", Detail: "its status is failed"},
				{Code: service.ERateLimited, Message: "too many commands at once in this sandbox"},
				{Code: service.EConflict, Message: "sandbox not running (paused or hibernated) — resume/wake it first"},
				{Code: service.EBadGateway, Message: "agent unreachable"},
			},
		}},

		{get, "/v1/me", jwtOnly, (*API).getMe, operation{
			id: "me", tag: "Identity", summary: "Read who the JWT belongs to", status: 200, answer: exampleMe,
		}},
		{post, "/v1/me/current-org", jwtOnly, (*API).setCurrentOrg, operation{
			id: "setCurrentOrg", tag: "Identity", summary: "Choose the organization in which the JWT acts from now on",
			body: api.SetCurrentOrg{OrgID: exampleOrg.ID}, status: 200, answer: exampleMe,
			failures: []service.Error{
				{Code: service.EInvalid, Message: "org_id is required"},
				{Code: service.ENotFound, Message: "not found"},
			},
		}},
		{post, "/v1/me/tokens", jwtOnly, (*API).createToken, operation{
			id: "createToken", tag: "Identity", summary: "Create an API key of the current organization",
			detail: "The key is shown this once: only a digest of it is kept.",
			body:   api.CreateToken{Name: "laptop"}, status: 201,
			answer: api.NewToken{Token: exampleToken, Key: "brt_k3v7q2xa_x5n2w7jq4mz6t3c2y7b5r6d4s2f7h3gk"},
		}},
		{get, "/v1/me/tokens", jwtOnly, (*API).listTokens, operation{
			id: "listTokens", tag: "Identity", summary: "List the current organization's API keys, newest first", list: true,
			status: 200, answer: []api.Token{exampleToken},
		}},
		{del, "/v1/me/tokens/:prefix", jwtOnly, (*API).revokeToken, operation{
			id: "revokeToken", tag: "Identity", summary: "Revoke an API key by its prefix", status: 204,
		}},

		{get, "/v1/admin/raft-status", operator, (*API).raftStatus, operation{
			id: "raftStatus", tag: "Administration", summary: "Read how this replica sees the control store",
			detail: "Every replica answers for itself, whether or not there is a leader.",
			status: 200, answer: exampleRaftStatus,
		}},
		{post, "/v1/admin/raft/peers", operator, (*API).addPeer, operation{
			id: "addPeer", tag: "Administration", summary: "Make a replica a voting member",
			body: api.AddPeer{ID: "r4", Address: "10.0.0.14:7001"}, status: 204,
			failures: []service.Error{{Code: service.EInvalid, Message: "id is required"}},
		}},
		{del, "/v1/admin/raft/peers/:id", operator, (*API).removePeer, operation{
			id: "removePeer", tag: "Administration", summary: "Take a replica out of the members", status: 204,
			failures: []service.Error{{Code: service.EConflict, Message: "the last replica cannot be removed"}},
		}},
		{post, "/v1/admin/raft/transfer-leadership", operator, (*API).transferLeadership, operation{
			id: "transferLeadership", tag: "Administration", summary: "Hand leadership to another replica",
			body: api.TransferLeadership{To: "r2"}, status: 204,
			failures: []service.Error{{Code: service.ENotFound, Message: "not found"}},
		}},
		{get, "/v1/admin/raft/snapshot", operator, (*API).backup, operation{
			id: "backup", tag: "Administration", summary: "Download a whole backup of the control store",
			detail: "It holds every tenant's records. Secrets in it stay sealed with the cluster's key, which is not in it.",
			status: 200, answerType: backupType,
		}},
		{post, "/v1/admin/raft/restore", operator, (*API).restore, operation{
			id: "restore", tag: "Administration", summary: "Replace the control store by a backup",
			bodyType: backupType, status: 204,
			failures: []service.Error{{Code: service.EInvalid, Message: "invalid backup"}},
		}},
		{get, "/v1/admin/agents", operator, (*API).listAgents, operation{
			id: "listAgents", tag: "Administration", summary: "List the hosts, their capacity and health", list: true,
			status: 200, answer: []api.Agent{exampleAgent},
		}},
		{post, "/v1/admin/agents/:id/drain", operator, (*API).drainAgent, operation{
			id: "drainAgent", tag: "Administration", summary: "Place no new sandbox on a host",
			detail: "What runs on it goes on.",
			body:   api.Empty{}, status: 200, answer: exampleAgent,
		}},
		{post, "/v1/admin/agents/:id/undrain", operator, (*API).undrainAgent, operation{
			id: "undrainAgent", tag: "Administration", summary: "Place sandboxes on a host again",
			body: api.Empty{}, status: 200, answer: exampleAgent,
		}},
		{del, "/v1/admin/agents/:id", operator, (*API).removeAgent, operation{
			id: "removeAgent", tag: "Administration", summary: "Forget a host that has no sandbox left", status: 204,
			failures: []service.Error{{Code: service.EConflict, Message: "agent has sandboxes"}},
		}},
		{post, "/v1/admin/join-tokens", operator, (*API).createJoinToken, operation{
			id: "createJoinToken", tag: "Administration", summary: "Create a token with which one host can join",
			body: api.CreateJoinToken{}, status: 201, answer: exampleJoinToken,
			failures: []service.Error{{Code: service.EInvalid, Message: "invalid ttl_seconds", Detail: "ttl_seconds must be from 1 to 86400"}},
		}},
	}
}
