package edge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/timescale"
)

// headerFunctionFailed is set by the runner of a function on its answer to an invocation
// that failed. The runner does not know which values are secret. The function's log, which
// guestapp masks, is added here.
const headerFunctionFailed = "Berth-Function-Failed"

// Bounds of the log in an answer.
const (
	maxLogLines = 20
	maxLogBytes = 4 << 10
	// logWindow is how many lines are looked at: other invocations, whose lines do not
	// count, may have ended since.
	logWindow = 100
	// maxLogRead limits what is read of the log, in bytes.
	maxLogRead = 1 << 20
	// maxFailure limits the answer of a runner, in bytes.
	maxFailure = 64 << 10
)

// logTime is how long an answer waits for the log, which is masked and written after the
// function has written it.
var logTime = timescale.Limit(2 * time.Second)

// addLog adds the last lines of a function's log to its runner's answer to an invocation
// that failed. An answer whose log cannot be read stays as it is.
func (e *Edge) addLog(resp *http.Response) {
	a, r := attemptOf(resp.Request.Context()), resp.Request
	if !a.target.function || resp.Header.Get(headerFunctionFailed) == "" || r.Method == http.MethodHead {
		return
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxFailure))
	rest := resp.Body
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(raw), rest), rest}
	var fields map[string]any
	if err != nil || json.Unmarshal(raw, &fields) != nil || fields == nil {
		return // no runner's
	}
	lines := e.lastLines(r.Context(), a, a.requestID+" "+r.Method+" ")
	if len(lines) == 0 {
		return
	}
	fields["log"] = lines
	if raw, err = json.Marshal(fields); err != nil {
		return
	}
	_ = rest.Close() // it was read to its end
	raw = append(raw, '\n')
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
	resp.Header.Set("Content-Length", strconv.Itoa(len(raw)))
}

// lastLines returns the last lines of what a program has written, masked: those before the
// line that begins with mark, for which it waits a little, or the last of all if mark is "".
func (e *Edge) lastLines(ctx context.Context, a *attempt, mark string) []string {
	ctx, cancel := context.WithTimeout(hostapi.WithRequestID(ctx, a.requestID), logTime)
	defer cancel()
	host := e.cfg.Host(a.target.sandbox.HostID, a.target.address)
	guest := appapi.NewClient(func(context.Context) (net.Conn, error) { return host.Dial(ctx, a.target.sandbox.ID, appapi.Port) })
	log, _, err := guest.RunLog(ctx, appapi.LogQuery{Tail: logWindow, Follow: mark != ""})
	if err != nil {
		e.cfg.Log.DebugContext(ctx, "log of a function not read", "request_id", a.requestID, "sandbox_id", hostapi.ShortID(a.target.sandbox.ID), "error", err)
		return nil
	}
	defer log.Close()
	return tailBefore(io.LimitReader(log, maxLogRead), mark)
}

// tailBefore returns the last lines that a reader has before the one that begins with
// mark, or before its end.
func tailBefore(r io.Reader, mark string) []string {
	var lines []string
	in := bufio.NewReaderSize(r, maxLogBytes)
	for within := false; ; { // within a line that is longer than the buffer
		raw, err := in.ReadSlice('\n')
		if !within && mark != "" && bytes.HasPrefix(raw, []byte(mark)) {
			break
		}
		switch {
		case within:
			last := &lines[len(lines)-1]
			*last = lastBytes(*last+string(raw), maxLogBytes)
		case len(raw) > 0:
			lines = append(lines, string(raw))
			lines = lines[max(0, len(lines)-maxLogLines):]
		}
		if within = errors.Is(err, bufio.ErrBufferFull); err != nil && !within {
			break
		}
	}
	size := 0
	for i, line := range slices.Backward(lines) {
		line = strings.ToValidUTF8(strings.TrimRight(line, "\r\n"), "\uFFFD")
		lines[i] = strings.ToValidUTF8(lastBytes(line, maxLogBytes), "") // without a part of a character
		if size += len(lines[i]); size > maxLogBytes {
			return lines[i+1:]
		}
	}
	return lines
}

func lastBytes(s string, n int) string { return s[max(0, len(s)-n):] }
