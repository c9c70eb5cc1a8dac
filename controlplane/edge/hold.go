package edge

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

const (
	catchUpRetry = 5 * time.Millisecond
	wakeRetry    = 200 * time.Millisecond
)

// catchUpLimit is how long a follower waits for an instance that the leader has: several
// times what Raft takes to tell of a commit.
var catchUpLimit = timescale.Limit(500 * time.Millisecond)

// hold has an app woken of which no instance serves, and waits for it.
func (v *visitApp) hold(w http.ResponseWriter, r *http.Request, app App) step {
	// Whatever has befallen the instances of one that runs, it is not asleep.
	if app.Status != record.AppRunning && !v.class.wakes() {
		v.answerAsleep(w, r, app)
		return over
	}
	if v.until.IsZero() {
		v.until = time.Now().Add(v.apps.cfg.Hold)
	}
	ctx, cancel := context.WithDeadline(hostapi.WithRequestID(r.Context(), r.Header.Get(headerRequestID)), v.until)
	defer cancel()
	if !v.woken.IsZero() {
		return v.catchUp(ctx, w, r)
	}
	err := v.apps.wakes.Wait(ctx, v.id)
	switch code := apierror.CodeOf(err); {
	case err == nil:
		v.woken, v.tried = time.Now(), nil
		return again
	case ctx.Err() != nil:
		return v.waited(w, r)
	case code == apierror.EUnwoken:
		v.refuseUnwoken(w, r, apierror.As(err).RetryAfter)
		return over
	case code == apierror.EUnavailable, errors.Is(err, context.DeadlineExceeded): // an election may be under way; a wake may take long
		return v.pause(ctx, w, r, wakeRetry)
	case code == apierror.EQuota: // its workspace is paused, which this copy does not show yet
		v.refuseSuspended(w, r)
		return over
	case code == apierror.ERateLimited:
		v.refuseSpent(w, r, apierror.As(err))
		return over
	case code == apierror.ENotFound, code == apierror.EConflict:
		v.refuse(w, r, http.StatusNotFound, apierror.As(err).Message, "")
		return over
	default:
		v.unwoken.Do(func() {
			v.cfg.Log.WarnContext(ctx, "app could not be woken", "app_id", v.id, "error", err)
		})
		v.refuseUnwoken(w, r, 0)
		return over
	}
}

// refuseUnwoken answers when a wake has failed, and for as long as none is tried again.
// What has failed is for the app's owner alone.
func (v *visitApp) refuseUnwoken(w http.ResponseWriter, r *http.Request, wait time.Duration) {
	retry := retryWaking
	if wait > 2*time.Second {
		retry = strconv.Itoa(int(math.Ceil(wait.Seconds())))
	}
	w.Header().Set("Retry-After", retry)
	v.refuse(w, r, http.StatusServiceUnavailable, v.noun+" could not be woken", "")
}

// catchUp waits until this copy of the store shows what the leader has said.
func (v *visitApp) catchUp(ctx context.Context, w http.ResponseWriter, r *http.Request) step {
	if time.Since(v.woken) > catchUpLimit {
		if v.elsewhere(r) {
			return away
		}
		v.woken = time.Time{} // it has gone to sleep again, or cannot be reached
		return v.pause(ctx, w, r, wakeRetry)
	}
	return v.pause(ctx, w, r, catchUpRetry)
}

func (v *visitApp) pause(ctx context.Context, w http.ResponseWriter, r *http.Request, d time.Duration) step {
	if pause(ctx, d) {
		return again
	}
	return v.waited(w, r)
}

// waited answers a request that has waited for as long as it may.
func (v *visitApp) waited(w http.ResponseWriter, r *http.Request) step {
	if r.Context().Err() == nil {
		v.refuseWaking(w, r)
	}
	return over
}

// The headers and texts of the specification.
const (
	headerServiceApp = "X-Service-App"

	errNotLive = "app has no live deployment"
	errNoCode  = "no code deployed yet"
	errWaking  = " is waking up" // after what does
	errAsleep  = "app is asleep"

	retryWaking    = "2"
	retryAsleep    = "60"
	retrySuspended = "3600"
)

// answerAsleep answers a request that does not wake the app. One that could not be
// brought up is not asleep but down, and monitors hear of it.
func (v *visitApp) answerAsleep(w http.ResponseWriter, r *http.Request, app App) {
	h := w.Header()
	if app.Status == record.AppFailed {
		h.Set(headerServiceApp, "failed")
		h.Set("Retry-After", retryAsleep)
		v.refuse(w, r, http.StatusServiceUnavailable, "app has failed", "")
		return
	}
	h.Set(headerServiceApp, "asleep")
	if v.class == classMonitor || r.Method == http.MethodHead {
		v.own(w, r)
		w.WriteHeader(http.StatusOK)
		return
	}
	h.Set("Retry-After", retryAsleep)
	v.refuse(w, r, http.StatusServiceUnavailable, errAsleep, "")
}

// refuseSuspended answers for the apps of a suspended workspace: by a page, whoever
// asks. A function has none.
func (v *visitApp) refuseSuspended(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Retry-After", retrySuspended)
	if v.noun == nounFunction {
		v.refuse(w, r, http.StatusServiceUnavailable, "function is suspended", "its workspace is")
		return
	}
	h.Set(headerServiceApp, "suspended")
	v.own(w, r)
	writePage(w, page{Status: http.StatusServiceUnavailable, Message: "this app is suspended", Detail: "Its owner can bring it back."})
}

// refuseSpent answers for what sleeps in a workspace that has used all that it may in a
// month. By the API the workspace itself asks, and is told; an app's visitors see what
// those of a suspended one do.
func (v *visitApp) refuseSpent(w http.ResponseWriter, r *http.Request, e *apierror.Error) {
	if v.proxy == "" {
		v.refuseSuspended(w, r)
		return
	}
	v.refuse(w, r, http.StatusTooManyRequests, e.Message, e.Detail, e.Fields)
}

// refuseWaking answers when the app does not wake in time. A browser asks again by
// itself.
func (v *visitApp) refuseWaking(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Retry-After", retryWaking)
	if wantsPage(r) && v.noun == nounApp {
		v.own(w, r)
		writePage(w, page{Status: http.StatusServiceUnavailable, Message: v.noun + errWaking, Detail: "This page loads it as soon as it is up.", Refresh: retryWaking})
		return
	}
	v.refuse(w, r, http.StatusServiceUnavailable, v.noun+errWaking, "")
}
