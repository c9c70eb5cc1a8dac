package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/apierror"
)

// Codes of failures that only HTTP knows.
const (
	codeMethodNotAllowed apierror.Code = "method_not_allowed"
	codeTimeout          apierror.Code = "timeout"
	codeUpgrade          apierror.Code = "upgrade"
)

// statusOf is the one table from an error's code to an HTTP status.
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
	apierror.EInsufficient:   http.StatusInsufficientStorage,
}

// statusClientGone is what the log and the metrics say of a request whose
// client left before the answer; nobody receives it.
const statusClientGone = 499

var (
	errMethodNotAllowed = &apierror.Error{Code: codeMethodNotAllowed, Message: "method not allowed"}
	errUpgrade          = &apierror.Error{Code: codeUpgrade, Message: "upgrade required", Detail: "this route is a WebSocket"}
	errForbidden        = &apierror.Error{Code: apierror.EForbidden, Message: "forbidden", Detail: "this route needs an operator's credential"}
)

func invalid(message, detail string) error {
	return &apierror.Error{Code: apierror.EInvalid, Message: message, Detail: detail}
}

func invalidJSON(detail string) error { return invalid("invalid json", detail) }

// classify turns any error into the one that is rendered, and its status.
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

// fail answers with the error, and logs what the caller is not told.
func (a *API) fail(c *gin.Context, err error) {
	e, status := classify(c.Request.Context(), err)
	if status >= http.StatusInternalServerError {
		a.log.LogAttrs(c.Request.Context(), slog.LevelError, "request failed",
			slog.String("request_id", requestID(c)),
			slog.String("route", routeOf(c)),
			slog.Int("status", status),
			slog.Any("error", err))
	}
	c.Abort()
	if c.Writer.Written() {
		// The answer has begun: cutting the connection is the only way left to
		// say that it is not whole.
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
	body := make(map[string]any, len(e.Fields)+2)
	for k, v := range e.Fields {
		body[k] = v
	}
	body["error"] = e.Message
	if e.Detail != "" {
		body["detail"] = e.Detail
	}
	writeJSON(c, status, body)
}
