package httpapi

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/stall"
)

// heldAnswer is how much of an answer is held back, in bytes: if that is all, the
// answer has a length, and an error can still become a status.
const heldAnswer = 64 << 10

// large is a JSON answer that may be large. It is sent in pieces, each of which the
// client must read in time, and is never in memory as a whole.
type large struct {
	c     *gin.Context
	held  bytes.Buffer
	begun bool // part of it was sent
}

const typeJSON = "application/json; charset=utf-8"

// Write implements io.Writer. It aborts the request if the client does not read.
func (l *large) Write(p []byte) (int, error) {
	l.held.Write(p)
	if l.held.Len() >= heldAnswer {
		l.send()
	}
	return len(p), nil
}

func (l *large) send() {
	if !l.begun {
		l.begun = true
		l.c.Header("Content-Type", typeJSON)
		l.c.Status(http.StatusOK)
	}
	// The next piece may be long in coming.
	if _, err := stall.New(l.c.Writer, stallTimeout).Write(l.held.Bytes()); err != nil {
		panic(http.ErrAbortHandler) // the client is gone or does not read
	}
	l.held.Reset()
}

// end sends the rest.
func (l *large) end() {
	if l.begun {
		l.send()
		return
	}
	writeBytes(l.c, http.StatusOK, typeJSON, l.held.Bytes())
}

// fail ends an answer that cannot be completed. If nothing was sent, it returns err,
// which becomes a status.
func (l *large) fail(err error) error {
	if l.begun {
		panic(http.ErrAbortHandler)
	}
	return err
}

func (l *large) json(v any) { l.held.Write(bytes.TrimSuffix(core.Marshal(v), []byte("\n"))) }

// textPiece is how much of a text is encoded at once. JSON may need six bytes for
// one.
const textPiece = 16 << 10

// text writes a program's output as a JSON string, with U+FFFD for what is not
// UTF-8.
func (l *large) text(s string) {
	_, _ = l.Write([]byte{'"'})
	for len(s) > 0 {
		piece := s[:min(len(s), textPiece)]
		if whole, _ := cut([]byte(piece)); len(piece) < len(s) && len(whole) > 0 {
			piece = piece[:len(whole)]
		}
		s = s[len(piece):]
		raw := bytes.TrimSuffix(core.Marshal(strings.ToValidUTF8(piece, "\uFFFD")), []byte("\n"))
		_, _ = l.Write(raw[1 : len(raw)-1])
	}
	_, _ = l.Write([]byte{'"'})
}

// exact writes a member with a stream's exact bytes if it is not UTF-8.
func (l *large) exact(name, s string) {
	if utf8.ValidString(s) {
		return
	}
	fmt.Fprintf(l, `,%q:"`, name)
	enc := base64.NewEncoder(base64.StdEncoding, l)
	for len(s) > 0 {
		n := min(len(s), textPiece)
		_, _ = enc.Write([]byte(s[:n]))
		s = s[n:]
	}
	_ = enc.Close()
	_, _ = l.Write([]byte{'"'})
}

// writeExec writes an api.ExecResult in pieces: two streams of 8 MiB may become a
// hundred as JSON.
func writeExec(c *gin.Context, r api.ExecResult) {
	l := &large{c: c}
	fmt.Fprintf(l, `{"exit_code":%d,"stdout":`, r.ExitCode)
	l.text(r.Stdout)
	fmt.Fprint(l, `,"stderr":`)
	l.text(r.Stderr)
	fmt.Fprintf(l, `,"duration_ms":%d,"timed_out":%t,"truncated":%t`, r.DurationMS, r.TimedOut, r.Truncated)
	l.exact("stdout_base64", r.Stdout)
	l.exact("stderr_base64", r.Stderr)
	fmt.Fprint(l, "}\n")
	l.end()
}
