package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/berth-cloud/berth/guest/pgapi"
)

// OIDs of the types whose values are no strings in JSON (catalog/pg_type.dat).
const (
	oidBool, oidInt2, oidInt4, oidOID = 16, 21, 23, 26
	oidFloat4, oidFloat8              = 700, 701
	oidJSON, oidJSONB                 = 114, 3802
)

// typeInfo is what the broker needs of a type.
type typeInfo struct {
	name string
	oid  uint32
	elem *typeInfo // of an array
}

// describe names the columns and their types.
func (s *session) describe(sd *pgconn.StatementDescription) ([]pgapi.Column, []typeInfo, error) {
	oids := append([]uint32(nil), sd.ParamOIDs...)
	for _, f := range sd.Fields {
		oids = append(oids, f.DataTypeOID)
	}
	if err := s.learn(oids); err != nil {
		return nil, nil, err
	}
	columns, types := make([]pgapi.Column, len(sd.Fields)), make([]typeInfo, len(sd.Fields))
	for i, f := range sd.Fields {
		types[i] = s.types[f.DataTypeOID]
		columns[i] = pgapi.Column{Name: f.Name, Type: types[i].name}
	}
	return columns, types, nil
}

// learn asks for the types that the session does not know yet.
func (s *session) learn(oids []uint32) error {
	var unknown []string
	for _, oid := range oids {
		if _, ok := s.types[oid]; !ok {
			unknown = append(unknown, strconv.FormatUint(uint64(oid), 10))
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	// A domain is as its base type; typelem of what is no true array is something else.
	const sql = `SELECT t.oid, t.typname, coalesce(nullif(b.typbasetype, 0), b.oid), e.oid, e.typname
		FROM pg_catalog.pg_type t
		JOIN pg_catalog.pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
		LEFT JOIN pg_catalog.pg_type e ON e.oid = b.typelem AND b.typsubscript = 'pg_catalog.array_subscript_handler'::pg_catalog.regproc AND e.typdelim = ','
		WHERE t.oid = ANY($1)`
	result := s.conn.ExecParams(context.Background(), sql, [][]byte{[]byte("{" + strings.Join(unknown, ",") + "}")}, nil, nil, nil).Read()
	if result.Err != nil {
		return result.Err
	}
	for _, row := range result.Rows {
		oid, base := number(row[0]), number(row[2])
		t := typeInfo{name: string(row[1]), oid: base}
		if row[3] != nil {
			t.elem = &typeInfo{name: string(row[4]), oid: number(row[3])}
		}
		s.types[oid] = t
	}
	for _, oid := range oids {
		if _, ok := s.types[oid]; !ok { // its type has just been dropped
			s.types[oid] = typeInfo{oid: oid}
		}
	}
	return nil
}

func number(text []byte) uint32 {
	n, _ := strconv.ParseUint(string(text), 10, 32)
	return uint32(n)
}

var null = json.RawMessage("null")

// toJSON turns a value in PostgreSQL's text format into JSON. What a JavaScript number
// would not hold (int8, numeric) is a string, and so is every other type but those
// that JSON has; DESIGN.md has the table.
func (t typeInfo) toJSON(text []byte) json.RawMessage {
	if text == nil {
		return null
	}
	if t.elem != nil {
		if out, ok := arrayToJSON(*t.elem, text); ok {
			return out
		}
		return quoted(text)
	}
	switch t.oid {
	case oidBool:
		return json.RawMessage(strconv.FormatBool(string(text) == "t"))
	case oidInt2, oidInt4, oidOID:
		return bytes.Clone(text)
	case oidFloat4, oidFloat8:
		if f, err := strconv.ParseFloat(string(text), 64); err == nil && !math.IsNaN(f) && !math.IsInf(f, 0) && json.Valid(text) {
			return bytes.Clone(text)
		}
	case oidJSON, oidJSONB:
		var out bytes.Buffer // one line, whatever the value's own form is
		if json.Compact(&out, text) == nil {
			return out.Bytes()
		}
	}
	return quoted(text)
}

func quoted(text []byte) json.RawMessage {
	out, err := json.Marshal(string(text))
	if err != nil {
		return null
	}
	return out
}

// arrayToJSON reads an array's text: {1,NULL,"a \"b\"",{2,3}}, with bounds before it
// where they are not from 1. Bounds are dropped.
func arrayToJSON(elem typeInfo, text []byte) (json.RawMessage, bool) {
	if len(text) > 0 && text[0] == '[' {
		_, rest, ok := bytes.Cut(text, []byte("="))
		if !ok {
			return nil, false
		}
		text = rest
	}
	p := arrayText{rest: text, elem: elem}
	if !p.array(0) || len(p.rest) > 0 {
		return nil, false
	}
	return p.out.Bytes(), true
}

type arrayText struct {
	rest []byte
	elem typeInfo
	out  bytes.Buffer
}

const maxDimensions = 6 // PostgreSQL's

func (p *arrayText) take(b byte) bool {
	if len(p.rest) > 0 && p.rest[0] == b {
		p.rest = p.rest[1:]
		return true
	}
	return false
}

func (p *arrayText) array(depth int) bool {
	if depth >= maxDimensions || !p.take('{') {
		return false
	}
	p.out.WriteByte('[')
	if p.take('}') {
		p.out.WriteByte(']')
		return true
	}
	for {
		if len(p.rest) > 0 && p.rest[0] == '{' {
			if !p.array(depth + 1) {
				return false
			}
		} else if !p.element() {
			return false
		}
		if p.take('}') {
			p.out.WriteByte(']')
			return true
		}
		if !p.take(',') {
			return false
		}
		p.out.WriteByte(',')
	}
}

func (p *arrayText) element() bool {
	var value []byte
	isQuoted := p.take('"')
	for len(p.rest) > 0 {
		c := p.rest[0]
		switch {
		case c == '\\' && len(p.rest) > 1:
			value = append(value, p.rest[1])
			p.rest = p.rest[2:]
			continue
		case isQuoted && c == '"':
			p.rest = p.rest[1:]
			if value == nil {
				value = []byte{}
			}
			p.out.Write(p.elem.toJSON(value))
			return true
		case !isQuoted && (c == ',' || c == '}'):
			if string(value) == "NULL" {
				value = nil
			}
			p.out.Write(p.elem.toJSON(value))
			return true
		}
		value = append(value, c)
		p.rest = p.rest[1:]
	}
	return false
}

// params turns JSON into PostgreSQL's text format: what a parameter's type makes of a
// value is PostgreSQL's to say.
func (s *session) params(values []json.RawMessage, oids []uint32) ([][]byte, error) {
	if len(values) != len(oids) {
		return nil, fmt.Errorf("%w: the statement has %d parameters, params has %d", errRefused, len(oids), len(values))
	}
	out := make([][]byte, len(values))
	for i, v := range values {
		text, err := s.types[oids[i]].fromJSON(v)
		if err != nil {
			return nil, fmt.Errorf("%w: params[%d]: %w", errRefused, i, err)
		}
		out[i] = text
	}
	return out, nil
}

func (t typeInfo) fromJSON(raw json.RawMessage) ([]byte, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || !json.Valid(raw) {
		return nil, errors.New("not JSON")
	}
	switch raw[0] {
	case 'n':
		return nil, nil
	case '"':
		var text string
		if err := json.Unmarshal(raw, &text); err != nil {
			return nil, err
		}
		if strings.ContainsRune(text, 0) {
			return nil, errors.New("PostgreSQL's text has no NUL characters")
		}
		return []byte(text), nil
	case '[':
		if t.elem != nil {
			return t.arrayFromJSON(raw, 0)
		}
	}
	return raw, nil // a number, true, false, or JSON for a json column
}

func (t typeInfo) arrayFromJSON(raw json.RawMessage, depth int) ([]byte, error) {
	var values []json.RawMessage
	if err := json.Unmarshal(raw, &values); err != nil {
		return nil, err
	}
	if depth >= maxDimensions {
		return nil, fmt.Errorf("an array of more than %d dimensions", maxDimensions)
	}
	out := []byte{'{'}
	for i, v := range values {
		if i > 0 {
			out = append(out, ',')
		}
		v = bytes.TrimSpace(v)
		if v[0] == '[' && t.elem.oid != oidJSON && t.elem.oid != oidJSONB {
			inner, err := t.arrayFromJSON(v, depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, inner...)
			continue
		}
		text, err := t.elem.fromJSON(v)
		if err != nil {
			return nil, err
		}
		if text == nil {
			out = append(out, "NULL"...)
			continue
		}
		out = append(out, '"')
		for _, c := range text {
			if c == '"' || c == '\\' {
				out = append(out, '\\')
			}
			out = append(out, c)
		}
		out = append(out, '"')
	}
	return append(out, '}'), nil
}
