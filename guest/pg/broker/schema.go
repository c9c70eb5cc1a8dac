package broker

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/berth-cloud/berth/guest/pgapi"
)

// maxColumns bounds a schema's answer.
const maxColumns = 50_000

// schemaQuery lists what the role may look into. It names pg_catalog everywhere: the
// session is the tenant's, and so is its search path.
const schemaQuery = `
SELECT n.nspname, c.relname,
  CASE c.relkind WHEN 'r' THEN 'table' WHEN 'p' THEN 'partitioned table' WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' ELSE 'foreign table' END,
  c.reltuples::pg_catalog.int8, a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), NOT a.attnotnull,
  coalesce(pg_catalog.pg_get_expr(d.adbin, d.adrelid), ''),
  coalesce(a.attnum OPERATOR(pg_catalog.=) ANY (i.indkey::pg_catalog.int2[]), false)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid OPERATOR(pg_catalog.=) c.oid AND d.adnum OPERATOR(pg_catalog.=) a.attnum
LEFT JOIN pg_catalog.pg_index i ON i.indrelid OPERATOR(pg_catalog.=) c.oid AND i.indisprimary
WHERE c.relkind OPERATOR(pg_catalog.=) ANY ('{r,p,v,m,f}'::pg_catalog."char"[])
  AND n.nspname OPERATOR(pg_catalog.<>) 'information_schema'::pg_catalog.name AND NOT pg_catalog.starts_with(n.nspname::pg_catalog.text, 'pg_')
  AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
  AND pg_catalog.has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE')
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend e WHERE e.objid OPERATOR(pg_catalog.=) c.oid AND e.deptype OPERATOR(pg_catalog.=) 'e'::pg_catalog."char")
ORDER BY n.nspname, c.relname, a.attnum`

func (b *Broker) schema(w http.ResponseWriter, r *http.Request) {
	ctx, cancel, err := timeout(r.Context(), 0)
	if err != nil {
		refuse(w, err)
		return
	}
	defer cancel()
	s, err := b.acquire(ctx)
	if err != nil {
		refuse(w, err)
		return
	}
	rows := &tables{}
	rows.Tables = []pgapi.Table{}
	_, err = s.run(ctx, pgapi.Query{SQL: schemaQuery}, rows)
	b.release(s, err == nil || ctx.Err() == nil)
	if err != nil {
		refuse(w, err)
		return
	}
	answer(w, http.StatusOK, rows.Schema)
}

// tables puts the rows of schemaQuery together.
type tables struct {
	pgapi.Schema
	n int
}

func (t *tables) columns([]pgapi.Column) error { return nil }

func (t *tables) row(row []json.RawMessage) (bool, error) {
	if t.n++; t.n > maxColumns {
		t.Truncated = true
		return false, nil
	}
	if len(row) != 9 {
		return false, errors.New("another query")
	}
	var (
		table  pgapi.Table
		column pgapi.TableColumn
		name   *string
		typ    *string
		rows   json.Number
	)
	for i, into := range []any{&table.Schema, &table.Name, &table.Kind, &rows, &name, &typ, &column.Nullable, &column.Default, &column.PrimaryKey} {
		raw := row[i]
		if i == 3 { // an int8 is a string
			raw = raw[1 : len(raw)-1]
		}
		if err := json.Unmarshal(raw, into); err != nil {
			return false, err
		}
	}
	table.EstimatedRows, _ = rows.Int64()
	if n := len(t.Tables); n == 0 || t.Tables[n-1].Schema != table.Schema || t.Tables[n-1].Name != table.Name {
		table.Columns = []pgapi.TableColumn{}
		t.Tables = append(t.Tables, table)
	}
	if name != nil && typ != nil {
		column.Name, column.Type = *name, *typ
		last := &t.Tables[len(t.Tables)-1]
		last.Columns = append(last.Columns, column)
	}
	return true, nil
}
