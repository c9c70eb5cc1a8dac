package guestclient_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start returns a client of a guest that answers the nth identity by answer.
func start(t *testing.T, answer func(nth int, id guestapi.Identity, w http.ResponseWriter, r *http.Request)) *guestclient.Client {
	t.Helper()
	nth := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var id guestapi.Identity
		raw, err := io.ReadAll(r.Body)
		if err == nil {
			err = id.UnmarshalBinary(raw)
		}
		if err != nil || r.Method != http.MethodPost || r.URL.Path != guestapi.PathIdentity {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		nth++ // one identity comes after the other
		answer(nth, id, w, r)
	}))
	t.Cleanup(server.Close)
	return guestclient.New(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
	})
}

func confirm(w http.ResponseWriter, c guestapi.IdentityConfirmation) {
	_ = json.NewEncoder(w).Encode(c)
}

func TestIdentityIsSentWithTheTime(t *testing.T) {
	began := time.Now()
	sent := 0
	c := start(t, func(_ int, id guestapi.Identity, w http.ResponseWriter, _ *http.Request) {
		sent++
		if at := time.Unix(0, id.UnixNanos); id.Generation != 5 || id.Hostname != "box" || at.Before(began) || at.After(time.Now()) {
			t.Errorf("got %+v", id)
		}
		// All the time was the guest's.
		confirm(w, guestapi.IdentityConfirmation{Generation: 5, EntropyBits: 512, TookMicrosecond: 3600e6})
	})
	done, err := c.Identity(t.Context(), guestapi.Identity{Generation: 5, Hostname: "box"})
	if err != nil || done.Generation != 5 || done.EntropyBits != 512 {
		t.Errorf("got %+v, %v", done, err)
	}
	if sent != 1 {
		t.Errorf("it was sent %d times", sent)
	}
}

// A guest that is late with its answer may have been late with the question: it
// is told the time again.
func TestLateGuestIsToldTheTimeAgain(t *testing.T) {
	var times []int64
	c := start(t, func(nth int, id guestapi.Identity, w http.ResponseWriter, _ *http.Request) {
		times = append(times, id.UnixNanos)
		if nth == 1 {
			<-time.After(70 * time.Millisecond) // what is tested is that time passes
		}
		confirm(w, guestapi.IdentityConfirmation{Generation: 5, EntropyBits: 512 * nth})
	})
	done, err := c.Identity(t.Context(), guestapi.Identity{Generation: 5})
	if err != nil || done.EntropyBits != 512 {
		t.Errorf("got %+v, %v: want what the first confirmed", done, err)
	}
	if len(times) < 2 || times[1]-times[0] < int64(70*time.Millisecond) {
		t.Errorf("sent at %d, want another after the late one", times)
	}
}

func TestIdentityThatIsRefused(t *testing.T) {
	c := start(t, func(_ int, _ guestapi.Identity, w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(guestapi.Error{Error: "over"})
	})
	_, err := c.Identity(t.Context(), guestapi.Identity{Generation: 5})
	var refused *guestclient.Error
	if !errors.As(err, &refused) || refused.Status != http.StatusConflict || refused.Message != "over" {
		t.Errorf("got %v", err)
	}
}

func TestIdentityThatCannotBeSent(t *testing.T) {
	c := start(t, func(int, guestapi.Identity, http.ResponseWriter, *http.Request) { t.Error("it was sent") })
	id := guestapi.Identity{Entropy: make([]byte, guestapi.MaxIdentity)}
	if _, err := c.Identity(t.Context(), id); !errors.Is(err, guestapi.ErrIdentityFormat) {
		t.Errorf("got %v", err)
	}
}

func TestWaitForAnIdentityEndsWithTheContext(t *testing.T) {
	c := start(t, func(_ int, _ guestapi.Identity, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	cause := errors.New("the sandbox was deleted")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	time.AfterFunc(50*time.Millisecond, func() { cancel(cause) })
	if _, err := c.Identity(ctx, guestapi.Identity{Generation: 5}); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}
