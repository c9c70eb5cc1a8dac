package httpapi

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/swaggest/jsonschema-go"
	"github.com/swaggest/openapi-go/openapi31"

	"github.com/berth-cloud/berth/controlplane/api"
)

// ownSchema sets the schemas that reflection cannot derive.
func ownSchema(p jsonschema.InterceptSchemaParams, docs map[string]string) (stop bool) {
	s, t := p.Schema, p.Value.Type()
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.PkgPath() != reflect.TypeFor[api.Error]().PkgPath() {
		return false
	}
	str := jsonschema.String.ToSchemaOrBool()
	switch t {
	case reflect.TypeFor[api.Time]():
		*s = jsonschema.Schema{}
		s.WithType(jsonschema.String.Type()).WithFormat("date-time")
	case reflect.TypeFor[api.Object]():
		*s = jsonschema.Schema{}
		s.WithType(jsonschema.Object.Type())
	case reflect.TypeFor[api.StringMap]():
		*s = jsonschema.Schema{}
		s.WithType(jsonschema.Object.Type()).WithAdditionalProperties(str)
	case reflect.TypeFor[api.Bytes]():
		*s = jsonschema.Schema{}
		s.WithType(jsonschema.String.Type()).WithExtraPropertiesItem("contentEncoding", "base64")
	case reflect.TypeFor[api.Command]():
		*s = jsonschema.Schema{}
		// A blank string is not a command, and neither is an array that starts with
		// "".
		text, list, program := jsonschema.String.ToSchemaOrBool(), jsonschema.Array.ToSchemaOrBool(), jsonschema.String.ToSchemaOrBool()
		text.TypeObjectEns().WithPattern(`\S`)
		program.TypeObjectEns().WithMinLength(1)
		list.TypeObjectEns().WithItems(jsonschema.Items{SchemaOrBool: &str}).WithMinItems(1).
			WithExtraPropertiesItem("prefixItems", []any{program})
		s.WithOneOf(text, list)
	case reflect.TypeFor[api.Patch[int64]]():
		*s = jsonschema.Schema{}
		s.AddType(jsonschema.Integer)
		s.AddType(jsonschema.Null)
	case reflect.TypeFor[api.Patch[int]](): // of an app, where null is the default
		*s = jsonschema.Schema{}
		s.WithType(jsonschema.Integer.Type())
	case reflect.TypeFor[api.Patch[api.StringMap]](): // likewise
		*s = jsonschema.Schema{}
		s.WithType(jsonschema.Object.Type()).WithAdditionalProperties(str)
	case reflect.TypeFor[api.Patch[bool]](): // null is refused
		*s = jsonschema.Schema{}
		s.WithType(jsonschema.Boolean.Type())
	case reflect.TypeFor[api.Patch[string]](): // likewise
		*s = jsonschema.Schema{}
		s.WithType(jsonschema.String.Type())
	case reflect.TypeFor[api.Patch[[]api.WebhookEventType]]():
		*s = jsonschema.Schema{}
		one := jsonschema.String.ToSchemaOrBool()
		one.TypeObjectEns().WithEnum(enums[reflect.TypeFor[api.WebhookEventType]()]...)
		s.WithType(jsonschema.Array.Type()).WithItems(jsonschema.Items{SchemaOrBool: &one})
	default:
		if refine := refinements[t]; p.Processed && refine != nil {
			refine(s)
		}
		if values := enums[t]; p.Processed && values != nil {
			s.WithEnum(values...)
			s.RemoveType(jsonschema.Null) // if a pointer to it came first
		}
		if d := docs[t.Name()]; p.Processed && d != "" {
			s.WithDescription(d)
		}
		return false
	}
	return true
}

// enums are the values of enumerated types.
var enums = map[reflect.Type][]any{
	reflect.TypeFor[api.SandboxStatus](): {api.SandboxStarting, api.SandboxRunning, api.SandboxPaused,
		api.SandboxHibernated, api.SandboxFailed, api.SandboxDeleting},
	reflect.TypeFor[api.Boot]():        {api.BootRestore, api.BootCold},
	reflect.TypeFor[api.PreviewMode](): {api.PreviewPublic, api.PreviewToken},
	reflect.TypeFor[api.FileType]():    {api.FileRegular, api.FileDir, api.FileSymlink, api.FileOther},
	reflect.TypeFor[api.EventCode]():   {api.EventOK, api.EventError, api.EventWarn},
	reflect.TypeFor[api.ForkMode]():    {api.ForkCold, api.ForkWarm},
	reflect.TypeFor[api.DatabaseStatus](): {api.DatabaseProvisioning, api.DatabaseRunning, api.DatabaseHibernated, api.DatabaseWaking,
		api.DatabaseFailed, api.DatabaseRestoring},
	reflect.TypeFor[api.AppStatus](): {api.AppCreated, api.AppRunning, api.AppHibernated, api.AppWaking, api.AppFailed},
	reflect.TypeFor[api.AppSource](): {api.AppFromGit, api.AppFromUpload},
	reflect.TypeFor[api.DeploymentStatus](): {api.DeploymentQueued, api.DeploymentBuilding, api.DeploymentDeploying, api.DeploymentLive,
		api.DeploymentFailed},
	reflect.TypeFor[api.DeploymentTrigger](): {api.TriggerAPI, api.TriggerPush, api.TriggerWake, api.TriggerRollback, api.TriggerPullRequest},
	reflect.TypeFor[api.WebhookEventType]():  anyOf(api.WebhookEventTypes()),
	reflect.TypeFor[api.WebhookStatus]():     {api.WebhookPending, api.WebhookDelivered, api.WebhookFailed, api.WebhookDead},
	reflect.TypeFor[api.FunctionRuntime]():   {api.RuntimePython, api.RuntimeNode},
	reflect.TypeFor[api.DatabaseSize]():      {api.Database1G, api.Database4G, api.Database16G},
	reflect.TypeFor[api.TemplateStatus]():    {api.TemplateUnbuilt, api.TemplateQueued, api.TemplateBuilding, api.TemplateReady, api.TemplateFailed},
}

// anyOf are values of one type as enums has them.
func anyOf[T any](values []T) []any {
	out := make([]any, len(values))
	for i, v := range values {
		out[i] = v
	}
	return out
}

// finishProperty applies a field's tag and comment: it is required unless it may be
// omitted, and may be null only if it is a pointer.
//
// In requests null means the same as absent, except in a PATCH, where it has a
// meaning of its own.
func finishProperty(p jsonschema.InterceptPropParams, docs map[string]string, sent map[string]bool) {
	if !p.Processed {
		return
	}
	owner := ownerOf(p)
	if d := docs[owner+"."+p.Field.Name]; d != "" {
		p.PropertySchema.WithDescription(d)
	}
	_, options, _ := strings.Cut(p.Field.Tag.Get("json"), ",")
	optional := strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
	if !optional {
		p.ParentSchema.Required = append(p.ParentSchema.Required, p.Name)
	}
	if pattern := cmp.Or(memberNames[owner+"."+p.Name], memberNames[p.Name]); pattern != "" && slices.Contains(stringMaps, p.Field.Type) {
		names := jsonschema.String.ToSchemaOrBool()
		names.TypeObjectEns().WithPattern(pattern)
		p.PropertySchema.WithPropertyNames(names)
	}
	switch {
	case p.Field.Type == reflect.TypeFor[api.Patch[int64]](): // null has a meaning of its own
	case owner == reflect.TypeFor[api.PatchApp]().Name(), owner == reflect.TypeFor[api.PatchFunction]().Name(): // as here, for each of its fields
		allowNull(p.PropertySchema)
	case optional && sent[owner]:
		allowNull(p.PropertySchema)
	case p.Field.Type.Kind() != reflect.Pointer, optional:
		p.PropertySchema.RemoveType(jsonschema.Null)
	default:
		allowNull(p.PropertySchema)
	}
}

// allowNull adds null to a property's types.
func allowNull(s *jsonschema.Schema) {
	if s.Ref == nil {
		s.AddType(jsonschema.Null)
		return
	}
	null := jsonschema.Null.ToSchemaOrBool()
	either := jsonschema.Schema{Ref: s.Ref}
	s.Ref = nil
	s.WithAnyOf(either.ToSchemaOrBool(), null)
}

// stringMaps are the types of maps in requests.
var stringMaps = []reflect.Type{reflect.TypeFor[api.StringMap](), reflect.TypeFor[api.Patch[api.StringMap]]()}

// memberNames are patterns for the keys of maps in requests.
var memberNames = map[string]string{
	"env":   "^[A-Za-z_][A-Za-z0-9_]{0,255}$",
	"files": "^(/[^/]+)+$",

	"DeployFunction.files": `^([^/\\]+/)*[^/\\]+$`,
}

// refinements are conditions that involve several fields of a type.
var refinements = map[reflect.Type]func(*jsonschema.Schema){
	reflect.TypeFor[api.Fork](): func(s *jsonschema.Schema) {
		one := 1.0
		alone, mode, count := jsonschema.Schema{}, jsonschema.Schema{}, jsonschema.Schema{Maximum: &one}
		s.WithIf(has("mode", *mode.WithConst(string(api.ForkWarm))))
		s.WithThen(alone.WithPropertiesItem("count", count.ToSchemaOrBool()).ToSchemaOrBool())
	},
	reflect.TypeFor[api.BuildTemplate](): func(s *jsonschema.Schema) {
		run, ok := s.Properties["run"]
		if !ok {
			return // the type is also reflected for parameters, where it has no properties
		}
		step := jsonschema.String.ToSchemaOrBool()
		step.TypeObjectEns().WithPattern(`\S`)
		run.TypeObjectEns().WithItems(jsonschema.Items{SchemaOrBool: &step})
	},
	reflect.TypeFor[api.CreateApp](): func(s *jsonschema.Schema) {
		text, upload := jsonschema.Schema{}, jsonschema.Schema{}
		s.WithAnyOf(has("git_url", *text.WithType(jsonschema.String.Type()).WithMinLength(1)), has("source", *upload.WithConst(string(api.AppFromUpload))))
	},
	reflect.TypeFor[api.PatchDatabase](): func(s *jsonschema.Schema) {
		none := false
		s.WithAdditionalProperties(jsonschema.SchemaOrBool{TypeBoolean: &none})
	},
	reflect.TypeFor[api.PatchWebhookEndpoint](): func(s *jsonschema.Schema) {
		s.WithAnyOf(has("url", jsonschema.Schema{}), has("events", jsonschema.Schema{}))
	},
	reflect.TypeFor[api.PatchLifecycle](): func(s *jsonschema.Schema) {
		s.WithAnyOf(has("ttl_seconds", jsonschema.Schema{}), has("persistent", jsonschema.Schema{}))
	},
	reflect.TypeFor[api.TemplateCheck](): func(s *jsonschema.Schema) {
		port, cmd := jsonschema.Schema{}, jsonschema.Schema{}
		s.WithAnyOf(has("port", *port.WithType(jsonschema.Integer.Type())), has("cmd", *cmd.WithType(jsonschema.String.Type()).WithMinLength(1)))
	},
}

// has is the schema of an object with a property.
func has(name string, property jsonschema.Schema) jsonschema.SchemaOrBool {
	s := jsonschema.Schema{}
	return s.WithRequired(name).WithPropertiesItem(name, property.ToSchemaOrBool()).ToSchemaOrBool()
}

// ownerOf returns the name of the struct that contains the field.
func ownerOf(p jsonschema.InterceptPropParams) string {
	t := p.ParentSchema.ReflectType
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil {
		return ""
	}
	return t.Name()
}

// sentTypes returns the names of the types in request bodies, except those of a
// PATCH.
func sentTypes(all []route) map[string]bool {
	out := map[string]bool{}
	var visit func(reflect.Type)
	visit = func(t reflect.Type) {
		switch t.Kind() {
		case reflect.Pointer, reflect.Slice:
			visit(t.Elem())
		case reflect.Struct:
			out[t.Name()] = true
			for i := range t.NumField() {
				visit(t.Field(i).Type)
			}
		}
	}
	for _, rt := range all {
		if rt.doc.body != nil && rt.method != patch {
			visit(reflect.TypeOf(rt.doc.body))
		}
	}
	return out
}

// anyObject is the schema of an empty request.
func anyObject() openapi31.MediaType {
	var example any = map[string]any{}
	return openapi31.MediaType{Schema: map[string]any{"type": "object"}, Example: &example}
}

// eventSchema returns the schema of one server-sent event: its name and its data,
// which is JSON as text. events contains an example of data for each name.
func eventSchema(r *openapi31.Reflector, events map[string]any) (map[string]any, error) {
	if len(events) == 0 {
		return nil, nil
	}
	var kinds []any
	for _, name := range slices.Sorted(maps.Keys(events)) {
		reference, err := component(r, events[name])
		if err != nil {
			return nil, fmt.Errorf("event %s: %w", name, err)
		}
		kinds = append(kinds, map[string]any{
			"type":     "object",
			"required": []string{"event", "data"},
			"properties": map[string]any{
				"event": map[string]any{"enum": []string{name}},
				"data":  map[string]any{"type": "string", "contentMediaType": "application/json", "contentSchema": reference},
				"id":    map[string]any{"type": "string"},
			},
		})
	}
	return map[string]any{"description": "Of each event.", "oneOf": kinds}, nil
}

// component adds the schema of v's type to the document and returns a reference to
// it.
func component(r *openapi31.Reflector, v any) (map[string]any, error) {
	s, err := r.JSONSchemaReflector().Reflect(v,
		jsonschema.RootRef,
		jsonschema.DefinitionsPrefix("#/components/schemas/"),
		jsonschema.CollectDefinitions(func(name string, s jsonschema.Schema) {
			if _, there := r.Spec.ComponentsEns().Schemas[name]; there {
				return
			}
			if m, err := s.ToSchemaOrBool().ToSimpleMap(); err == nil {
				r.Spec.ComponentsEns().WithSchemasItem(name, m)
			}
		}))
	if err != nil {
		return nil, err
	}
	return s.ToSchemaOrBool().ToSimpleMap()
}
