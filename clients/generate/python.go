package main

import (
	"fmt"
	"strings"
)

// pythonTaken are names that a field or a parameter cannot have in Python: those of
// keyword.kwlist that are in lower case.
var pythonTaken = map[string]bool{
	"and": true, "as": true, "assert": true, "async": true, "await": true, "break": true,
	"class": true, "continue": true, "def": true, "del": true, "elif": true, "else": true,
	"except": true, "finally": true, "for": true, "from": true, "global": true, "if": true,
	"import": true, "in": true, "is": true, "lambda": true, "nonlocal": true, "not": true, "or": true,
	"pass": true, "raise": true, "return": true, "try": true, "while": true, "with": true,
	"yield": true,
}

func pythonName(s string) string {
	s = snake(s)
	switch {
	case pythonTaken[s]:
		return s + "_"
	case s[0] >= '0' && s[0] <= '9':
		return "field_" + s
	}
	return s
}

func pythonType(t typ) string {
	name := map[kind]string{
		kindAny: "Any", kindString: "str", kindInteger: "int", kindNumber: "float", kindBoolean: "bool",
		kindTime: "datetime", kindBase64: "bytes", kindObject: "dict[str, Any]", kindCommand: "str | list[str]",
	}[t.kind]
	switch t.kind {
	case kindModel:
		name = t.name
	case kindList:
		name = "list[" + pythonType(*t.elem) + "]"
	case kindMap:
		name = "dict[str, " + pythonType(*t.elem) + "]"
	}
	if t.nullable {
		name += " | None"
	}
	return name
}

// pythonDoc is a docstring.
func pythonDoc(text, indent string) string {
	if text == "" {
		return ""
	}
	text = strings.ReplaceAll(text, `\`, `\\`)
	if strings.HasSuffix(text, `"`) {
		text += "." // a quote would end the docstring
	}
	lines := strings.TrimSuffix(wrap(text, indent, 96), "\n")
	if !strings.Contains(lines, "\n") {
		return indent + `"""` + strings.TrimPrefix(lines, indent) + `"""` + "\n"
	}
	return indent + `"""` + strings.TrimPrefix(lines, indent) + "\n" + indent + `"""` + "\n"
}

// plain reports whether a value is the same in JSON.
func (a *api) plain(t typ) bool {
	switch t.kind {
	case kindTime, kindBase64:
		return false
	case kindModel:
		m := a.model(t.name)
		return m != nil && len(m.values) > 0
	case kindList, kindMap:
		return a.plain(*t.elem)
	}
	return true
}

// pythonDecode is an expression that turns the JSON value in v into a t.
func (a *api) pythonDecode(t typ, v string) string {
	if a.plain(t) {
		return v
	}
	var out string
	switch t.kind {
	case kindTime:
		out = "datetime.fromisoformat(" + v + ")"
	case kindBase64:
		out = "b64decode(" + v + ")"
	case kindModel:
		out = t.name + ".from_json(" + v + ")"
	case kindList:
		out = "[" + a.pythonDecode(*t.elem, "e") + " for e in " + v + "]"
	case kindMap:
		out = "{k: " + a.pythonDecode(*t.elem, "e") + " for k, e in " + v + ".items()}"
	}
	return out
}

// pythonDecodeField does the same for a member of raw that may be null or absent.
func (a *api) pythonDecodeField(f field) string {
	read := fmt.Sprintf("raw[%q]", f.name)
	if !f.required {
		read = fmt.Sprintf("raw.get(%q)", f.name)
	}
	if a.plain(f.of) || f.required && !f.of.nullable {
		return a.pythonDecode(f.of, read)
	}
	return "None if (v := " + read + ") is None else " + a.pythonDecode(f.of, "v")
}

// pythonEncode is the reverse of pythonDecode.
func (a *api) pythonEncode(t typ, v string) string {
	if a.plain(t) {
		return v
	}
	switch t.kind {
	case kindTime:
		return v + ".isoformat()"
	case kindBase64:
		return "b64encode(" + v + ").decode()"
	case kindList:
		return "[" + a.pythonEncode(*t.elem, "e") + " for e in " + v + "]"
	case kindMap:
		return "{k: " + a.pythonEncode(*t.elem, "e") + " for k, e in " + v + ".items()}"
	}
	return v + ".to_json()"
}

func pythonModels(a *api) string {
	var b strings.Builder
	b.WriteString(`"""The service's types. ` + notice + `"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from ._unset import UNSET, Unset

`)
	for _, m := range a.models {
		if m.name == "Command" {
			continue
		}
		if len(m.values) > 0 {
			fmt.Fprintf(&b, "%s = Literal[\"%s\"]\n", m.name, strings.Join(m.values, `", "`))
			b.WriteString(pythonDoc(m.doc, ""))
		}
	}
	for _, m := range a.models {
		if m.name != "Command" && len(m.values) == 0 {
			a.pythonModel(&b, m)
		}
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

// open reports whether absent and null are different values of a field.
func (m model) open(f field) bool { return m.patch && !f.required && f.of.nullable }

func (a *api) pythonModel(b *strings.Builder, m model) {
	fmt.Fprintf(b, "\n\n@dataclass(slots=True, kw_only=True)\nclass %s:\n", m.name)
	b.WriteString(pythonDoc(m.doc, "    "))
	if m.doc != "" && len(m.fields) > 0 {
		b.WriteString("\n")
	}
	for _, f := range m.fields {
		t := f.of
		t.nullable = t.nullable && f.required
		fmt.Fprintf(b, "    %s: %s", pythonName(f.name), pythonType(t))
		switch {
		case m.open(f):
			b.WriteString(" | Unset | None = UNSET")
		case !f.required:
			b.WriteString(" | None = None")
		}
		b.WriteString("\n" + pythonDoc(f.doc, "    "))
	}
	if m.got {
		fmt.Fprintf(b, "\n    @classmethod\n    def from_json(cls, raw: dict[str, Any]) -> %s:\n        return cls(\n", m.name)
		for _, f := range m.fields {
			fmt.Fprintf(b, "            %s=%s,\n", pythonName(f.name), a.pythonDecodeField(f))
		}
		b.WriteString("        )\n")
	}
	if !m.sent {
		return
	}
	b.WriteString("\n    def to_json(self) -> dict[str, Any]:\n")
	if len(m.fields) == 0 {
		b.WriteString("        return {}\n")
		return
	}
	b.WriteString("        out: dict[str, Any] = {}\n")
	for _, f := range m.fields {
		v := "self." + pythonName(f.name)
		switch {
		case m.open(f):
			fmt.Fprintf(b, "        if not isinstance(%s, Unset):\n    ", v)
		case !f.required:
			fmt.Fprintf(b, "        if %s is not None:\n    ", v)
		}
		fmt.Fprintf(b, "        out[%q] = %s\n", f.name, a.pythonEncode(f.of, v))
	}
	b.WriteString("        return out\n")
}

func pythonOperations(a *api) string {
	var b strings.Builder
	b.WriteString(`"""One function for each operation of the service, which returns the call to be made.

Hand it to Berth.call or AsyncBerth.call. ` + notice + `
"""

from __future__ import annotations

from datetime import datetime
from urllib.parse import quote

from . import models as m
from ._call import Body, Call, Nothing, Page, Socket, Stream, query


def _q(segment: str) -> str:
    return quote(segment, safe="")
`)
	for _, op := range a.operations {
		a.pythonOperation(&b, op)
	}
	return b.String()
}

func (a *api) pythonOperation(b *strings.Builder, op operation) {
	var params, named []string
	for _, p := range op.pathParams {
		params = append(params, pythonName(p)+": str")
	}
	if op.body != nil {
		params = append(params, "body: "+inModels(pythonType(*op.body), *op.body))
	}
	if op.rawBody {
		params = append(params, "content: Body")
	}
	for _, q := range op.query {
		t := inModels(pythonType(q.of), q.of)
		if !q.required {
			t += " | None = None"
		}
		named = append(named, pythonName(q.name)+": "+t)
	}
	if op.idempotent {
		named = append(named, "idempotency_key: str | None = None")
	}
	if len(named) > 0 {
		params = append(params, "*")
		params = append(params, named...)
	}
	result := op.pythonResult()
	fmt.Fprintf(b, "\n\ndef %s(%s) -> %s:\n", snake(op.id), strings.Join(params, ", "), result)
	b.WriteString(pythonDoc(op.doc, "    "))

	path := op.path
	prefix := ""
	for _, p := range op.pathParams {
		prefix = "f"
		path = strings.ReplaceAll(path, "{"+p+"}", "{_q("+pythonName(p)+")}")
	}
	fmt.Fprintf(b, "    return %s(\n        method=%q,\n        path=%s%q,\n", strings.SplitN(result, "[", 2)[0], op.method, prefix, path)
	if len(op.query) > 0 || op.follow {
		b.WriteString("        query=query({\n")
		if op.follow {
			b.WriteString("            \"follow\": True,\n")
		}
		for _, q := range op.query {
			fmt.Fprintf(b, "            %q: %s,\n", q.name, pythonName(q.name))
		}
		b.WriteString("        }),\n")
	}
	if op.body != nil {
		fmt.Fprintf(b, "        json=%s,\n", a.pythonEncode(*op.body, "body"))
	}
	if op.rawBody {
		b.WriteString("        content=content,\n")
	}
	if op.idempotent {
		b.WriteString("        idempotent=True,\n        idempotency_key=idempotency_key,\n")
	}
	if op.kind == answerJSON && op.answer != nil {
		of := *op.answer
		if op.paged {
			of = *of.elem
		}
		fmt.Fprintf(b, "        decode=%s,\n", a.pythonDecoder(of))
	}
	b.WriteString("    )\n")
}

// pythonDecoder returns a function of one JSON value.
func (a *api) pythonDecoder(t typ) string {
	if t.kind == kindModel && !a.plain(t) {
		return "m." + t.name + ".from_json"
	}
	if t.kind == kindList && t.elem.kind == kindModel && !a.plain(t) {
		return "lambda raw: [m." + t.elem.name + ".from_json(e) for e in raw]"
	}
	return "lambda raw: raw"
}

func (op operation) pythonResult() string {
	switch {
	case op.kind == answerSocket:
		return "Socket"
	case op.kind == answerStream:
		return "Stream"
	case op.answer == nil:
		return "Nothing"
	case op.paged:
		return "Page[" + inModels(pythonType(*op.answer.elem), *op.answer.elem) + "]"
	}
	t := inModels(pythonType(*op.answer), *op.answer)
	if op.answer.kind == kindAny || op.answer.kind == kindObject {
		t = "object"
	}
	return "Call[" + t + "]"
}

// inModels qualifies the names of models in a type's text.
func inModels(text string, t typ) string {
	for t.elem != nil {
		t = *t.elem
	}
	if t.kind == kindModel {
		return strings.Replace(text, t.name, "m."+t.name, 1)
	}
	return text
}
