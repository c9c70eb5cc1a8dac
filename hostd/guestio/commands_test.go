package guestio_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/guestio"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// answering starts a box whose guest gives every request the same answer.
func answering(t *testing.T, status int, body string) *daemon {
	t.Helper()
	w := boxtest.NewWorld(t)
	d := start(t, w)
	_, err := d.Put(t.Context(), idA, spec(1))
	must(t, err)
	w.Guest = http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.WriteHeader(status)
		_, _ = io.WriteString(rw, body)
	})
	return d
}

func TestGuestThatIsOlderThanItsCommands(t *testing.T) {
	d := answering(t, http.StatusNotFound, "404 page not found\n")
	_, err := d.Commands(t.Context(), idA)
	var says *guestio.Refusal
	if !errors.As(err, &says) || says.Status != http.StatusNotImplemented {
		t.Errorf("got %v", err)
	}
}

// A guest may say much of its commands and take its time for the rest, to any number of
// callers.
func TestListsOfCommandsShareTheMemoryBudget(t *testing.T) {
	const share = 256 << 10 // of the box
	w := boxtest.NewWorld(t)
	d := start(t, w, func(c *box.Config, _ *box.Deps) { c.OutputBudget = 4 * share })
	_, err := d.Put(t.Context(), idA, spec(1))
	must(t, err)
	list := func(n int) error {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		w.Guest = http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(rw, "["+strings.Repeat(" ", n-2)+"]")
		})
		_, err := d.Commands(ctx, idA)
		return err
	}
	for range 2 { // the budget comes back once a list was read
		if err := list(share + 1); !errors.Is(err, hosterr.ErrBusy) {
			t.Errorf("more than a share: %v, want ErrBusy", err)
		}
		await(t, func() bool { return list(share) == nil })
	}
}

// So does input, which a guest need not take.
func TestInputsOfCommandsShareTheMemoryBudget(t *testing.T) {
	const share = 256 << 10 // of the box
	w := boxtest.NewWorld(t)
	d := start(t, w, func(c *box.Config, _ *box.Deps) { c.OutputBudget = 4 * share })
	_, err := d.Put(t.Context(), idA, spec(1))
	must(t, err)
	w.Guest = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		conn := rw.(boxtest.Raw).Raw()
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 100 Continue\r\n\r\n")
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
	})
	for range 2 { // the budget comes back once the guest has answered
		if err := d.WriteCommand(t.Context(), idA, "cmd-a", hostapi.CommandInput{Data: make([]byte, share)}); !errors.Is(err, hosterr.ErrBusy) {
			t.Errorf("more than a share: %v, want ErrBusy", err)
		}
		must(t, d.WriteCommand(t.Context(), idA, "cmd-a", hostapi.CommandInput{Data: make([]byte, share/2)}))
		must(t, d.WriteCommand(t.Context(), idA, "cmd-a", hostapi.CommandInput{Data: make([]byte, share/2)}))
	}
}

func TestWhatAGuestSaysOfCommandsIsChecked(t *testing.T) {
	const good = `{"id":"cmd-a","status":"running","started_at":"2026-11-20T10:00:00Z"}`
	for name, body := range map[string]string{
		"no list":         `{}`,
		"no end":          `[` + good,
		"too many":        `[` + strings.Repeat(good+",", 1000) + good + `]`,
		"id":              `[{"id":"../x","status":"running"}]`,
		"state":           `[{"id":"cmd-a","status":"dreaming"}]`,
		"end without one": `[{"id":"cmd-a","status":"exited"}]`,
		"text":            `[{"id":"cmd-a","status":"running","text":"` + strings.Repeat("x", 20<<10) + `"}]`,
	} {
		d := answering(t, http.StatusOK, body)
		if got, err := d.Commands(t.Context(), idA); !errors.Is(err, hosterr.ErrGuest) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	for name, body := range map[string]string{
		"stream":       `{"stream":"x"}` + "\n",
		"end":          `{"stream":"exit"}` + "\n",
		"no JSON":      "x\n",
		"endless line": `{"stream":"stdout","data":"` + strings.Repeat("x", 1<<20),
	} {
		d := answering(t, http.StatusOK, body)
		err := d.CommandOutput(t.Context(), idA, "cmd-a", 0, false, guestio.Output{
			Began: func() {}, Emit: func(hostapi.CommandOutput) error { return nil },
		})
		if !errors.Is(err, hosterr.ErrGuest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
