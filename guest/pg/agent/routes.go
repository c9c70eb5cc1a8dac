package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/pg/basebackup"
	"github.com/berth-cloud/berth/guest/pg/postgres"
	"github.com/berth-cloud/berth/guest/pg/tenant"
	"github.com/berth-cloud/berth/guest/pg/wal"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/timescale"
)

var (
	errInvalid   = errors.New("invalid request")
	errBusy      = errors.New("PostgreSQL is being started, stopped or restored")
	errRestoring = errors.New("the data is being restored")
	errNoBase    = errors.New("no base backup was put")
)

// maxBody bounds a JSON body, in bytes.
const maxBody = 64 << 10

func (a *Agent) routes() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, h func(http.ResponseWriter, *http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := h(w, r); err != nil {
				a.refuse(w, r, err)
			}
		})
	}
	handle("GET "+pgapi.PathStatus, a.getStatus)
	handle("PUT "+pgapi.PathSettings, a.putSettings)
	handle("PUT "+pgapi.PathCredentials, a.putCredentials)
	handle("POST "+pgapi.PathSwitch, a.postSwitch)
	handle("POST "+pgapi.PathStop, a.postStop)
	handle("POST "+pgapi.PathStart, a.postStart)
	handle("GET "+pgapi.PathWALNext, a.getWALNext)
	handle("GET "+pgapi.PathWAL, a.getWAL)
	handle("POST "+pgapi.PathWALStored, a.postWALStored)
	handle("POST "+pgapi.PathBackup, a.postBackup)
	handle("PUT "+pgapi.PathRestoreBase, a.putRestoreBase)
	handle("POST "+pgapi.PathRestore, a.postRestore)
	handle("POST "+pgapi.PathAdopt, a.postAdopt)
	handle("GET "+pgapi.PathFetchNext, a.getFetchNext)
	handle("PUT "+pgapi.PathFetch, a.putFetch)
	handle("DELETE "+pgapi.PathFetch, a.deleteFetch)
	handle("POST "+pgapi.PathFetchFailed, a.postFetchFailed)
	a.broker.Routes(mux)
	return mux
}

// refusals is what each error becomes; the first that matches counts.
var refusals = []struct {
	err    error
	status int
	code   string
}{
	{errInvalid, http.StatusBadRequest, pgapi.CodeInvalid},
	{tenant.ErrInvalid, http.StatusBadRequest, pgapi.CodeInvalid},
	{basebackup.ErrInvalid, http.StatusBadRequest, pgapi.CodeInvalid},
	{errBusy, http.StatusConflict, pgapi.CodeBusy},
	{tenant.ErrBusy, http.StatusConflict, pgapi.CodeBusy},
	{errRestoring, http.StatusConflict, pgapi.CodeBusy},
	{errNoBase, http.StatusConflict, pgapi.CodeNotReady},
	{tenant.ErrNameTaken, http.StatusConflict, pgapi.CodeInvalid},
	{tenant.ErrNotVerified, http.StatusBadGateway, pgapi.CodeNotVerified},
	{postgres.ErrNotServing, http.StatusServiceUnavailable, pgapi.CodeNotReady},
	{wal.ErrOtherBytes, http.StatusConflict, pgapi.CodeOtherBytes},
	{wal.ErrNotOffered, http.StatusNotFound, pgapi.CodeNotOffered},
	{wal.ErrNotAsked, http.StatusNotFound, pgapi.CodeNotOffered},
	{wal.ErrNoRestore, http.StatusConflict, pgapi.CodeNotReady},
	{wal.ErrTooLarge, http.StatusRequestEntityTooLarge, pgapi.CodeInvalid},
	{basebackup.ErrDamaged, http.StatusUnprocessableEntity, pgapi.CodeDamaged},
	{basebackup.ErrUnsafe, http.StatusUnprocessableEntity, pgapi.CodeUnsafe},
	{unix.ENOSPC, http.StatusInsufficientStorage, pgapi.CodeNoRoom},
}

// refuse answers with an error. The host is trusted with its text.
func (a *Agent) refuse(w http.ResponseWriter, r *http.Request, err error) {
	status, code := http.StatusInternalServerError, ""
	for _, known := range refusals {
		if errors.Is(err, known.err) {
			status, code = known.status, known.code
			break
		}
	}
	if status == http.StatusInternalServerError && r.Context().Err() == nil {
		a.cfg.Log.Error("request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	answer(w, status, pgapi.Error{Error: err.Error(), Code: code})
}

func answer(w http.ResponseWriter, status int, body any) {
	raw, err := json.Marshal(body)
	if err != nil { // none of what is answered does that
		status, raw = http.StatusInternalServerError, []byte("{}")
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(raw)))
	w.WriteHeader(status)
	_, _ = w.Write(raw) // the host may have gone
}

// decode reads a JSON body; none is an empty one. Fields of a younger host are passed
// over: a database keeps the guestpg that its guest was made with.
func decode(w http.ResponseWriter, r *http.Request, into any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	if err := d.Decode(into); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: %w", errInvalid, err)
	}
	return nil
}

// waiting returns a context that ends with a long poll.
func waiting(r *http.Request) (context.Context, context.CancelFunc, error) {
	var wait time.Duration
	if s := r.URL.Query().Get("wait_seconds"); s != "" {
		n, err := strconv.Atoi(s)
		wait = time.Duration(n) * time.Second
		if err != nil || n < 0 || wait > pgapi.MaxWait {
			return nil, nil, fmt.Errorf("%w: wait_seconds is %.20q: want 0 to %d", errInvalid, s, int(pgapi.MaxWait.Seconds()))
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	return ctx, cancel, nil
}

func (a *Agent) putSettings(w http.ResponseWriter, r *http.Request) error {
	var s pgapi.Settings
	if err := decode(w, r, &s); err != nil {
		return err
	}
	applied, err := a.set(r.Context(), s)
	if err == nil {
		answer(w, http.StatusOK, applied)
	}
	return err
}

func (a *Agent) putCredentials(w http.ResponseWriter, r *http.Request) error {
	var c pgapi.Credentials
	if err := decode(w, r, &c); err != nil {
		return err
	}
	if a.restoring() {
		return errRestoring
	}
	if v, _ := a.server.View(); v.State != pgapi.StateReady {
		return fmt.Errorf("%w, or is read-only: it is %s", postgres.ErrNotServing, v.State)
	}
	applied, err := a.roles.Set(r.Context(), c)
	a.broker.Reset()
	if err == nil {
		err = a.claim(r.Context())
	}
	if err == nil {
		answer(w, http.StatusOK, applied)
	}
	return err
}

// stopLimit is how long a stop may take before PostgreSQL is told in a harsher way.
var stopLimit = timescale.Limit(30 * time.Second)

func (a *Agent) postStop(w http.ResponseWriter, r *http.Request) error {
	var s pgapi.Stop
	if err := decode(w, r, &s); err != nil {
		return err
	}
	a.endRestore(errGivenUp)
	if !a.op.TryLock() {
		return errBusy
	}
	defer a.op.Unlock()
	a.broker.Reset()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), stopLimit)
	defer cancel()
	if err := a.server.Stop(ctx, s.Immediate); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *Agent) postStart(w http.ResponseWriter, _ *http.Request) error {
	if !a.op.TryLock() {
		return errBusy
	}
	defer a.op.Unlock()
	if a.restoring() {
		return errRestoring
	}
	a.server.Start(a.mode(), false)
	w.WriteHeader(http.StatusAccepted)
	return nil
}
