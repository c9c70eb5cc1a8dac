package agent

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"

	"github.com/berth-cloud/berth/guest/files"
	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/startlog"
)

// logs sends the start command's output as it was and, if asked, as it comes.
func (s *Server) logs(w http.ResponseWriter, r *http.Request) {
	q, err := logQuery(r)
	if err != nil {
		refuse(w, err)
		return
	}
	ctx, leave, ok := s.outputs(w, r, q.Follow)
	if !ok {
		return
	}
	defer leave()
	w.Header().Set("Content-Type", "application/x-ndjson")
	answer := http.NewResponseController(w)
	out := bufio.NewWriterSize(w, 16<<10)
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	err = startlog.Read(ctx, s.cfg.StartLog, q, func(l guestapi.LogLine) error { return lines.Encode(l) }, func() error {
		if err := out.Flush(); err != nil {
			return err
		}
		return answer.Flush()
	})
	if err != nil && ctx.Err() == nil {
		s.cfg.Log.Error("logs not read", "error", err)
	}
	abortOn(err)
}

func logQuery(r *http.Request) (startlog.Query, error) {
	q := startlog.Query{Stream: guestapi.StreamBoth, Tail: math.MaxInt}
	values := r.URL.Query()
	switch stream := values.Get("stream"); stream {
	case "":
	case guestapi.StreamStdout, guestapi.StreamStderr, guestapi.StreamBoth:
		q.Stream = stream
	default:
		return q, &files.Refusal{Status: http.StatusBadRequest, Text: "invalid stream", Detail: fmt.Sprintf("%.20q is not stdout, stderr or both", stream)}
	}
	if text := values.Get("tail"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return q, &files.Refusal{Status: http.StatusBadRequest, Text: "invalid tail", Detail: fmt.Sprintf("%.20q is not a number from 0", text)}
		}
		q.Tail = n
	}
	var err error
	q.Follow, err = flag(r, "follow")
	return q, err
}
