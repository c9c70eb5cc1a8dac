package api

import "encoding/json"

// SQLQuery is one SQL statement with its parameters ($1, $2, …).
type SQLQuery struct {
	SQL            string            `json:"sql"`
	Params         []json.RawMessage `json:"params,omitempty"`
	TimeoutSeconds float64           `json:"timeout_seconds,omitempty"` // default 30, at most 600; without effect in a batch or a transaction
}

// SQLQueries are statements that run in sequence.
type SQLQueries struct {
	Queries        []SQLQuery `json:"queries"`
	TimeoutSeconds float64    `json:"timeout_seconds,omitempty"` // for all statements together; default 30, at most 600
}

// SQLColumn is a column of a result.
type SQLColumn struct {
	Name string `json:"name"`
	Type string `json:"type"` // as PostgreSQL names it: "int4", "text", "_int4" for an array
}

// SQLResult is what a statement returned.
type SQLResult struct {
	Columns   []SQLColumn         `json:"columns"`
	Rows      [][]json.RawMessage `json:"rows"`
	RowCount  int64               `json:"row_count"` // rows returned, or rows affected if the statement returns none
	Command   string              `json:"command"`   // "SELECT", "INSERT"
	Truncated bool                `json:"truncated"` // rows were left out because the answer is limited
}

// SQLBatchResult is the result of one statement of a batch, or its error.
type SQLBatchResult struct {
	Columns   []SQLColumn         `json:"columns,omitempty"`
	Rows      [][]json.RawMessage `json:"rows,omitempty"`
	RowCount  *int64              `json:"row_count,omitempty"`
	Command   string              `json:"command,omitempty"`
	Truncated bool                `json:"truncated,omitempty"`

	Error    string `json:"error,omitempty"`
	SQLState string `json:"sqlstate,omitempty"`
	Detail   string `json:"detail,omitempty"`
}

// SQLBatchResults has a result for each statement.
type SQLBatchResults struct {
	Results []SQLBatchResult `json:"results"`
}

// DatabaseSchema contains the tables that the database's role can see.
type DatabaseSchema struct {
	Tables    []DatabaseTable `json:"tables"`
	Truncated bool            `json:"truncated"`
}

// DatabaseTable is a table, a view or another relation with columns.
type DatabaseTable struct {
	Schema        string           `json:"schema"`
	Name          string           `json:"name"`
	Kind          string           `json:"kind"`           // "table", "partitioned table", "view", "materialized view", "foreign table"
	EstimatedRows int64            `json:"estimated_rows"` // -1: PostgreSQL has no estimate yet
	Columns       []DatabaseColumn `json:"columns"`
}

// DatabaseColumn is a column of a table.
type DatabaseColumn struct {
	Name       string `json:"name"`
	Type       string `json:"type"` // as in SQL: "character varying(20)"
	Nullable   bool   `json:"nullable"`
	Default    string `json:"default,omitempty"`
	PrimaryKey bool   `json:"primary_key"`
}
