package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// api is the input of the generators: the document, reduced to types and calls,
// in a stable order.
type api struct {
	models     []model
	operations []operation
}

// model is a named type: a struct, or a string with a few values.
type model struct {
	name   string
	doc    string
	values []string // of a string type
	fields []field
	sent   bool // part of a request
	patch  bool // the body of a PATCH, in which null and absent are two things
	got    bool // part of an answer
}

type field struct {
	name     string // as in the JSON
	doc      string
	of       typ
	required bool
}

// typ is a type in terms that every target language shares.
type typ struct {
	kind     kind
	name     string // of a model
	elem     *typ   // of a list or a map
	nullable bool
}

type kind int

const (
	kindAny kind = iota
	kindString
	kindInteger
	kindNumber
	kindBoolean
	kindTime
	kindBase64
	kindObject  // any object
	kindCommand // a string or a list of strings
	kindModel
	kindList
	kindMap
)

// operation is one call.
type operation struct {
	id, tag, doc string
	method, path string
	pathParams   []string
	query        []field
	idempotent   bool
	body         *typ // of JSON
	rawBody      bool // bytes
	answer       *typ // of JSON; nil: none
	kind         answerKind
	paged        bool
	follow       bool // asks for what is to come as well
}

type answerKind int

const (
	answerJSON   answerKind = iota // or nothing
	answerStream                   // bytes, text or server-sent events, read as they come
	answerSocket                   // a WebSocket
)

// The parts of the document that are used here.
type document struct {
	Paths      map[string]map[string]rawOperation `json:"paths"`
	Webhooks   map[string]map[string]rawOperation `json:"webhooks"`
	Components struct {
		Schemas map[string]*schema `json:"schemas"`
	} `json:"components"`
}

type rawOperation struct {
	OperationID string   `json:"operationId"`
	Summary     string   `json:"summary"`
	Description string   `json:"description"`
	Tags        []string `json:"tags"`
	Parameters  []struct {
		Name        string  `json:"name"`
		In          string  `json:"in"`
		Description string  `json:"description"`
		Required    bool    `json:"required"`
		Schema      *schema `json:"schema"`
	} `json:"parameters"`
	RequestBody *struct {
		Content map[string]media `json:"content"`
	} `json:"requestBody"`
	Responses map[string]struct {
		Content map[string]media `json:"content"`
	} `json:"responses"`
}

type media struct {
	Schema *schema `json:"schema"`
}

type schema struct {
	Ref                  string             `json:"$ref"`
	Type                 any                `json:"type"`
	Format               string             `json:"format"`
	ContentEncoding      string             `json:"contentEncoding"`
	Description          string             `json:"description"`
	Enum                 []string           `json:"enum"`
	Items                *schema            `json:"items"`
	Properties           map[string]*schema `json:"properties"`
	Required             []string           `json:"required"`
	AdditionalProperties any                `json:"additionalProperties"`
	AnyOf                []*schema          `json:"anyOf"`
	OneOf                []*schema          `json:"oneOf"`
	AllOf                []*schema          `json:"allOf"`
}

var onlyInEvents = map[string]bool{"BuildEnd": true, "BuildLog": true, "Exit": true, "LogLine": true, "Output": true}

// notForClients are the operations that browsers and git hosts call, and the types that
// only these have.
var notForClients = map[string]bool{
	"githubCallback": true, "githubWebhook": true, "gitlabWebhook": true, "giteaWebhook": true, "GitEventReceipt": true, "GitEventStatus": true,
}

const (
	refPrefix = "#/components/schemas/"
	jsonType  = "application/json"
)

// read reduces the document. It fails on constructs that the generators do not
// support.
func read(text []byte) (*api, error) {
	var doc document
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("read the document: %w", err)
	}
	out := &api{}
	for _, name := range slices.Sorted(maps.Keys(doc.Components.Schemas)) {
		m, err := readModel(name, doc.Components.Schemas[name])
		if err != nil {
			return nil, fmt.Errorf("schema %s: %w", name, err)
		}
		out.models = append(out.models, m)
	}
	for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
		if strings.Contains(path, "{rest}") {
			continue // any HTTP client passes requests on to a tenant's program
		}
		for _, method := range slices.Sorted(maps.Keys(doc.Paths[path])) {
			if notForClients[doc.Paths[path][method].OperationID] {
				continue
			}
			op, err := readOperation(strings.ToUpper(method), path, doc.Paths[path][method])
			if err != nil {
				return nil, fmt.Errorf("%s %s: %w", method, path, err)
			}
			out.operations = append(out.operations, op.split()...)
		}
	}
	slices.SortFunc(out.operations, func(a, b operation) int { return strings.Compare(a.id, b.id) })
	for _, op := range out.operations {
		if op.body != nil {
			out.mark(*op.body, func(m *model) *bool { return &m.sent })
			if m := out.model(op.body.name); m != nil && op.method == "PATCH" {
				m.patch = true
			}
		}
		if op.answer != nil {
			out.mark(*op.answer, func(m *model) *bool { return &m.got })
		}
	}
	for _, methods := range doc.Webhooks {
		for _, hook := range methods {
			out.markReceived(hook.RequestBody.Content[jsonType].Schema)
		}
	}
	// The data of streamed events is decoded by hand-written code.
	out.models = slices.DeleteFunc(out.models, func(m model) bool { return onlyInEvents[m.name] || notForClients[m.name] })
	for i := range out.models {
		out.models[i].forgetNulls()
	}
	return out, nil
}

// forgetNulls removes null from optional members of requests: except in a PATCH,
// null means the same as absent.
func (m *model) forgetNulls() {
	if !m.sent || m.patch {
		return
	}
	for i := range m.fields {
		if !m.fields[i].required {
			m.fields[i].of.nullable = false
		}
	}
}

// mark records in which direction a type and its parts are sent.
func (a *api) mark(t typ, flag func(*model) *bool) {
	if t.elem != nil {
		a.mark(*t.elem, flag)
	}
	if t.kind != kindModel {
		return
	}
	m := a.model(t.name)
	if m == nil || *flag(m) {
		return
	}
	*flag(m) = true
	for _, f := range m.fields {
		a.mark(f.of, flag)
	}
}

// markReceived marks what a client is sent by a webhook: the models that its schema is
// made of.
func (a *api) markReceived(s *schema) {
	if name, ok := strings.CutPrefix(s.Ref, refPrefix); ok {
		a.mark(typ{kind: kindModel, name: modelName(name)}, func(m *model) *bool { return &m.got })
	}
	for _, part := range s.AllOf {
		a.markReceived(part)
	}
	for _, p := range s.Properties {
		a.markReceived(p)
	}
}

func (a *api) model(name string) *model {
	for i := range a.models {
		if a.models[i].name == name {
			return &a.models[i]
		}
	}
	return nil
}

// modelName avoids a name that both languages reserve.
func modelName(name string) string {
	if name == "Error" {
		return "ErrorBody"
	}
	return name
}

func readModel(name string, s *schema) (model, error) {
	m := model{name: modelName(name), doc: s.Description, values: s.Enum}
	for _, property := range slices.Sorted(maps.Keys(s.Properties)) {
		if err := nameable(property); err != nil {
			return m, err
		}
		p := s.Properties[property]
		t, err := typeOf(p)
		if err != nil {
			return m, fmt.Errorf("%s: %w", property, err)
		}
		m.fields = append(m.fields, field{
			name: property, doc: p.Description, of: t, required: slices.Contains(s.Required, property),
		})
	}
	slices.SortStableFunc(m.fields, requiredFirst)
	return m, nil
}

func requiredFirst(a, b field) int {
	switch {
	case a.required == b.required:
		return 0
	case a.required:
		return -1
	}
	return 1
}

// typeOf returns the type of a schema.
func typeOf(s *schema) (typ, error) {
	switch {
	case s == nil:
		return typ{}, nil
	case s.Ref != "":
		name, ok := strings.CutPrefix(s.Ref, refPrefix)
		if !ok {
			return typ{}, fmt.Errorf("reference %q", s.Ref)
		}
		if name == "Command" {
			return typ{kind: kindCommand}, nil
		}
		return typ{kind: kindModel, name: modelName(name)}, nil
	case len(s.AnyOf) == 2:
		t, err := typeOf(s.AnyOf[0])
		t.nullable = true
		return t, err
	case len(s.OneOf) > 0:
		return typ{kind: kindCommand}, nil
	}
	names, nullable := typesOf(s.Type)
	t := typ{nullable: nullable}
	if len(names) > 1 {
		return t, fmt.Errorf("a choice of types %v", names)
	}
	if len(names) == 0 {
		if len(s.Enum) > 0 {
			t.kind = kindString
		}
		return t, nil
	}
	var err error
	switch names[0] {
	case "string":
		t.kind = kindString
		if s.Format == "date-time" {
			t.kind = kindTime
		}
		if s.ContentEncoding == "base64" {
			t.kind = kindBase64
		}
	case "integer":
		t.kind = kindInteger
	case "number":
		t.kind = kindNumber
	case "boolean":
		t.kind = kindBoolean
	case "array":
		t.kind = kindList
		t.elem, err = elemOf(s.Items)
	case "object":
		t.kind = kindObject
		if of, ok := s.AdditionalProperties.(map[string]any); ok && len(of) > 0 {
			t.kind = kindMap
			b, _ := json.Marshal(of) // came from JSON
			var inner schema
			if err := json.Unmarshal(b, &inner); err != nil {
				return t, err
			}
			t.elem, err = elemOf(&inner)
		}
	default:
		return t, fmt.Errorf("type %q", names[0])
	}
	return t, err
}

func elemOf(s *schema) (*typ, error) {
	t, err := typeOf(s)
	return &t, err
}

// typesOf returns "type" without null, and whether null was in it.
func typesOf(v any) (names []string, nullable bool) {
	switch v := v.(type) {
	case string:
		return []string{v}, false
	case []any:
		for _, one := range v {
			if one == "null" {
				nullable = true
			} else if s, ok := one.(string); ok {
				names = append(names, s)
			}
		}
	}
	return names, nullable
}

func readOperation(method, path string, raw rawOperation) (operation, error) {
	op := operation{
		id: raw.OperationID, method: method, path: path,
		doc: strings.TrimSpace(strings.TrimSuffix(raw.Summary, ".") + ". " + raw.Description),
	}
	if len(raw.Tags) > 0 {
		op.tag = raw.Tags[0]
	}
	for _, p := range raw.Parameters {
		t, err := typeOf(p.Schema)
		if err != nil {
			return op, fmt.Errorf("parameter %s: %w", p.Name, err)
		}
		if err := nameable(p.Name); err != nil {
			return op, err
		}
		switch {
		case p.In == "path":
			op.pathParams = append(op.pathParams, p.Name)
		case p.In == "query":
			op.query = append(op.query, field{name: p.Name, doc: p.Description, of: t, required: p.Required})
			op.paged = op.paged || p.Name == "cursor"
		case p.Name == "Idempotency-Key":
			op.idempotent = true
		}
	}
	slices.SortStableFunc(op.query, requiredFirst)
	if raw.RequestBody != nil {
		if m, ok := raw.RequestBody.Content[jsonType]; ok {
			t, err := typeOf(m.Schema)
			if err != nil {
				return op, fmt.Errorf("request: %w", err)
			}
			// An empty body is sent automatically.
			if t.kind != kindObject {
				op.body = &t
			}
		} else {
			op.rawBody = true
		}
	}
	return op, op.readAnswer(raw)
}

func (op *operation) readAnswer(raw rawOperation) error {
	for _, status := range slices.Sorted(maps.Keys(raw.Responses)) {
		content := raw.Responses[status].Content
		if status == "101" {
			op.kind = answerSocket
			return nil
		}
		if !strings.HasPrefix(status, "2") || len(content) == 0 {
			continue
		}
		m, ok := content[jsonType]
		if !ok || len(content) > 1 && op.answer == nil && !ok {
			op.kind = answerStream
			return nil
		}
		t, err := typeOf(m.Schema)
		if err != nil {
			return fmt.Errorf("answer: %w", err)
		}
		op.answer = &t
		return nil
	}
	return nil
}

// split divides an operation that can be followed into two, because a followed
// answer is of another kind.
func (op operation) split() []operation {
	at := slices.IndexFunc(op.query, func(f field) bool { return f.name == "follow" })
	if at < 0 {
		return []operation{op}
	}
	op.query = slices.Delete(slices.Clone(op.query), at, at+1)
	following := op
	following.id = "follow" + strings.ToUpper(op.id[:1]) + op.id[1:]
	following.kind, following.answer, following.follow = answerStream, nil, true
	return []operation{op, following}
}
