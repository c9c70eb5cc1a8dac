package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/swaggest/jsonschema-go"
	"github.com/swaggest/openapi-go"
	"github.com/swaggest/openapi-go/openapi31"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
)

// theDocument returns the document of the API's routes, which are the same in every
// API. It is built on first use, because that takes a third of a second, and would
// delay a replica's start.
var theDocument = sync.OnceValues(func() ([]byte, error) { return document(routes()) })

// document builds the OpenAPI 3.1 document of the routes.
func document(all []route) ([]byte, error) {
	docs, err := api.Docs()
	if err != nil {
		return nil, err
	}
	sent := sentTypes(all)
	r := openapi31.NewReflector()
	describeService(r.SpecEns())
	for _, plain := range []any{api.Time{}, api.Object{}, api.StringMap{}, api.Bytes{}, api.Patch[int64]{}, api.Patch[[]api.WebhookEventType]{}, api.Patch[int]{}, api.Patch[api.StringMap]{}} {
		r.InlineDefinition(plain)
	}
	r.DefaultOptions = append(r.DefaultOptions,
		jsonschema.InterceptDefName(func(t reflect.Type, _ string) string {
			if t == reflect.TypeFor[api.ErrorBody]() {
				return "Error"
			}
			return t.Name()
		}),
		jsonschema.InterceptSchema(func(p jsonschema.InterceptSchemaParams) (bool, error) {
			return ownSchema(p, docs), nil
		}),
		jsonschema.InterceptProp(func(p jsonschema.InterceptPropParams) error {
			finishProperty(p, docs, sent)
			return nil
		}),
	)
	for _, rt := range all {
		if err := addOperation(r, rt); err != nil {
			return nil, fmt.Errorf("%s %s: %w", rt.method, rt.path, err)
		}
	}
	if err := addWebhooks(r); err != nil {
		return nil, fmt.Errorf("webhooks: %w", err)
	}
	return json.MarshalIndent(r.Spec, "", "  ")
}

// The names of the security schemes.
const (
	schemeAPIKey   = "apiKey"
	schemeJWT      = "jwt"
	schemeOperator = "operatorToken"
	schemeBroker   = "brokerToken"
	schemeCert     = "operatorCertificate"
)

func describeService(s *openapi31.Spec) {
	s.Info.WithTitle("Berth").WithVersion(api.Version).WithDescription(
		"Isolated compute on a fleet of hosts. Every POST carries a body: send {} where there is nothing to say; " +
			"a POST without one is refused with 411 and an empty body. Unknown members of a request are ignored. " +
			"Every response carries X-Request-Id. Branch on the status of an error, not on its text.")
	s.Info.WithLicense(openapi31.License{Name: "Apache-2.0"})
	s.WithServers(openapi31.Server{URL: "/"})
	for _, t := range [][2]string{
		{"Service", "The replica itself. No credential."},
		{"Sandboxes", "MicroVMs made from a template. An API key or a JWT."},
		{"Lifecycle", "Pause, resume, hibernate, wake, and time to live. An API key or a JWT."},
		{"Streams", "Commands as they run, terminals and language servers. An API key or a JWT."},
		{"Files", "The file system of a sandbox. An API key or a JWT."},
		{"Logs and events", "What a sandbox wrote and what happened to it. An API key or a JWT."},
		{"Ports", "The ports of a sandbox. An API key or a JWT."},
		{"Snapshots and forks", "Sandboxes made from others. An API key or a JWT."},
		{"Volumes", "File systems that outlive sandboxes. An API key or a JWT."},
		{"Templates", "What sandboxes are made from. An API key or a JWT."},
		{"Databases", "Managed PostgreSQL. An API key or a JWT."},
		{"SQL", "Statements over HTTP, for programs that cannot speak PostgreSQL's protocol. The broker token of the database."},
		{"Apps", "Programs that are built from a repository, or an upload, and served at a stable URL. An API key or a JWT."},
		{"Functions", "Handlers in Python or JavaScript that run only while they are called. An API key or a JWT."},
		{"Webhooks", "Events that are sent to URLs of a workspace's own. An API key or a JWT."},
		{"Git hosting", "GitHub, GitLab and Gitea: what is deployed when somebody pushes. An API key or a JWT; the webhooks are signed."},
		{"Metrics", "What became of sandboxes, counted. An API key or a JWT."},
		{"Identity", "The person behind a JWT, and API keys. A JWT."},
		{"Organizations", "Workspaces and their people. A JWT."},
		{"Administration", "The control store and the hosts. An operator's token or client certificate."},
	} {
		tag := openapi31.Tag{Name: t[0]}
		tag.WithDescription(t[1])
		s.Tags = append(s.Tags, tag)
	}
	s.SetHTTPBearerTokenSecurity(schemeAPIKey, "", "An API key, brt_<prefix>_<secret>.")
	s.SetHTTPBearerTokenSecurity(schemeJWT, "JWT", "A JWT of an issuer that the operator configured.")
	s.SetHTTPBearerTokenSecurity(schemeBroker, "", "The broker token of the database.")
	s.SetHTTPBearerTokenSecurity(schemeOperator, "", "The operator's token.")
	s.Components.WithSecuritySchemesItem(schemeCert, openapi31.SecuritySchemeOrReference{
		SecurityScheme: (&openapi31.SecurityScheme{}).WithMutualTLS(openapi31.MutualTLS{}).
			WithDescription("A client certificate of the cluster's CA that names an operator."),
	})
	header := func(name, description, kind string) {
		h := openapi31.Header{Schema: map[string]any{"type": kind}}
		h.WithDescription(description)
		s.Components.WithHeadersItem(name, openapi31.HeaderOrReference{Header: &h})
	}
	header("RequestID", "Names the request; the client's own where it sent one of up to 64 visible ASCII characters, or as many as the operator allows.", "string")
	header("Link", `The next page: </v1/…?cursor=…&limit=…>; rel="next". Absent on the last.`, "string")
	header("RetryAfter", "Seconds to wait before trying again.", "integer")
	header("ContentRange", "How long the file is: bytes */<size>.", "string")
}

func headerRef(name string) openapi31.HeaderOrReference {
	return openapi31.HeaderOrReference{Reference: &openapi31.Reference{Ref: "#/components/headers/" + name}}
}

var ginParam = regexp.MustCompile(`[:*]([a-z_]+)`)

// addOperation adds one route with its parameters, bodies and answers.
func addOperation(r *openapi31.Reflector, rt route) error {
	oc, err := r.NewOperationContext(rt.method, ginParam.ReplaceAllString(rt.path, "{$1}"))
	if err != nil {
		return err
	}
	d := rt.doc
	oc.SetID(d.id)
	oc.SetTags(d.tag)
	oc.SetSummary(d.summary)
	if d.detail != "" {
		oc.SetDescription(d.detail)
	}
	for _, scheme := range map[access][]string{
		workspace: {schemeAPIKey, schemeJWT},
		jwtOnly:   {schemeJWT},
		operator:  {schemeOperator, schemeCert},

		brokerToken: {schemeBroker},
	}[rt.access] {
		oc.AddSecurity(scheme)
	}
	exposer, ok := oc.(openapi31.OperationExposer)
	if !ok {
		return fmt.Errorf("%T does not show its operation", oc)
	}
	exposer.Operation().Parameters = parameters(rt)

	switch {
	case d.body == api.Empty{}:
		exposer.Operation().RequestBodyEns().RequestBodyEns().WithRequired(true).WithContentItem("application/json", anyObject())
	case d.body != nil:
		oc.AddReqStructure(d.body, openapi.WithCustomize(func(c openapi.ContentOrReference) {
			body, _ := c.(*openapi31.RequestBodyOrReference)
			body.RequestBody.WithRequired(true)
			setExample(body.RequestBody.Content, d.body)
			if d.bodyType != "" {
				body.RequestBody.WithContentItem(d.bodyType, openapi31.MediaType{})
			}
		}))
	case d.bodyType != "":
		oc.AddReqStructure(nil, openapi.WithContentType(d.bodyType), openapi.WithCustomize(func(c openapi.ContentOrReference) {
			body, _ := c.(*openapi31.RequestBodyOrReference)
			body.RequestBody.WithRequired(rt.method == post) // an empty body is valid otherwise
		}))
	}
	if err := addAnswer(r, oc, d); err != nil {
		return err
	}
	for status, description := range d.also {
		addOther(oc, d, status, description)
	}
	for status, list := range failuresOf(rt) {
		addFailure(oc, status, list)
	}
	return r.AddOperation(oc)
}

// parameters returns the parameters of the path, the query and the headers.
func parameters(rt route) []openapi31.ParameterOrReference {
	var out []openapi31.ParameterOrReference
	add := func(name string, in openapi31.ParameterIn, description string, schema map[string]any) {
		p := openapi31.Parameter{Name: name, In: in, Schema: schema}
		p.WithDescription(description)
		p.WithRequired(in == openapi31.ParameterInPath)
		out = append(out, openapi31.ParameterOrReference{Parameter: &p})
	}
	for _, m := range ginParam.FindAllStringSubmatch(rt.path, -1) {
		add(m[1], openapi31.ParameterInPath, "What cannot be one is answered like an unknown one: 404.", map[string]any{"type": "string"})
	}
	if rt.doc.list {
		add("limit", openapi31.ParameterInQuery, "How many to answer with.", map[string]any{
			"type": "integer", "minimum": 1, "maximum": api.MaxListLimit, "default": api.DefaultListLimit,
		})
		add("cursor", openapi31.ParameterInQuery, "From the Link header of the page before.", map[string]any{"type": "string"})
	}
	for _, q := range rt.doc.query {
		add(q.name, openapi31.ParameterInQuery, q.description, q.schema)
		if q.required {
			out[len(out)-1].Parameter.WithRequired(true)
		}
	}
	if rt.doc.idempotent {
		add(api.HeaderIdempotencyKey, openapi31.ParameterInHeader,
			"The same request with the same key gets the first answer for 24 hours, or for at least one hour if the workspace uses more than 10,000 keys; with another body, to another route or by another user of the workspace the key is a 409.",
			map[string]any{"type": "string", "minLength": 1, "maxLength": api.MaxIdempotencyKeyLength})
	}
	add(api.HeaderRequestID, openapi31.ParameterInHeader, "Names the request; ignored unless it is 1 to 64 visible ASCII characters, or as many as the operator allows.",
		map[string]any{"type": "string"})
	return out
}

func addAnswer(r *openapi31.Reflector, oc openapi.OperationContext, d operation) error {
	event, err := eventSchema(r, d.events)
	if err != nil {
		return err
	}
	options := []openapi.ContentOption{
		openapi.WithHTTPStatus(d.status),
		openapi.WithCustomize(func(c openapi.ContentOrReference) {
			resp := c.(*openapi31.ResponseOrReference).Response
			resp.WithHeadersItem(api.HeaderRequestID, headerRef("RequestID"))
			if d.list {
				resp.WithHeadersItem("Link", headerRef("Link"))
			}
			setExample(resp.Content, d.answer)
			if media, ok := resp.Content[typeEvents]; ok && event != nil {
				media.Schema = event
				resp.Content[typeEvents] = media
			}
		}),
	}
	switch {
	case d.answerType == "application/json":
		oc.AddRespStructure(new(map[string]any), options...)
	case d.answerType != "":
		oc.AddRespStructure(nil, append(options, openapi.WithContentType(d.answerType))...)
	default:
		oc.AddRespStructure(d.answer, options...)
	}
	if d.acceptType != "" {
		oc.AddRespStructure(nil, append(options, openapi.WithContentType(d.acceptType))...)
	}
	return nil
}

// addOther documents another success status. A partial stream of bytes has the same
// kind of body.
func addOther(oc openapi.OperationContext, d operation, status int, description string) {
	options := []openapi.ContentOption{
		openapi.WithHTTPStatus(status),
		openapi.WithCustomize(func(c openapi.ContentOrReference) {
			resp := c.(*openapi31.ResponseOrReference).Response
			resp.WithHeadersItem(api.HeaderRequestID, headerRef("RequestID"))
			resp.Description = description
		}),
	}
	if status == http.StatusPartialContent {
		options = append(options, openapi.WithContentType(d.answerType))
	}
	oc.AddRespStructure(nil, options...)
}

// failuresOf groups a route's errors by status: its own, and those that follow from
// its method and access.
func failuresOf(rt route) map[int][]apierror.Error {
	list := slices.Concat(rt.doc.failures, quotaRefusals(rt.doc.id))
	if rt.method == post || rt.method == patch || rt.doc.bodyType != "" {
		if rt.doc.body != nil {
			list = append(list, apierror.Error{Code: apierror.EInvalid, Message: "invalid json", Detail: "template must be a string, not number"})
		}
		list = append(list,
			apierror.Error{Code: apierror.ETooLarge, Message: "request body too large"},
			apierror.Error{Code: codeTimeout, Message: "request timeout"})
	}
	if len(rt.doc.query) > 0 {
		list = append(list, apierror.Error{Code: apierror.EInvalid, Message: "invalid query", Detail: "the query string is malformed"})
	}
	if rt.doc.websocket {
		list = append(list, *errUpgrade)
	}
	if rt.doc.list {
		list = append(list, apierror.Error{Code: apierror.EInvalid, Message: "invalid limit", Detail: "want an integer from 1 to 1000"})
	}
	if rt.doc.idempotent {
		list = append(list,
			apierror.Error{Code: apierror.EConflict, Message: "idempotency key reused", Detail: "this Idempotency-Key was sent with another body"},
			apierror.Error{Code: apierror.ENotFound, Message: "not found", Detail: "the volume that this Idempotency-Key made has been deleted"})
	}
	if strings.Contains(rt.path, ":") {
		list = append(list, *apierror.NotFound())
	}
	if slices.ContainsFunc(list, suspends) {
		list = append(list, apierror.Error{
			Code: apierror.EQuota, Message: "subscription not active", Detail: "what runs goes on, and nothing is deleted",
			Fields: map[string]any{"subscription_status": "past_due"},
		})
		if !rt.doc.free {
			list = append(list, spentRefusals("free quota exceeded")...)
		}
	}
	if runs(rt.doc.id, list) {
		list = append(list, spentRefusals("monthly free credit exhausted")...)
	}
	switch rt.access {
	case workspace, jwtOnly, brokerToken:
		list = append(list, *errRateLimited)
		if rt.access != brokerToken && rt.doc.action != personal {
			list = append(list, *errMayNot)
		}
	case operator:
		list = append(list, *errForbidden)
	}
	if rt.access != public {
		detail := apierror.DetailMissingToken
		switch rt.access {
		case jwtOnly:
			detail = apierror.DetailJWTRequired
		case signed:
			detail = "invalid signature"
		}
		list = append(list, *apierror.Unauthorized(detail),
			apierror.Error{Code: apierror.EInternal, Message: "internal error"},
			*apierror.Unavailable("", nil))
	}
	out := map[int][]apierror.Error{}
	for _, e := range list {
		if rt.access == brokerToken {
			e = *withSQLState(&e)
		}
		out[statusOf[e.Code]] = append(out[statusOf[e.Code]], e)
	}
	if rt.method == post {
		out[http.StatusLengthRequired] = nil
	}
	return out
}

// addFailure documents one error status, with each error as an example.
func addFailure(oc openapi.OperationContext, status int, list []apierror.Error) {
	var structure any
	if len(list) > 0 {
		structure = new(api.ErrorBody)
	}
	oc.AddRespStructure(structure, openapi.WithHTTPStatus(status), openapi.WithCustomize(func(c openapi.ContentOrReference) {
		resp := c.(*openapi31.ResponseOrReference).Response
		resp.WithHeadersItem(api.HeaderRequestID, headerRef("RequestID"))
		if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
			resp.WithHeadersItem("Retry-After", headerRef("RetryAfter"))
		}
		if status == http.StatusRequestedRangeNotSatisfiable {
			resp.WithHeadersItem("Content-Range", headerRef("ContentRange"))
		}
		if status == http.StatusLengthRequired {
			resp.Description = "The POST has no body; this answer has none either."
			return
		}
		resp.Description = http.StatusText(status)
		media := resp.Content["application/json"]
		for i, e := range list {
			value := toAny(bodyOf(&e))
			media.WithExamplesItem("e"+strconv.Itoa(i+1), openapi31.ExampleOrReference{
				Example: &openapi31.Example{Value: &value},
			})
		}
		resp.Content["application/json"] = media
	}))
}

func setExample(content map[string]openapi31.MediaType, v any) {
	media, ok := content["application/json"]
	if !ok || v == nil {
		return
	}
	example := toAny(v)
	media.Example = &example
	content["application/json"] = media
}

// toAny converts v to the generic form of its JSON, which the document requires for
// examples.
func toAny(v any) any {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // one of our own examples
	}
	var out any
	if err := json.Unmarshal(b, &out); err != nil {
		panic(err)
	}
	return out
}
