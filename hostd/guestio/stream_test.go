package guestio_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/guestio"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// withGuest starts a box whose guest answers everything with status and body.
func withGuest(t *testing.T, status int, body string) *daemon {
	t.Helper()
	w := boxtest.NewWorld(t)
	d := start(t, w)
	_, err := d.Put(t.Context(), idA, spec(1))
	must(t, err)
	w.Guest = http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		rw.WriteHeader(status)
		_, _ = io.WriteString(rw, strings.ReplaceAll(body, "QUERY", req.URL.RawQuery))
	})
	return d
}

func TestLinesOfTheGuestsLogAreHandedOn(t *testing.T) {
	d := withGuest(t, http.StatusOK, `{"stream":"stdout","ts":"2026-11-20T12:00:00Z","line":"QUERY"}
{"stream":"stderr","ts":"2026-11-20T12:00:01Z","line":"half","partial":true}
`)
	var got []string
	err := d.StartLogs(t.Context(), idA, "both", 5, true, guestio.Lines{
		Began: func() { got = append(got, "began") },
		Emit: func(l hostapi.LogLine) error {
			got = append(got, fmt.Sprint(l.Stream, " ", l.Line, " ", l.Partial))
			return nil
		},
	})
	must(t, err)
	if want := "began|stdout follow=true&stream=both&tail=5 false|stderr half true"; strings.Join(got, "|") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestHostileAnswers(t *testing.T) {
	lines := guestio.Lines{Began: func() {}, Emit: func(hostapi.LogLine) error { return nil }}
	for name, c := range map[string]struct {
		status int
		body   string
	}{
		"a line that is no JSON":       {200, "hello\n"},
		"a stream that does not exist": {200, `{"stream":"console","line":"x"}` + "\n"},
		"a line without an end":        {200, `{"stream":"stdout","line":"` + strings.Repeat("x", 1<<20)},
		"a refusal that is no JSON":    {404, "<html>"},
		"a redirect":                   {302, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := withGuest(t, c.status, c.body)
			if err := d.StartLogs(t.Context(), idA, "both", -1, false, lines); !errors.Is(err, hosterr.ErrGuest) {
				t.Errorf("logs = %v, want ErrGuest", err)
			}
		})
	}
	t.Run("ports that are no ports", func(t *testing.T) {
		d := withGuest(t, http.StatusOK, `[{"port":0},{"port":70000},{"port":999,"protocol":"tcp"},{"port":80,"protocol":"tcp","process":"web"}]`)
		got, err := d.Ports(t.Context(), idA)
		if err != nil || len(got) != 1 || got[0].Port != 80 || got[0].Process != "web" {
			t.Errorf("ports = %+v, %v", got, err)
		}
	})
	t.Run("more ports than are told of", func(t *testing.T) {
		d := withGuest(t, http.StatusOK, `[{"port":1}`+strings.Repeat(`,{"port":1}`, 9000)+"]")
		got, err := d.Ports(t.Context(), idA)
		if err != nil || len(got) != 4096 {
			t.Errorf("%d ports, %v", len(got), err)
		}
	})
	for name, body := range map[string]string{
		"no list": `{"port":1}`, "nothing": "", "a list without an end": `[{"port":1}`, "a port that is none": `[{"port":"x"}]`,
		"more than is read": "[{}" + strings.Repeat(",{}", 1<<20) + "]",
	} {
		t.Run("ports: "+name, func(t *testing.T) {
			if got, err := withGuest(t, http.StatusOK, body).Ports(t.Context(), idA); !errors.Is(err, hosterr.ErrGuest) {
				t.Errorf("ports = %v, %v, want ErrGuest", got, err)
			}
		})
	}
	for header, want := range map[string]string{
		"bytes */5": "bytes */5", "bytes */-5": "", "bytes */5, and more": "", "lines */5": "", "bytes */99999999999999999999": "", "": "",
	} {
		t.Run("a refusal of a range that says "+header, func(t *testing.T) {
			w := boxtest.NewWorld(t)
			d := start(t, w)
			_, err := d.Put(t.Context(), idA, spec(1))
			must(t, err)
			w.Guest = http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
				rw.Header().Set("Content-Range", header)
				rw.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			})
			_, err = d.Relay(t.Context(), idA, guestio.GuestRequest{Method: http.MethodGet, Path: "/v1/fs"})
			var says *guestio.Refusal
			if !errors.As(err, &says) || says.Status != 416 || says.Message != "invalid range" || says.ContentRange != want {
				t.Errorf("relay = %+v, want %q", says, want)
			}
		})
	}
	t.Run("a large head", func(t *testing.T) {
		w := boxtest.NewWorld(t)
		d := start(t, w)
		_, err := d.Put(t.Context(), idA, spec(1))
		must(t, err)
		w.Guest = http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			for range 2 << 10 {
				rw.Header().Add("X", "y") // 6 bytes each
			}
		})
		if _, err = d.Relay(t.Context(), idA, guestio.GuestRequest{Method: http.MethodGet, Path: "/v1/fs"}); !errors.Is(err, hosterr.ErrGuest) {
			t.Errorf("relay = %v, want ErrGuest", err)
		}
	})
	t.Run("a refusal", func(t *testing.T) {
		d := withGuest(t, http.StatusNotFound, `{"error":"no such file or directory","detail":"/x"}`)
		_, err := d.Relay(t.Context(), idA, guestio.GuestRequest{Method: http.MethodGet, Path: "/v1/fs"})
		var says *guestio.Refusal
		if !errors.As(err, &says) || says.Status != http.StatusNotFound || says.Message != "no such file or directory" {
			t.Errorf("relay = %v, want the guest's refusal", err)
		}
	})
}

// asking is a box in whose guest nothing listens on its address. answer is the agent's to a
// connect, and asked counts those.
func asking(t *testing.T, answer func(port string, rw http.ResponseWriter)) (w *boxtest.World, d *daemon, asked *atomic.Int64) {
	t.Helper()
	w = boxtest.NewWorld(t)
	d = start(t, w)
	_, err := d.Put(t.Context(), idA, spec(1))
	must(t, err)
	asked = new(atomic.Int64)
	w.Guest = http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		if req.URL.Path == guestapi.PathConnect {
			asked.Add(1)
			answer(req.URL.Query().Get("port"), rw)
			return
		}
		rw.WriteHeader(http.StatusNotFound)
	})
	return w, d, asked
}

func TestAServerOnLoopbackIsReachedByTheAgent(t *testing.T) {
	_, d, _ := asking(t, func(port string, rw http.ResponseWriter) {
		conn := rw.(boxtest.Upgrader).Upgrade()
		go func() {
			defer conn.Close()
			_, _ = io.WriteString(conn, "of "+port)
		}()
	})
	conn, err := d.DialPort(t.Context(), idA, 3000)
	must(t, err)
	defer conn.Close()
	if open, _ := d.Tunnels(idA); open != 1 {
		t.Errorf("%d tunnels are counted", open)
	}
	if got, err := io.ReadAll(conn); err != nil || string(got) != "of 3000" {
		t.Errorf("got %q, %v", got, err)
	}
}

// A guest that hibernates cuts it, as any connection to a port.
func TestAConnectionByTheAgentEndsWithTheVMM(t *testing.T) {
	_, d, _ := asking(t, func(_ string, rw http.ResponseWriter) { rw.(boxtest.Upgrader).Upgrade() })
	conn, err := d.DialPort(t.Context(), idA, 3000)
	must(t, err)
	_, err = d.Hibernate(t.Context(), idA)
	must(t, err)
	if _, err := io.ReadAll(conn); err == nil || !errors.Is(conn.Err(), hosterr.ErrCutOff) {
		t.Errorf("read = %v, cut by %v", err, conn.Err())
	}
	if open, _ := d.Tunnels(idA); open != 0 {
		t.Errorf("%d tunnels are left", open)
	}
}

func TestConnectsThatTheAgentRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		want   error
	}{
		"nothing listens":  {502, `{"error":"connection refused"}`, hosterr.ErrPortClosed},
		"an older agent":   {404, "404 page not found\n", hosterr.ErrPortClosed},
		"one too many":     {503, `{"error":"256 are open","code":"` + guestapi.CodeLimit + `"}`, hosterr.ErrConnections},
		"no upgrade":       {200, "", hosterr.ErrPortClosed},
		"one that is none": {700, "", hosterr.ErrPortClosed},
	} {
		t.Run(name, func(t *testing.T) {
			_, d, _ := asking(t, func(_ string, rw http.ResponseWriter) {
				rw.WriteHeader(c.status)
				_, _ = io.WriteString(rw, c.body)
			})
			if _, err := d.DialPort(t.Context(), idA, 3000); !errors.Is(err, c.want) || errors.Is(err, hosterr.ErrPortClosed) != (c.want == hosterr.ErrPortClosed) { //nolint:errorlint // a sentinel of the table
				t.Errorf("dial = %v, want %v", err, c.want)
			}
			if open, _ := d.Tunnels(idA); open != 0 {
				t.Errorf("%d tunnels are left", open)
			}
		})
	}
}

// What listens on loopback never stands in for a program of the platform.
func TestThePlatformsPortsAreNotReachedOnLoopback(t *testing.T) {
	_, d, asked := asking(t, func(_ string, rw http.ResponseWriter) { rw.(boxtest.Upgrader).Upgrade() })
	for _, port := range []int{guestapi.Port, pgapi.Port, appapi.Port} {
		if _, err := d.DialPort(t.Context(), idA, port); !errors.Is(err, hosterr.ErrPortClosed) {
			t.Errorf("port %d: %v, want ErrPortClosed", port, err)
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("the agent was asked %d times", n)
	}
}

// A guest whose address answers costs nothing more.
func TestTheAgentIsNotAskedForWhatListensEverywhere(t *testing.T) {
	w, d, asked := asking(t, func(_ string, rw http.ResponseWriter) { rw.(boxtest.Upgrader).Upgrade() })
	for _, dial := range []func() (net.Conn, error){
		func() (net.Conn, error) { conn, _ := net.Pipe(); return conn, nil },
		func() (net.Conn, error) { return nil, syscall.EHOSTUNREACH },
	} {
		w.Port = func(context.Context, int, int) (net.Conn, error) { return dial() }
		if conn, err := d.DialPort(t.Context(), idA, 3000); err == nil {
			must(t, conn.Close())
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("the agent was asked %d times", n)
	}
}
