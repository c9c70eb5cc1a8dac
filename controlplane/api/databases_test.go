package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRequestsOfDatabasesAreAsWritten(t *testing.T) {
	var got []string
	r := newReplica(t, func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		line := []string{req.Method, req.RequestURI, req.Header.Get(HeaderIdempotencyKey), string(body)}
		if bearer := req.Header.Get("Authorization"); bearer != "Bearer brt_x_y" {
			line = append(line, bearer)
		}
		got = append(got, strings.Join(line, "|"))
		switch {
		case req.Method == http.MethodGet && req.URL.Path == "/v1/databases":
			answer(http.StatusOK, `[]`)(w, req)
		case req.URL.Query().Get("follow") != "":
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "event: stderr\ndata: {\"line\":\"ready\"}\n\n")
		default:
			answer(http.StatusOK, `{}`)(w, req)
		}
	})
	c := newClient(t, r.URL)
	ctx := context.Background()
	var lines []string
	for _, call := range []func() error{
		func() error {
			_, err := c.CreateDatabase(ctx, CreateDatabase{Label: "a", Size: new(Database4G)}, "key")
			return err
		},
		func() error { _, err := c.GetDatabase(ctx, "../a"); return err },
		func() error { _, _, err := c.ListDatabases(ctx, Page{Limit: 3}); return err },
		func() error { _, err := c.GetDatabaseConnection(ctx, "a"); return err },
		func() error { _, err := c.PatchDatabase(ctx, "a", PatchDatabase{}); return err },
		func() error { _, err := c.WakeDatabase(ctx, "a"); return err },
		func() error { _, err := c.ResetDatabaseCredentials(ctx, "a"); return err },
		func() error {
			_, err := c.CloneDatabase(ctx, "a", CloneDatabase{TargetTime: new("2026-11-20T13:00:00Z")}, "")
			return err
		},
		func() error { _, err := c.FailoverDatabase(ctx, "a", FailoverDatabase{Force: true}); return err },
		func() error { _, err := c.GetDatabaseArchive(ctx, "a"); return err },
		func() error {
			text, err := c.DatabaseLogs(ctx, "a", 5)
			if err == nil {
				err = text.Close()
			}
			return err
		},
		func() error {
			return c.FollowDatabaseLogs(ctx, "a", 0, func(stream string, l LogLine) error {
				lines = append(lines, stream+" "+l.Line)
				return nil
			})
		},
		func() error {
			_, err := c.QueryDatabase(ctx, "a", "brk_1", SQLQuery{SQL: "SELECT $1", Params: []json.RawMessage{[]byte("1")}})
			return err
		},
		func() error {
			_, err := c.BatchDatabase(ctx, "a", "brk_1", SQLQueries{Queries: []SQLQuery{{SQL: "b"}}})
			return err
		},
		func() error {
			_, err := c.TransactDatabase(ctx, "a", "brk_1", SQLQueries{Queries: []SQLQuery{{SQL: "t"}}})
			return err
		},
		func() error { _, err := c.GetDatabaseSchema(ctx, "a", "brk_1"); return err },
		func() error { return c.DeleteDatabase(ctx, "a") },
	} {
		if err := call(); err != nil {
			t.Error(err)
		}
	}
	want := []string{
		`POST|/v1/databases|key|{"label":"a","size":"4g"}`,
		"GET|/v1/databases/..%2Fa||",
		"GET|/v1/databases?limit=3||",
		"GET|/v1/databases/a/connection||",
		`PATCH|/v1/databases/a||{"always_on":false}`,
		"POST|/v1/databases/a/wake||{}",
		"POST|/v1/databases/a/reset-credentials||{}",
		`POST|/v1/databases/a/clone||{"target_time":"2026-11-20T13:00:00Z"}`,
		`POST|/v1/databases/a/failover||{"force":true}`,
		"GET|/v1/databases/a/archive||",
		"GET|/v1/databases/a/logs?tail=5||",
		"GET|/v1/databases/a/logs?follow=true||",
		`POST|/v1/databases/a/proxy/query||{"sql":"SELECT $1","params":[1]}|Bearer brk_1`,
		`POST|/v1/databases/a/proxy/batch||{"queries":[{"sql":"b"}]}|Bearer brk_1`,
		`POST|/v1/databases/a/proxy/transaction||{"queries":[{"sql":"t"}]}|Bearer brk_1`,
		"GET|/v1/databases/a/proxy/schema|||Bearer brk_1",
		"DELETE|/v1/databases/a||",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"stderr ready"}, lines); diff != "" {
		t.Error(diff)
	}
}
