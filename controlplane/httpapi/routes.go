package httpapi

import (
	"net/http"
	"slices"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// route is one route of the API, for the router and for the OpenAPI document.
type route struct {
	method string
	path   string // in gin's form, parameters as ":id", and "*rest" for the rest of the path
	access access
	handle func(*API, *gin.Context) error
	doc    operation
}

// operation describes a route in the OpenAPI document, except for its access.
type operation struct {
	id      string // operationId, after which clients name their methods
	tag     string
	summary string
	detail  string // what does not fit into the summary

	// websocket routes are upgraded. Browsers cannot set a header on them, so
	// they also take the credential as a subprotocol.
	websocket bool

	action action // what it does, if the method does not say

	list       bool // takes limit and cursor, and answers with a Link header
	idempotent bool // takes an Idempotency-Key
	free       bool // refused to who is suspended, and costs nothing
	anyReplica bool // any replica answers it
	proxied    bool // it is passed on to a tenant's program, which answers

	query []parameter

	body       any            // a value of the request's type, used as its example; nil: none
	bodyType   string         // of a body that is not JSON
	status     int            // of success
	answer     any            // a value of the answer's type, used as its example; nil: none
	answerType string         // of an answer that is not JSON
	acceptType string         // type of the answer if the request accepts only this one
	events     map[string]any // of an answer of server-sent events: by name, a value of the type of its data
	also       map[int]string // other success statuses, with descriptions
	failures   []apierror.Error
}

// parameter is a query parameter.
type parameter struct {
	name, description string
	schema            map[string]any
	required          bool
}

// JSON schemas of parameters.
var (
	aString  = map[string]any{"type": "string"}
	aFilter  = map[string]any{"type": "string", "minLength": 1}
	aBoolean = map[string]any{"type": "boolean"}
	aFlag    = map[string]any{"enum": []string{"true", "false", "1", "0"}}
	aFile    = map[string]any{"type": "string", "pattern": "^/.*[^/.]", "maxLength": sandbox.MaxPath}
	aPath    = map[string]any{"type": "string", "pattern": "^/", "maxLength": sandbox.MaxPath}
)

func anInteger(least, most int) map[string]any {
	return map[string]any{"type": "integer", "minimum": least, "maximum": most}
}

const (
	get   = http.MethodGet
	post  = http.MethodPost
	put   = http.MethodPut
	patch = http.MethodPatch
	del   = http.MethodDelete
)

// routes returns every route of the public API, by area.
func routes() []route {
	return slices.Concat(
		serviceRoutes(), sandboxRoutes(), streamRoutes(), lifecycleRoutes(), previewRoutes(), forkRoutes(), volumeRoutes(),
		templateRoutes(), databaseRoutes(), brokerRoutes(), appRoutes(), appEnvRoutes(), appDomainRoutes(), appProxyRoutes(), functionRoutes(), webhookRoutes(), metricsRoutes(), statsRoutes(), trafficRoutes(), identityRoutes(), orgRoutes(), adminRoutes(),
		githostRoutes(), usageRoutes(), auditRoutes(),
	)
}
