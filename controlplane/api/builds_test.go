package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
)

// says is a build's log: lines, and then what ends it, "" for a stream that is cut.
func says(end string, lines ...string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, l := range lines {
			_, _ = fmt.Fprintf(w, "event: log\ndata: {\"line\":%q}\n\n", l)
		}
		_, _ = io.WriteString(w, end)
		if end == "" {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	}
}

const (
	endsReady = "event: end\ndata: {\"status\":\"ready\"}\n\n"
	endsError = "event: error\ndata: {\"error\":\"no leader\"}\n\n"
)

func TestFollowBuild(t *testing.T) {
	for name, c := range map[string]struct {
		answers []func(http.ResponseWriter, *http.Request)
		want    []string
		status  int // of the error; 0: none
	}{
		"at once": {
			answers: []func(http.ResponseWriter, *http.Request){says(endsReady, "a", "b")}, want: []string{"a", "b"},
		},
		"cut off": {
			answers: []func(http.ResponseWriter, *http.Request){says("", "a", "b"), says("", "a", "b", "b"), says(endsReady, "a", "b", "b", "c")},
			want:    []string{"a", "b", "b", "c"},
		},
		"the leader changes": {
			answers: []func(http.ResponseWriter, *http.Request){
				says(endsError, "a"), answer(http.StatusBadGateway, `{"error":"agent unreachable"}`), says("", "a"), says(endsReady, "a", "b"),
			},
			want: []string{"a", "b"},
		},
		"begun anew elsewhere": {
			answers: []func(http.ResponseWriter, *http.Request){says("", "a", "b", "c"), says(endsReady, "a", "d", "c")},
			want:    []string{"a", "b", "c", "d", "c"},
		},
		"gone meanwhile": {
			answers: []func(http.ResponseWriter, *http.Request){says("", "a"), answer(http.StatusNotFound, `{"error":"build not found"}`)},
			want:    []string{"a"}, status: http.StatusNotFound,
		},
		"unknown": {
			answers: []func(http.ResponseWriter, *http.Request){answer(http.StatusNotFound, `{"error":"build not found"}`)},
			status:  http.StatusNotFound,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			next := make(chan func(http.ResponseWriter, *http.Request), len(c.answers))
			for _, a := range c.answers {
				next <- a
			}
			r := newReplica(t, func(w http.ResponseWriter, req *http.Request) { (<-next)(w, req) })
			var got []string
			end, err := newClient(t, r.URL).FollowBuild(t.Context(), "bld-1", func(l BuildLog) error {
				got = append(got, l.Line)
				return nil
			})
			if !slices.Equal(got, c.want) || StatusOf(err) != c.status || (err == nil) != (c.status == 0) {
				t.Errorf("got %q, %v", got, err)
			}
			if err == nil && end.Status != TemplateReady {
				t.Errorf("it ended as %+v", end)
			}
			if len(next) != 0 {
				t.Errorf("%d answers were not asked for", len(next))
			}
		})
	}
}

// Who follows can end it: by its context, and by an error of its own.
func TestFollowBuildEnds(t *testing.T) {
	r := newReplica(t, says("", "a"))
	enough := errors.New("enough")
	if _, err := newClient(t, r.URL).FollowBuild(t.Context(), "bld-1", func(BuildLog) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("%v, want the reader's error", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := newClient(t, r.URL).FollowBuild(ctx, "bld-1", func(BuildLog) error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the context's", err)
	}
}
