package pgapi

import "encoding/json"

// HeaderRetryAfter is in a refusal with status 503 if nothing was run, because PostgreSQL
// does not serve: it may be starting, and the request may be sent again. A statement's own
// error can have the same status and SQLSTATE.
const HeaderRetryAfter = "Retry-After"

// Query is one SQL statement with its parameters, $1 and on.
type Query struct {
	SQL            string            `json:"sql"`
	Params         []json.RawMessage `json:"params,omitempty"`
	TimeoutSeconds float64           `json:"timeout_seconds,omitempty"`
}

// Queries are statements that run one after the other.
type Queries struct {
	Queries        []Query `json:"queries"`
	TimeoutSeconds float64 `json:"timeout_seconds,omitempty"` // of all together
}

// Column is one of a result.
type Column struct {
	Name string `json:"name"`
	Type string `json:"type"` // as PostgreSQL names it: "int4", "text", "_int4" for an array
}

// Result is what a statement returned. guest/pg/DESIGN.md says how each type
// becomes JSON.
type Result struct {
	Columns   []Column            `json:"columns"`
	Rows      [][]json.RawMessage `json:"rows"`
	RowCount  int64               `json:"row_count"` // rows returned, or else affected
	Command   string              `json:"command"`   // "SELECT", "INSERT"
	Truncated bool                `json:"truncated"` // there were more rows than an answer may have
}

// BatchResult is a Result or an Error.
type BatchResult struct {
	*Result
	*BatchError
}

// BatchError is the refusal of one statement of a batch.
type BatchError struct {
	Error    string `json:"error"`
	SQLState string `json:"sqlstate,omitempty"`
	Detail   string `json:"detail,omitempty"`
}

// BatchResults has a result for each statement.
type BatchResults struct {
	Results []BatchResult `json:"results"`
}

// Schema is what the tenant's role can see.
type Schema struct {
	Tables    []Table `json:"tables"`
	Truncated bool    `json:"truncated"`
}

// Table is a table, view or the like.
type Table struct {
	Schema        string        `json:"schema"`
	Name          string        `json:"name"`
	Kind          string        `json:"kind"`           // "table", "partitioned table", "view", "materialized view", "foreign table"
	EstimatedRows int64         `json:"estimated_rows"` // -1: never counted
	Columns       []TableColumn `json:"columns"`
}

// TableColumn is a column of a table.
type TableColumn struct {
	Name       string `json:"name"`
	Type       string `json:"type"` // as in SQL: "character varying(20)"
	Nullable   bool   `json:"nullable"`
	Default    string `json:"default,omitempty"`
	PrimaryKey bool   `json:"primary_key"`
}
