package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRequestsOfAppsAreAsWritten(t *testing.T) {
	var got []string
	r := newReplica(t, func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		got = append(got, strings.Join([]string{req.Method, req.RequestURI, req.Header.Get(HeaderIdempotencyKey), string(body)}, "|"))
		switch {
		case req.Method == http.MethodGet && (strings.HasSuffix(req.URL.Path, "/apps") || strings.HasSuffix(req.URL.Path, "/deploys")),
			strings.Contains(req.URL.Path, "/env") && req.Method != http.MethodPut:
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
			_, err := c.CreateApp(ctx, CreateApp{Name: "n", Source: new(AppFromUpload)}, "key")
			return err
		},
		func() error { _, err := c.GetApp(ctx, "../a"); return err },
		func() error { _, _, err := c.ListApps(ctx, Page{Limit: 3}); return err },
		func() error {
			_, err := c.PatchApp(ctx, "a", PatchApp{Port: SetNull[int](), Env: SetTo(StringMap{"A": "b"})})
			return err
		},
		func() error { _, err := c.PutAppSource(ctx, "a", strings.NewReader("tar"), -1); return err },
		func() error { _, err := c.DeployApp(ctx, "a", CreateDeployment{SourceID: "s"}, "key"); return err },
		func() error { _, err := c.GetDeployment(ctx, "a", "d"); return err },
		func() error { _, _, err := c.ListDeployments(ctx, "a", Page{Cursor: "c"}); return err },
		func() error { _, err := c.CancelDeployment(ctx, "a", "d"); return err },
		func() error { _, err := c.RollBackApp(ctx, "a", RollBackApp{}, "key"); return err },
		func() error {
			text, err := c.AppLogs(ctx, "a", 5)
			if err == nil {
				err = text.Close()
			}
			return err
		},
		func() error {
			return c.FollowAppLogs(ctx, "a", 0, func(stream string, l LogLine) error {
				lines = append(lines, stream+" "+l.Line)
				return nil
			})
		},
		func() error { _, err := c.AppEnv(ctx, "a"); return err },
		func() error {
			_, err := c.PutAppVariable(ctx, "a", "K/", PutAppVariable{Value: "v", Secret: new(true)})
			return err
		},
		func() error { _, err := c.ImportAppEnv(ctx, "a", ImportAppEnv{Dotenv: "A=b"}); return err },
		func() error { return c.DeleteAppVariable(ctx, "a", "K") },
		func() error { return c.DeleteApp(ctx, "a") },
	} {
		if err := call(); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		`POST|/v1/apps|key|{"name":"n","source":"upload"}`,
		`GET|/v1/apps/..%2Fa||`,
		`GET|/v1/apps?limit=3||`,
		`PATCH|/v1/apps/a||{"env":{"A":"b"},"port":null}`,
		`PUT|/v1/apps/a/source||tar`,
		`POST|/v1/apps/a/deploys|key|{"source_id":"s"}`,
		`GET|/v1/apps/a/deploys/d||`,
		`GET|/v1/apps/a/deploys?cursor=c||`,
		`POST|/v1/apps/a/deploys/d/cancel||{}`,
		`POST|/v1/apps/a/rollback|key|{}`,
		`GET|/v1/apps/a/runtime-logs?tail=5||`,
		`GET|/v1/apps/a/runtime-logs?follow=true||`,
		`GET|/v1/apps/a/env||`,
		`PUT|/v1/apps/a/env/K%2F||{"value":"v","secret":true}`,
		`POST|/v1/apps/a/env/import||{"dotenv":"A=b"}`,
		`DELETE|/v1/apps/a/env/K||`,
		`DELETE|/v1/apps/a||`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !slices.Equal(lines, []string{"stderr ready"}) {
		t.Errorf("lines %q", lines)
	}
}

// A deployment's log is followed through a stream that breaks, and ends with the
// deployment.
func TestFollowDeployment(t *testing.T) {
	stream := func(end string, lines ...string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for _, l := range lines {
				name, text, _ := strings.Cut(l, " ")
				_, _ = fmt.Fprintf(w, "event: %s\ndata: {\"line\":%q}\n\n", name, text)
			}
			_, _ = io.WriteString(w, end)
			_ = http.NewResponseController(w).Flush()
			if end == "" {
				panic(http.ErrAbortHandler)
			}
		}
	}
	answers := []func(http.ResponseWriter, *http.Request){
		stream("", "stdout a", "stderr a"), stream("event: error\ndata: {\"error\":\"no leader\"}\n\n", "stdout a", "stderr a", "stdout b"),
		answer(http.StatusServiceUnavailable, `{"error":"control plane unavailable"}`),
		stream("event: end\ndata: {\"id\":\"d\",\"status\":\"failed\",\"error\":\"npm ERR\"}\n\n", "stdout a", "stderr a", "stdout b", "stdout c"),
	}
	r := newReplica(t, func(w http.ResponseWriter, req *http.Request) {
		next := answers[0]
		answers = answers[1:]
		next(w, req)
	})
	var got []string
	d, err := newClient(t, r.URL).FollowDeployment(t.Context(), "a", "d", func(stream string, l LogLine) error {
		got = append(got, stream+" "+l.Line)
		return nil
	})
	if want := []string{"stdout a", "stderr a", "stdout b", "stdout c"}; err != nil || !slices.Equal(got, want) {
		t.Fatalf("%q, %v", got, err)
	}
	if d.Status != DeploymentFailed || d.Error != "npm ERR" {
		t.Errorf("%+v", d)
	}
	gone := newReplica(t, answer(http.StatusNotFound, `{"error":"not found"}`))
	if _, err := newClient(t, gone.URL).FollowDeployment(t.Context(), "a", "d", nil); StatusOf(err) != http.StatusNotFound {
		t.Errorf("%v", err)
	}
}
