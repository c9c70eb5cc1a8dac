package httpapi

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/core"
)

// writeJSON sends a value as JSON, with its length.
func writeJSON(c *gin.Context, status int, v any) {
	writeBytes(c, status, typeJSON, core.Marshal(v))
}

func writeBytes(c *gin.Context, status int, contentType string, body []byte) {
	// The deadline stays on the connection until the next answer sets one.
	_ = http.NewResponseController(c.Writer).SetWriteDeadline(time.Now().Add(answerTimeout))
	c.Header("Content-Type", contentType)
	c.Header("Content-Length", strconv.Itoa(len(body)))
	c.Status(status)
	_, _ = c.Writer.Write(body) // the client may be gone
}

func noContent(c *gin.Context) error {
	c.Status(http.StatusNoContent)
	c.Writer.WriteHeaderNow()
	return nil
}

// removed answers a DELETE: 204 once the thing is gone, 202 while its removal goes on.
func removed(c *gin.Context, err error) error {
	if errors.Is(err, core.ErrRemoving) {
		c.Status(http.StatusAccepted)
		c.Writer.WriteHeaderNow()
		return nil
	}
	if err != nil {
		return err
	}
	return noContent(c)
}

// goesOn documents the other answer of removed.
var goesOn = map[int]string{http.StatusAccepted: "Its removal has begun and goes on; until its end it is still listed."}

func ok(c *gin.Context, v any) error {
	writeJSON(c, http.StatusOK, v)
	return nil
}

func created(c *gin.Context, v any) error { return begun(c, http.StatusCreated, v) }

func accepted(c *gin.Context, v any) error { return begun(c, http.StatusAccepted, v) }

// begun answers a create. If its idempotency key keeps the first answer, that is sent, and
// not v, which another version of this program might write in another way.
func begun(c *gin.Context, status int, v any) error {
	if kept, ok := c.Value(keyFirstAnswer).(*[]byte); ok && len(*kept) > 0 {
		writeBytes(c, status, typeJSON, *kept)
		return nil
	}
	writeJSON(c, status, v)
	return nil
}

// page sends a page of a list, and names the next one.
func page[T any](c *gin.Context, o core.ListOptions, rows []T, next string, filters ...string) error {
	linkNext(c, o, next, filters...)
	return ok(c, orEmpty(rows))
}

// orEmpty makes an empty list [] in JSON, not null.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
