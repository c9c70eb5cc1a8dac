package server

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"

	"github.com/berth-cloud/berth/hostd/guestio"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
)

// The server's own refusals.
var (
	errUnauthorized = errors.New("a certificate of a control-plane replica is needed")
	errTooLarge     = errors.New("request body is too large")
	errNoTerm       = errors.New("header " + hostapi.HeaderTerm + " is missing or no number")
	errNoRoute      = errors.New("no such route")
	errNotHere      = errors.New("this host does not do that")
	errNoStore      = errors.New("this host has no snapshot store")
)

// table is the one place where an error becomes a code and a status. The first
// row that matches holds; what no row names is internal.
var table = []struct {
	err    error
	status int
	code   hostapi.Code
}{
	{hosterr.ErrCwd, http.StatusBadRequest, hostapi.CodeInvalidCwd},
	{hosterr.ErrUser, http.StatusBadRequest, hostapi.CodeInvalidUser},
	{hosterr.ErrMount, http.StatusBadRequest, hostapi.CodeInvalidMount},
	{hosterr.ErrInvalid, http.StatusBadRequest, hostapi.CodeInvalid},
	{errNoTerm, http.StatusBadRequest, hostapi.CodeInvalid},
	{errUnauthorized, http.StatusForbidden, hostapi.CodeUnauthorized},
	{errNoRoute, http.StatusNotFound, hostapi.CodeNotFound},
	{errTooLarge, http.StatusRequestEntityTooLarge, hostapi.CodeTooLarge},
	{hosterr.ErrNotFound, http.StatusNotFound, hostapi.CodeNotFound},
	{ledger.ErrStaleTerm, http.StatusConflict, hostapi.CodeStaleTerm},
	{hosterr.ErrStaleGeneration, http.StatusConflict, hostapi.CodeStaleGeneration},
	{hosterr.ErrNotRunning, http.StatusConflict, hostapi.CodeNotRunning},
	{hosterr.ErrCutOff, http.StatusConflict, hostapi.CodeCutOff},
	{hosterr.ErrIllegalState, http.StatusConflict, hostapi.CodeIllegalState},
	{hosterr.ErrTemplate, http.StatusUnprocessableEntity, hostapi.CodeTemplateMissing},
	{hosterr.ErrConnections, http.StatusTooManyRequests, hostapi.CodeBusy},
	{hosterr.ErrBusy, http.StatusTooManyRequests, hostapi.CodeBusy},
	{hosterr.ErrDraining, http.StatusServiceUnavailable, hostapi.CodeDraining},
	{hosterr.ErrNoMemory, http.StatusInsufficientStorage, hostapi.CodeNoMemory},
	{hosterr.ErrNoDisk, http.StatusInsufficientStorage, hostapi.CodeNoDisk},
	{hosterr.ErrDiskStalled, http.StatusInsufficientStorage, hostapi.CodeNoDisk},
	{ledger.ErrOverloaded, http.StatusInsufficientStorage, hostapi.CodeNoDisk},
	{hosterr.ErrNoSlot, http.StatusInsufficientStorage, hostapi.CodeNoSlot},
	{hosterr.ErrGuest, http.StatusBadGateway, hostapi.CodeGuest},
	{hosterr.ErrPortClosed, http.StatusBadGateway, hostapi.CodePortClosed},
	{hosterr.ErrNoSnapshot, http.StatusNotFound, hostapi.CodeNoSnapshot},
	{hosterr.ErrBadSnapshot, http.StatusUnprocessableEntity, hostapi.CodeBadSnapshot},
	{hosterr.ErrInUse, http.StatusConflict, hostapi.CodeInUse},
	{hosterr.ErrDatabaseBusy, http.StatusConflict, hostapi.CodeDatabaseBusy},
	{hosterr.ErrDatabaseUnready, http.StatusServiceUnavailable, hostapi.CodeNotReady},
	{hosterr.ErrNotVerified, http.StatusBadGateway, hostapi.CodeNotVerified},
	{hosterr.ErrNoArchive, http.StatusNotFound, hostapi.CodeNoArchive},
	{hosterr.ErrArchiveDamaged, http.StatusUnprocessableEntity, hostapi.CodeArchiveDamaged},
	{hosterr.ErrArchiveFenced, http.StatusConflict, hostapi.CodeArchiveFenced},
	{errNoStore, http.StatusUnprocessableEntity, hostapi.CodeNoStore},
	{errStopping, http.StatusServiceUnavailable, hostapi.CodeDraining},
	{errNotHere, http.StatusNotImplemented, hostapi.CodeInvalid},
}

// statusClientGone is what proxies log for a caller who hung up; nobody reads it.
const statusClientGone = 499

func classify(err error) (int, hostapi.Error) {
	var says *guestio.Refusal
	if errors.As(err, &says) {
		return says.Status, hostapi.Error{Code: hostapi.CodeGuestSays, Message: says.Message, Detail: says.Detail, ContentRange: says.ContentRange}
	}
	// Some parts have refusals with a code and a status of their own.
	var own *hostapi.Error
	if errors.As(err, &own) && own.HTTPStatus >= http.StatusBadRequest {
		return own.HTTPStatus, *own
	}
	for _, row := range table {
		if errors.Is(err, row.err) {
			return row.status, hostapi.Error{Code: row.code, Message: row.err.Error(), Detail: err.Error()}
		}
	}
	if errors.Is(err, context.Canceled) {
		return statusClientGone, hostapi.Error{Code: hostapi.CodeInternal, Message: "caller went away"}
	}
	// The caller is the control plane, which keeps the detail for its operator.
	return http.StatusInternalServerError, hostapi.Error{Code: hostapi.CodeInternal, Message: "internal error", Detail: err.Error()}
}

// fail answers with an error. It logs only errors that the host itself is to
// blame for.
func fail(w http.ResponseWriter, r *http.Request, log *slog.Logger, err error) {
	status, body := classify(err)
	if body.Detail == body.Message {
		body.Detail = ""
	}
	if status == http.StatusInternalServerError {
		log.ErrorContext(r.Context(), "request failed", "route", r.Pattern, "error", err)
	}
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	if body.ContentRange != "" {
		w.Header().Set("Content-Range", body.ContentRange)
	}
	reply(w, status, &body)
}

func reply(w http.ResponseWriter, status int, v any) {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err) // one of our own types cannot be written
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	// The caller sizes its buffer by it.
	h.Set("Content-Length", strconv.Itoa(len(raw)))
	w.WriteHeader(status)
	_, _ = w.Write(raw) // the caller may be gone
}
