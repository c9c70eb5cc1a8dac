package httpapi

import (
	"crypto/sha256"
	"encoding/base64"
	"net/url"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// commandParams returns the ids of a sandbox and of one of its commands.
func commandParams(c *gin.Context) (id, command string, err error) {
	if id, err = sandboxParam(c); err != nil {
		return "", "", err
	}
	command, err = pathID(c, "cid")
	return id, command, err
}

func (a *API) startCommand(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	key, err := idempotency(c)
	if err != nil {
		return err
	}
	release, err := a.admitBody(c, maxExecBody)
	if err != nil {
		return err
	}
	defer release()
	in, raw, err := bind[api.Exec](c, maxExecBody)
	if err != nil {
		return err
	}
	digest := sha256.Sum256(raw)
	key.BodySHA256 = digest[:]
	out, err := a.cfg.Commands.Start(c.Request.Context(), callerOf(c), id, in, key)
	if err != nil {
		return err
	}
	return created(c, out)
}

func (a *API) listCommands(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	list, err := a.cfg.Commands.List(c.Request.Context(), callerOf(c), id)
	if err != nil {
		return err
	}
	return ok(c, orEmpty(list))
}

func (a *API) getCommand(c *gin.Context) error {
	id, command, err := commandParams(c)
	if err != nil {
		return err
	}
	out, err := a.cfg.Commands.Get(c.Request.Context(), callerOf(c), id, command)
	if err != nil {
		return err
	}
	return ok(c, out)
}

func (a *API) deleteCommand(c *gin.Context) error {
	id, command, err := commandParams(c)
	if err != nil {
		return err
	}
	if err := a.cfg.Commands.Delete(c.Request.Context(), callerOf(c), id, command); err != nil {
		return err
	}
	return noContent(c)
}

func (a *API) writeCommand(c *gin.Context) error {
	id, command, err := commandParams(c)
	if err != nil {
		return err
	}
	release, err := a.admitBody(c, maxJSONBody)
	if err != nil {
		return err
	}
	defer release()
	in, _, err := bind[api.CommandInput](c, maxJSONBody)
	if err != nil {
		return err
	}
	data := []byte(in.Data)
	switch in.Encoding {
	case "":
	case "base64":
		if data, err = base64.StdEncoding.DecodeString(in.Data); err != nil {
			return invalid("invalid encoding", "data is not base64")
		}
	default:
		return invalid("invalid encoding", `encoding is "base64", or is left out`)
	}
	if err := a.cfg.Commands.Write(c.Request.Context(), callerOf(c), id, command, data, in.EOF); err != nil {
		return err
	}
	return noContent(c)
}

func (a *API) signalCommand(c *gin.Context) error {
	id, command, err := commandParams(c)
	if err != nil {
		return err
	}
	in, _, err := bind[api.CommandSignal](c, maxJSONBody)
	if err != nil {
		return err
	}
	if err := a.cfg.Commands.Signal(c.Request.Context(), callerOf(c), id, command, in.Signal); err != nil {
		return err
	}
	return noContent(c)
}

func (a *API) commandOutput(c *gin.Context) error {
	id, command, err := commandParams(c)
	if err != nil {
		return err
	}
	q, err := queryOf(c, "since", "follow")
	if err != nil {
		return err
	}
	since, err := offsetOf(c, q)
	if err != nil {
		return err
	}
	following, err := booleanOf(q, "follow")
	if err != nil {
		return err
	}
	pieces, err := a.cfg.Commands.Output(c.Request.Context(), callerOf(c), id, command, since, following)
	if err != nil {
		return err
	}
	var t outputs
	return follow(c, pieces, t.send)
}

// offsetOf parses since, or Last-Event-ID, which takes precedence: a browser that
// reconnects sends it to the same URL.
func offsetOf(c *gin.Context, q url.Values) (int64, error) {
	raw := c.GetHeader("Last-Event-ID")
	if raw == "" {
		if !q.Has("since") {
			return 0, nil
		}
		raw = q.Get("since")
	}
	n, err := strconv.ParseUint(raw, 10, 63)
	if err != nil {
		return 0, invalid("invalid since", "since is an offset in bytes, an integer from 0")
	}
	return int64(n), nil
}

// outputs sends a command's output as events. It holds back an incomplete character only
// until it is known whether the rest follows at once: the bytes of an event follow each
// other in the output, so that its offset and its length say where to go on.
type outputs struct {
	text   splitter
	stream string // of what is held back
	next   int64  // the offset after it
}

func (t *outputs) send(e *events, p sandbox.CommandPiece) error {
	held := int64(len(t.text.held))
	if held > 0 && (p.Stream != t.stream || p.Offset != t.next || p.Exit != nil) {
		out, _ := t.text.end()
		if err := t.event(e, t.next-held, t.next, out); err != nil {
			return err
		}
		held = 0
	}
	switch {
	case p.Exit != nil:
		return e.send("exit", "", p.Exit)
	case p.Stream == sandbox.Gap:
		return e.send(sandbox.Gap, strconv.FormatInt(p.Offset, 10), api.CommandGap{Offset: p.Offset})
	}
	t.stream, t.next = p.Stream, p.Offset+int64(len(p.Data))
	out, some := t.text.next(p.Data)
	if !some {
		return nil
	}
	return t.event(e, p.Offset-held, t.next-int64(len(t.text.held)), out)
}

// event sends output of the bytes from one offset to another.
func (t *outputs) event(e *events, from, to int64, out api.Output) error {
	return e.send(t.stream, strconv.FormatInt(to, 10), api.CommandOutput{Data: out.Data, Encoding: out.Encoding, Offset: from})
}
