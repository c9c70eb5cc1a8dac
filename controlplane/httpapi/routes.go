package httpapi

import (
	"net/http"
	"slices"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/sandbox"
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

	// websocket routes are upgraded. Browsers cannot set a header on them, so
	// they also take the credential as a subprotocol.
	websocket bool

	list       bool // takes limit and cursor, answers with a Link header
	idempotent bool // takes an Idempotency-Key
	anyReplica bool // every replica answers for itself, whoever leads

	query []parameter

	body       any            // a value of the request's type, shown as its example; nil: none
	bodyType   string         // of a body that is not JSON
	status     int            // of success
	answer     any            // a value of the answer's type, shown as its example; nil: none
	answerType string         // of an answer that is not JSON
	acceptType string         // the same, to whoever accepts only this
	events     map[string]any // of an answer of server-sent events: a value of what each carries, by its name
	also       map[int]string // other statuses of success, each with what it says
	failures   []apierror.Error
}

// parameter is one of the query.
type parameter struct {
	name, description string
	schema            map[string]any
	required          bool
}

// The kinds of parameter, as JSON schemas.
var (
	aString  = map[string]any{"type": "string"}
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

// routes is every route of the public API, area by area.
func routes() []route {
	return slices.Concat(
		serviceRoutes(), sandboxRoutes(), streamRoutes(), lifecycleRoutes(), previewRoutes(), forkRoutes(), volumeRoutes(),
		templateRoutes(), metricsRoutes(), identityRoutes(), adminRoutes(),
	)
}
