package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/apierror"
)

// Codes of errors that only HTTP has.
const (
	codeMethodNotAllowed apierror.Code = "method_not_allowed"
	codeTimeout          apierror.Code = "timeout"
	codeUpgrade          apierror.Code = "upgrade"
)

// statusOf is the only table from error codes to HTTP statuses.
var statusOf = map[apierror.Code]int{
	apierror.EInvalid:        http.StatusBadRequest,
	apierror.EUnauthorized:   http.StatusUnauthorized,
	apierror.EQuota:          http.StatusPaymentRequired,
	apierror.EForbidden:      http.StatusForbidden,
	apierror.ENotFound:       http.StatusNotFound,
	codeMethodNotAllowed:     http.StatusMethodNotAllowed,
	codeTimeout:              http.StatusRequestTimeout,
	apierror.EConflict:       http.StatusConflict,
	apierror.ENoArchive:      http.StatusPreconditionFailed,
	apierror.ETooLarge:       http.StatusRequestEntityTooLarge,
	apierror.ERange:          http.StatusRequestedRangeNotSatisfiable,
	codeUpgrade:              http.StatusUpgradeRequired,
	apierror.EUnprocessable:  http.StatusUnprocessableEntity,
	apierror.ERateLimited:    http.StatusTooManyRequests,
	apierror.EInternal:       http.StatusInternalServerError,
	apierror.ENotImplemented: http.StatusNotImplemented,
	apierror.EBadGateway:     http.StatusBadGateway,
	apierror.EUnavailable:    http.StatusServiceUnavailable,
	apierror.EUnwoken:        http.StatusServiceUnavailable,
	apierror.EInsufficient:   http.StatusInsufficientStorage,
}

// statusClientGone is the status in logs and metrics of a request whose client left
// before the answer. Nobody receives it.
const statusClientGone = 499

var (
	errMethodNotAllowed = &apierror.Error{Code: codeMethodNotAllowed, Message: "method not allowed"}
	errUpgrade          = &apierror.Error{Code: codeUpgrade, Message: "upgrade required", Detail: "this route is a WebSocket"}
	errMayNot           = &apierror.Error{Code: apierror.EForbidden, Message: "forbidden", Detail: "a viewer may only read"}
	errForbidden        = &apierror.Error{Code: apierror.EForbidden, Message: "forbidden", Detail: "this route needs an operator's credential"}
)

func invalid(message, detail string) error {
	return &apierror.Error{Code: apierror.EInvalid, Message: message, Detail: detail}
}

func invalidJSON(detail string) error { return invalid("invalid json", detail) }

// classify returns the error to render for err, and its status.
func classify(ctx context.Context, err error) (*apierror.Error, int) {
	var e *apierror.Error
	switch {
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return &apierror.Error{Message: "client closed the request", Err: err}, statusClientGone
	case errors.As(err, &e):
	case errors.Is(err, context.DeadlineExceeded):
		e = apierror.Unavailable("the request took too long", err)
	default:
		e = apierror.As(err)
	}
	status, ok := statusOf[e.Code]
	if !ok {
		status = http.StatusInternalServerError
	}
	return e, status
}

// fail sends the error, and logs what the caller must not see.
func (a *API) fail(c *gin.Context, err error) {
	e, status := classify(c.Request.Context(), err)
	if e.Code == apierror.ENotFound && e.Message == apierror.NotFound().Message && e.Detail == "" {
		e = e.With(notFoundDetail(routeOf(c)), e.Err)
	}
	if status >= http.StatusInternalServerError {
		level := slog.LevelError
		if status == http.StatusNotImplemented { // what is not set up fails as it should
			level = slog.LevelInfo
		}
		a.log.LogAttrs(c.Request.Context(), level, "request failed",
			slog.String("request_id", requestID(c)),
			slog.String("route", routeOf(c)),
			slog.Int("status", status),
			slog.Any("error", err))
	}
	c.Abort()
	if c.Writer.Written() {
		// The answer has begun, so cutting the connection is the only way to show
		// that it is incomplete.
		panic(http.ErrAbortHandler)
	}
	if e.RetryAfter > 0 {
		c.Header("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
	}
	if e.ContentRange != "" {
		c.Header("Content-Range", e.ContentRange)
	}
	if status == http.StatusUnauthorized {
		c.Header("WWW-Authenticate", "Bearer")
	}
	writeJSON(c, status, bodyOf(e))
}

// kinds name what the first parameter below a collection identifies.
var kinds = map[string]string{
	"sandboxes": "sandbox", "snapshots": "snapshot", "volumes": "volume", "templates": "template", "builds": "build",
	"databases": "database", "apps": "app", "functions": "function", "orgs": "organization", "members": "member",
	"invitations": "invitation", "endpoints": "webhook endpoint", "deliveries": "delivery", "deploys": "deployment",
	"domains": "domain", "env": "variable", "preview-env": "variable", "tokens": "API key", "agents": "host", "peers": "replica",
	"installations": "installation", "workspaces": "workspace", "commands": "command",
}

// notFoundDetail says what kinds of things a route names, one of which is unknown; "" if
// it names none.
func notFoundDetail(route string) string {
	var named []string
	parts := strings.Split(route, "/")
	for i := 1; i < len(parts); i++ {
		if kind := kinds[parts[i-1]]; kind != "" && strings.HasPrefix(parts[i], ":") {
			named = append(named, kind)
		}
	}
	if len(named) == 0 {
		return ""
	}
	return "no such " + strings.Join(named, " or ")
}

// bodyOf is the body of an error's answer.
func bodyOf(e *apierror.Error) map[string]any {
	body := make(map[string]any, len(e.Fields)+2)
	maps.Copy(body, e.Fields)
	body["error"] = e.Message
	if e.Detail != "" {
		body["detail"] = e.Detail
	}
	return body
}
