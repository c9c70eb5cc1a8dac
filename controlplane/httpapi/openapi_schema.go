package httpapi

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/swaggest/jsonschema-go"
	"github.com/swaggest/openapi-go/openapi31"

	"github.com/berth-cloud/berth/controlplane/api"
)

// ownSchema writes the schemas that reflection cannot find out.
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
		// A string of spaces is no command, and neither is an array that begins with "".
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
	case reflect.TypeFor[api.Patch[bool]](): // null is refused
		*s = jsonschema.Schema{}
		s.WithType(jsonschema.Boolean.Type())
	default:
		if refine := refinements[t]; p.Processed && refine != nil {
			refine(s)
		}
		if values := enums[t]; p.Processed && values != nil {
			s.WithEnum(values...)
			s.RemoveType(jsonschema.Null) // where a pointer to it came first
		}
		if d := docs[t.Name()]; p.Processed && d != "" {
			s.WithDescription(d)
		}
		return false
	}
	return true
}

// enums are the values of the types that have a few.
var enums = map[reflect.Type][]any{
	reflect.TypeFor[api.SandboxStatus](): {api.SandboxStarting, api.SandboxRunning, api.SandboxPaused,
		api.SandboxHibernated, api.SandboxFailed, api.SandboxDeleting},
	reflect.TypeFor[api.Boot]():           {api.BootRestore, api.BootCold},
	reflect.TypeFor[api.PreviewMode]():    {api.PreviewPublic, api.PreviewToken},
	reflect.TypeFor[api.FileType]():       {api.FileRegular, api.FileDir, api.FileSymlink, api.FileOther},
	reflect.TypeFor[api.EventCode]():      {api.EventOK, api.EventError, api.EventWarn},
	reflect.TypeFor[api.ForkMode]():       {api.ForkCold, api.ForkWarm},
	reflect.TypeFor[api.TemplateStatus](): {api.TemplateUnbuilt, api.TemplateQueued, api.TemplateBuilding, api.TemplateReady, api.TemplateFailed},
}

// finishProperty says of a field what its tag and its comment say: it is
// required unless it may be left out, and null only where it is a pointer.
//
// In what is sent null stands for what is left out, but in a PATCH, where it
// says something.
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
	if pattern := memberNames[p.Name]; pattern != "" && p.Field.Type == reflect.TypeFor[api.StringMap]() {
		names := jsonschema.String.ToSchemaOrBool()
		names.TypeObjectEns().WithPattern(pattern)
		p.PropertySchema.WithPropertyNames(names)
	}
	switch {
	case p.Field.Type == reflect.TypeFor[api.Patch[int64]](): // null is a value of its own
	case optional && sent[owner]:
		allowNull(p.PropertySchema)
	case p.Field.Type.Kind() != reflect.Pointer, optional:
		p.PropertySchema.RemoveType(jsonschema.Null)
	default:
		allowNull(p.PropertySchema)
	}
}

// allowNull lets a property be null too.
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

// memberNames are what the members of maps in requests may be called.
var memberNames = map[string]string{
	"env":   "^[A-Za-z_][A-Za-z0-9_]{0,255}$",
	"files": "^(/[^/]+)+$",
}

// refinements are what a type's fields mean together.
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
			return // the type is looked at for parameters too, and has none
		}
		step := jsonschema.String.ToSchemaOrBool()
		step.TypeObjectEns().WithPattern(`\S`)
		run.TypeObjectEns().WithItems(jsonschema.Items{SchemaOrBool: &step})
	},
	reflect.TypeFor[api.PatchLifecycle](): func(s *jsonschema.Schema) {
		s.WithAnyOf(has("ttl_seconds", jsonschema.Schema{}), has("persistent", jsonschema.Schema{}))
	},
	reflect.TypeFor[api.TemplateCheck](): func(s *jsonschema.Schema) {
		port, cmd := jsonschema.Schema{}, jsonschema.Schema{}
		s.WithAnyOf(has("port", *port.WithType(jsonschema.Integer.Type())), has("cmd", *cmd.WithType(jsonschema.String.Type()).WithMinLength(1)))
	},
}

// has is an object with such a property.
func has(name string, property jsonschema.Schema) jsonschema.SchemaOrBool {
	s := jsonschema.Schema{}
	return s.WithRequired(name).WithPropertiesItem(name, property.ToSchemaOrBool()).ToSchemaOrBool()
}

// ownerOf names the struct that a field stands in.
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

// sentTypes are the names of the types that bodies of requests are made of, but
// those of a PATCH.
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

// anyObject is a body that says nothing.
func anyObject() openapi31.MediaType {
	var example any = map[string]any{}
	return openapi31.MediaType{Schema: map[string]any{"type": "object"}, Example: &example}
}

// eventSchema is the schema of one server-sent event of a stream: its name and,
// as the text of data, a value in JSON. events has for each name such a value.
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

// component adds the schema of v's type to those of the document, and refers to it.
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
