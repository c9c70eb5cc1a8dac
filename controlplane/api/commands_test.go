package api

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// What a sandbox says may contradict itself: it is whose it is.
func TestWaitReturnsWhatHasEnded(t *testing.T) {
	r := newReplica(t, func(w http.ResponseWriter, req *http.Request) {
		if strings.HasSuffix(req.URL.Path, "/output") {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "event: exit\ndata: {\"exit_code\":0}\n\n")
			return
		}
		answer(http.StatusOK, `{"id":"cmd-1","cmd":"true","status":"running","exit_code":null,"ended_at":null}`)(w, req)
	})
	var says *StreamError
	if k, err := newClient(t, r.URL).WaitCommand(t.Context(), "s", "cmd-1"); !errors.As(err, &says) {
		t.Errorf("%+v, %v", k, err)
	}
}
