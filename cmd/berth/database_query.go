package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

func (a *app) dbQuery() *cobra.Command {
	var timeout float64
	cmd := &cobra.Command{
		Use:   "query DB SQL [PARAMETER…]",
		Short: "Run an SQL statement over HTTP and print its rows",
		Long: `Run one SQL statement by the database's broker, which wakes it if it sleeps, and
print its rows. Parameters are for $1 and on, as PostgreSQL's text; NULL is written
in SQL. Of many rows the first 10,000 come.`,
		Example: `  berth db query $db 'SELECT now()'
  berth db query $db 'SELECT $1::int + $2::int' 40 2
  berth db query $db 'TABLE orders' --json | jq -c '.rows[]'`,
		Args:              wants(2, -1, "DB or SQL"),
		ValidArgsFunction: a.completeDatabases,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := a.theDatabase(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			in := api.SQLQuery{SQL: args[1], TimeoutSeconds: timeout}
			for _, p := range args[2:] {
				raw, err := json.Marshal(p)
				if err != nil {
					return err
				}
				in.Params = append(in.Params, raw)
			}
			conn, err := a.awake(cmd.Context(), c, id)
			if err != nil {
				return err
			}
			result, err := c.QueryDatabase(cmd.Context(), id, conn.BrokerToken, in)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(result)
			}
			return a.printRows(result)
		},
	}
	cmd.Flags().Float64Var(&timeout, "timeout", 0, "seconds that the statement may take (default 30, at most 600)")
	return cmd
}

func (a *app) printRows(r *api.SQLResult) error {
	if len(r.Columns) == 0 {
		a.note("%s %d", r.Command, r.RowCount)
		return nil
	}
	heading := make([]string, len(r.Columns))
	for i, c := range r.Columns {
		heading[i] = c.Name
	}
	rows := [][]string{heading}
	for _, row := range r.Rows {
		cells := make([]string, len(row))
		for i, raw := range row {
			cells[i] = cell(raw)
		}
		rows = append(rows, cells)
	}
	if err := a.table(rows); err != nil {
		return err
	}
	if r.Truncated {
		a.note("these are the first %d rows: there are more", len(r.Rows))
	}
	return nil
}

// cell is a value of a row on one line.
func cell(raw json.RawMessage) string {
	var s *string
	if json.Unmarshal(raw, &s) != nil {
		return string(raw)
	}
	if s == nil {
		return ""
	}
	if strings.ContainsFunc(*s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return fmt.Sprintf("%q", *s)
	}
	return *s
}
