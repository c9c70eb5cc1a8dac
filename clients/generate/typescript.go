package main

import (
	"fmt"
	"regexp"
	"strings"
)

func typescriptType(t typ) string {
	name := map[kind]string{
		kindAny: "unknown", kindString: "string", kindInteger: "number", kindNumber: "number", kindBoolean: "boolean",
		kindTime: "string", kindBase64: "string", kindObject: "Record<string, unknown>", kindCommand: "string | string[]",
	}[t.kind]
	switch t.kind {
	case kindModel:
		name = t.name
	case kindList:
		name = typescriptType(*t.elem) + "[]"
	case kindMap:
		name = "Record<string, " + typescriptType(*t.elem) + ">"
	}
	if t.nullable {
		name += " | null"
	}
	return name
}

func typescriptDoc(text, indent string) string {
	if text == "" {
		return ""
	}
	text = strings.ReplaceAll(text, "*/", "* /")
	if one := indent + "/** " + text + " */\n"; len(one) <= 100 {
		return one
	}
	return indent + "/**\n" + wrap(text, indent+" * ", 100) + indent + " */\n"
}

// typescriptName quotes what is no identifier.
func typescriptName(s string) string {
	if s[0] >= '0' && s[0] <= '9' {
		return `"` + s + `"`
	}
	return s
}

func typescriptModels(a *api) string {
	var b strings.Builder
	b.WriteString("// The service's types. " + notice + "\n")
	for _, m := range a.models {
		if m.name == "Command" {
			continue
		}
		b.WriteString("\n" + typescriptDoc(m.doc, ""))
		switch {
		case len(m.values) > 0:
			fmt.Fprintf(&b, "export type %s = \"%s\";\n", m.name, strings.Join(m.values, `" | "`))
		case len(m.fields) == 0:
			fmt.Fprintf(&b, "export type %s = Record<string, never>;\n", m.name)
		default:
			fmt.Fprintf(&b, "export interface %s {\n", m.name)
			for _, f := range m.fields {
				optional := "?"
				if f.required {
					optional = ""
				}
				doc := f.doc
				switch f.of.kind {
				case kindTime:
					doc = strings.TrimSpace(doc + " (RFC 3339)")
				case kindBase64:
					doc = strings.TrimSpace(doc + " (base64)")
				}
				fmt.Fprintf(&b, "%s  %s%s: %s;\n", typescriptDoc(doc, "  "), typescriptName(f.name), optional, typescriptType(f.of))
			}
			b.WriteString("}\n")
		}
	}
	return b.String()
}

func typescriptOperations(a *api) string {
	var b strings.Builder
	b.WriteString(`// One function for each operation of the service, which returns the call to be
// made: hand it to Berth.call. ` + notice + `
import type { Body, Call, Nothing, Page, Socket, Stream } from "./call.js";
import type * as m from "./models.js";

const q = encodeURIComponent;
`)
	for _, op := range a.operations {
		op.typescript(&b)
	}
	return b.String()
}

var pathParam = regexp.MustCompile(`\{([^}]+)\}`)

func (op operation) typescript(b *strings.Builder) {
	var params, options []string
	for _, p := range op.pathParams {
		params = append(params, camel(p)+": string")
	}
	if op.body != nil {
		params = append(params, "body: "+inModels(typescriptType(*op.body), *op.body))
	}
	if op.rawBody {
		params = append(params, "content: Body")
	}
	must := false
	for _, q := range op.query {
		mark := "?"
		if q.required {
			mark, must = "", true
		}
		t := inModels(typescriptType(q.of), q.of)
		if !q.required {
			t += " | undefined"
		}
		options = append(options, q.name+mark+": "+t)
	}
	if op.idempotent {
		options = append(options, "idempotencyKey?: string | undefined")
	}
	if len(options) > 0 {
		param := "options: { " + strings.Join(options, "; ") + " }"
		if !must {
			param += " = {}"
		}
		params = append(params, param)
	}
	path := "`" + pathParam.ReplaceAllStringFunc(op.path, func(p string) string {
		return "${q(" + camel(strings.Trim(p, "{}")) + ")}"
	}) + "`"
	if len(op.pathParams) == 0 {
		path = `"` + op.path + `"`
	}
	kindName, result := op.typescriptResult()
	fields := []string{fmt.Sprintf("kind: %q", kindName), fmt.Sprintf("method: %q", op.method), "path: " + path}
	if len(op.query) > 0 || op.follow {
		var values []string
		if op.follow {
			values = append(values, "follow: true")
		}
		for _, q := range op.query {
			values = append(values, q.name+": options."+q.name)
		}
		fields = append(fields, "query: { "+strings.Join(values, ", ")+" }")
	}
	if op.body != nil {
		fields = append(fields, "json: body")
	}
	if op.rawBody {
		fields = append(fields, "content")
	}
	if op.idempotent {
		fields = append(fields, "idempotent: true", "idempotencyKey: options.idempotencyKey")
	}
	b.WriteString("\n" + typescriptDoc(op.doc, ""))
	fmt.Fprintf(b, "export function %s(%s): %s {\n  return {\n", op.id, strings.Join(params, ", "), result)
	for _, f := range fields {
		fmt.Fprintf(b, "    %s,\n", f)
	}
	b.WriteString("  };\n}\n")
}

func (op operation) typescriptResult() (kindName, result string) {
	switch {
	case op.kind == answerSocket:
		return "socket", "Socket"
	case op.kind == answerStream:
		return "stream", "Stream"
	case op.answer == nil:
		return "nothing", "Nothing"
	case op.paged:
		return "page", "Page<" + inModels(typescriptType(*op.answer.elem), *op.answer.elem) + ">"
	}
	return "call", "Call<" + inModels(typescriptType(*op.answer), *op.answer) + ">"
}
