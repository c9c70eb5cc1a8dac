package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/guest/app/applog"
	"github.com/berth-cloud/berth/guest/app/run"
	"github.com/berth-cloud/berth/guest/appapi"
)

// maxBody bounds a JSON body, in bytes: variables are most of it.
const maxBody = 2 << 20

func (a *Agent) routes() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, h func(http.ResponseWriter, *http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := h(w, r); err != nil {
				a.refuse(w, r, err)
			}
		})
	}
	handle("GET "+appapi.PathStatus, a.getStatus)
	handle("PUT "+appapi.PathSource, a.putSource)
	handle("PUT "+appapi.PathCache, a.putCache)
	handle("GET "+appapi.PathCache, a.getCache)
	handle("PUT "+appapi.PathBuild, a.putBuild)
	handle("POST "+appapi.PathBuildStop, a.postBuildStop)
	handle("GET "+appapi.PathBuildLog, a.getBuildLog)
	handle("PUT "+appapi.PathRun, a.putRun)
	handle("POST "+appapi.PathRunStop, a.postRunStop)
	handle("GET "+appapi.PathRunLog, a.getRunLog)
	return mux
}

// refusals is what each error becomes; the first that matches counts.
var refusals = []struct {
	err    error
	status int
	code   string
}{
	{errInvalid, http.StatusBadRequest, appapi.CodeInvalid},
	{errBusy, http.StatusConflict, appapi.CodeBusy},
	{errNotBuilt, http.StatusConflict, appapi.CodeNotBuilt},
}

// refuse answers with an error. The host is trusted with its text.
func (a *Agent) refuse(w http.ResponseWriter, r *http.Request, err error) {
	status, code := http.StatusInternalServerError, appapi.CodeInternal
	for _, known := range refusals {
		if errors.Is(err, known.err) {
			status, code = known.status, known.code
			break
		}
	}
	if status == http.StatusInternalServerError && r.Context().Err() == nil {
		a.cfg.Log.Error("request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	answer(w, status, appapi.Error{Error: err.Error(), Code: code})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the host may have gone
}

// decode reads a JSON body. Fields of a younger host are passed over: an app's artifact
// keeps the guestapp that it was made with.
func decode(w http.ResponseWriter, r *http.Request, into any) error {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(into); err != nil {
		return fmt.Errorf("%w: %w", errInvalid, err)
	}
	return nil
}

func (a *Agent) getStatus(w http.ResponseWriter, _ *http.Request) error {
	answer(w, http.StatusOK, a.status())
	return nil
}

func (a *Agent) putSource(w http.ResponseWriter, r *http.Request) error {
	return a.putFile(w, r, uploadFile, 0o600, appapi.MaxSource)
}

// putCache keeps the caches of an earlier build. The tenant's user unpacks them, so it may
// read them.
func (a *Agent) putCache(w http.ResponseWriter, r *http.Request) error {
	return a.putFile(w, r, cacheFile, 0o644, appapi.MaxCache)
}

// getCache answers with the caches of the build that has succeeded. They end with a cut
// connection if they could not be read to their end.
func (a *Agent) getCache(w http.ResponseWriter, r *http.Request) error {
	a.mu.Lock()
	made, built := a.state.Made, a.state.Status.State == appapi.StateSucceeded
	a.mu.Unlock()
	if !built || len(made.Caches) == 0 {
		return errNotBuilt
	}
	w.Header().Set("Content-Type", "application/x-tar")
	w.WriteHeader(http.StatusOK)
	if err := made.Pack(r.Context(), a.cfg.Runner, a.cfg.Home, w); err != nil {
		a.cfg.Log.Warn("caches were not handed over", "error", err)
		panic(http.ErrAbortHandler)
	}
	return nil
}

// putFile keeps a file for a build, one at a time and while none runs.
func (a *Agent) putFile(w http.ResponseWriter, r *http.Request, name string, mode os.FileMode, most int64) error {
	if !a.uploading.TryLock() {
		return errBusy
	}
	defer a.uploading.Unlock()
	a.mu.Lock()
	busy := a.cancel != nil
	a.mu.Unlock()
	if busy {
		return errBusy
	}
	body := http.MaxBytesReader(w, r.Body, most)
	err := atomicfile.SwapFrom(a.path(name), mode, func(to io.Writer) error {
		_, err := io.Copy(to, body)
		return err
	})
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return fmt.Errorf("%w: it has more than %d MB", errInvalid, most>>20)
	}
	if err != nil {
		return fmt.Errorf("keep what was sent: %w", err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *Agent) putBuild(w http.ResponseWriter, r *http.Request) error {
	var in appapi.Build
	if err := decode(w, r, &in); err != nil {
		return err
	}
	if err := a.startBuild(in); err != nil {
		return err
	}
	return a.getStatus(w, r)
}

func (a *Agent) postBuildStop(w http.ResponseWriter, r *http.Request) error {
	a.stopBuild()
	return a.getStatus(w, r)
}

func (a *Agent) putRun(w http.ResponseWriter, r *http.Request) error {
	var in appapi.Run
	if err := decode(w, r, &in); err != nil {
		return err
	}
	if err := a.startApp(in); err != nil {
		return err
	}
	return a.getStatus(w, r)
}

func (a *Agent) postRunStop(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), appapi.StopGrace)
	defer cancel()
	a.stopApp(func(app *run.App) { app.End(ctx) })
	return a.getStatus(w, r)
}

func (a *Agent) getBuildLog(w http.ResponseWriter, r *http.Request) error {
	a.mu.Lock()
	log := a.buildLog
	a.mu.Unlock()
	return send(w, r, log)
}

func (a *Agent) getRunLog(w http.ResponseWriter, r *http.Request) error { return send(w, r, a.runLog) }

// send answers with a log.
func send(w http.ResponseWriter, r *http.Request, log *applog.Log) error {
	q := r.URL.Query()
	from, err := number(q.Get("from"))
	if err != nil {
		return err
	}
	tail, err := number(q.Get("tail"))
	if err != nil {
		return err
	}
	follow := false
	if s := q.Get("follow"); s != "" {
		if follow, err = strconv.ParseBool(s); err != nil {
			return fmt.Errorf("%w: follow is %.20q", errInvalid, s)
		}
	}
	at := log.Start(from)
	if q.Get("tail") != "" && q.Get("from") == "" {
		at = log.Tail(int(min(tail, 1<<20)))
	}
	w.Header().Set(appapi.HeaderOffset, strconv.FormatInt(at, 10))
	w.Header().Set("Content-Type", "application/octet-stream")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	_ = log.Copy(r.Context(), w, at, follow, func() { _ = flush.Flush() }) // the header is sent: a break of the log is all that can be told
	return nil
}

func number(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%w: %.20q is not a number of bytes or lines", errInvalid, s)
	}
	return n, nil
}
