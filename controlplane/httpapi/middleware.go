package httpapi

import (
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
)

// Keys of what the middleware leaves in the gin context.
const (
	keyRequestID = "berth.request_id"
	keyCaller    = "berth.caller"
)

// withRequestID names the request: by the client's own X-Request-Id where it
// is usable, else by a new one.
func withRequestID(c *gin.Context) {
	given := ""
	if v := c.Request.Header.Values(api.HeaderRequestID); len(v) == 1 {
		given = v[0]
	}
	id := core.RequestID(given)
	c.Set(keyRequestID, id)
	c.Header(api.HeaderRequestID, id)
	c.Header("X-Content-Type-Options", "nosniff")
	// Answers hold bearer credentials: sandbox ids and keys.
	c.Header("Cache-Control", "no-store")
	c.Header("Referrer-Policy", "no-referrer")
}

func requestID(c *gin.Context) string { return c.GetString(keyRequestID) }

func callerOf(c *gin.Context) core.Caller {
	caller, _ := c.Get(keyCaller)
	out, _ := caller.(core.Caller)
	return out
}

// routeOf is the route's template: unlike the path it holds no id.
func routeOf(c *gin.Context) string {
	if r := c.FullPath(); r != "" {
		return r
	}
	return "none"
}

// observe logs and counts the request once it is over.
func (a *API) observe(c *gin.Context) {
	start := time.Now()
	route := routeOf(c)
	a.metrics.inFlight.Inc()
	defer func() {
		a.metrics.inFlight.Dec()
		took := time.Since(start)
		status := c.Writer.Status()
		method := methodLabel(c.Request.Method)
		a.metrics.observe(route, method, status, took)

		level := slog.LevelInfo
		if route == "/healthz" || route == "/metrics" {
			level = slog.LevelDebug
		}
		caller := callerOf(c)
		attrs := []slog.Attr{
			slog.String("request_id", requestID(c)),
			slog.String("method", method),
			slog.String("route", route),
			slog.Int("status", status),
			slog.Float64("duration_ms", float64(took.Microseconds())/1000),
			slog.Int("bytes", max(c.Writer.Size(), 0)),
		}
		if caller.WorkspaceID != "" {
			attrs = append(attrs, slog.String("workspace_id", caller.WorkspaceID))
		}
		if caller.Admin {
			attrs = append(attrs, slog.Bool("operator", true))
		}
		if id := c.GetString(keySandboxID); id != "" {
			attrs = append(attrs, slog.String("sandbox_id", id))
		}
		a.log.LogAttrs(c.Request.Context(), level, "request", attrs...)
	}()
	c.Next()
}

// recoverPanic answers 500 in place of a handler that panicked.
func (a *API) recoverPanic(c *gin.Context) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if err, ok := v.(error); ok && err == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so
			panic(v)
		}
		a.log.LogAttrs(c.Request.Context(), slog.LevelError, "request panicked",
			slog.String("request_id", requestID(c)),
			slog.String("route", routeOf(c)),
			slog.String("panic", fmt.Sprint(v)),
			slog.String("stack", string(debug.Stack())))
		c.Abort()
		if c.Writer.Written() {
			panic(http.ErrAbortHandler)
		}
		writeJSON(c, http.StatusInternalServerError, api.ErrorBody{Error: "internal error"})
	}()
	c.Next()
}

// requireBody refuses a POST without a body, whoever it is from: 411 with an
// empty body. Only where there is no POST at all the method is what is wrong.
func requireBody(c *gin.Context) {
	// ContentLength is 0 both for none given and for 0, and -1 when chunked.
	if c.Request.Method == http.MethodPost && c.Request.ContentLength == 0 {
		c.AbortWithStatus(http.StatusLengthRequired)
		c.Writer.WriteHeaderNow()
	}
}
