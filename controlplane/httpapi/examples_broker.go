package httpapi

import (
	"encoding/json"

	"github.com/berth-cloud/berth/controlplane/api"
)

var (
	exampleSQLRowCount = int64(1)

	exampleQuery = api.SQLQuery{SQL: "SELECT id, name FROM users WHERE id = $1", Params: []json.RawMessage{json.RawMessage("7")}}

	exampleQueryResult = api.SQLResult{
		Columns: []api.SQLColumn{{Name: "id", Type: "int4"}, {Name: "name", Type: "text"}},
		Rows:    [][]json.RawMessage{{json.RawMessage("7"), json.RawMessage(`"Ann"`)}}, RowCount: 1, Command: "SELECT",
	}

	exampleQueries = api.SQLQueries{Queries: []api.SQLQuery{
		{SQL: "INSERT INTO users (name) VALUES ($1)", Params: []json.RawMessage{json.RawMessage(`"Bob"`)}},
		{SQL: "SELECT oops"},
	}}

	exampleBatchResults = api.SQLBatchResults{Results: []api.SQLBatchResult{
		{RowCount: &exampleSQLRowCount, Command: "INSERT"},
		{Error: `column "oops" does not exist`, SQLState: "42703"},
	}}

	exampleTransaction = api.SQLQueries{Queries: []api.SQLQuery{
		{SQL: "UPDATE accounts SET balance = balance - 5 WHERE id = 1"},
		{SQL: "UPDATE accounts SET balance = balance + 5 WHERE id = 2"},
	}}

	exampleTransactionResults = api.SQLBatchResults{Results: []api.SQLBatchResult{
		{RowCount: &exampleSQLRowCount, Command: "UPDATE"},
		{RowCount: &exampleSQLRowCount, Command: "UPDATE"},
	}}

	exampleSchema = api.DatabaseSchema{Tables: []api.DatabaseTable{{
		Schema: "public", Name: "users", Kind: "table", EstimatedRows: 120,
		Columns: []api.DatabaseColumn{
			{Name: "id", Type: "integer", Default: "nextval('users_id_seq'::regclass)", PrimaryKey: true},
			{Name: "name", Type: "text"},
		},
	}}}
)
