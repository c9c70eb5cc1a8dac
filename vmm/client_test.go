package vmm

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// serve answers on a unix socket and returns a client of it.
func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "vmm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	c := NewClient(l.Addr().String())
	t.Cleanup(func() { c.Close(); srv.Close(); <-done })
	return c
}

func TestClientSendsWhatTheAPITakes(t *testing.T) {
	var got []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body := make([]byte, 4096)
		n, _ := r.Body.Read(body)
		got = append(got, r.Method+" "+r.URL.Path+" "+string(body[:n]))
		w.WriteHeader(http.StatusNoContent)
	})
	ctx := t.Context()
	calls := []func() error{
		func() error { return c.Create(ctx, VMConfig{CPUs: CPUsConfig{BootVCPUs: 1, MaxVCPUs: 2}}) },
		func() error { return c.Boot(ctx) },
		func() error { return c.Snapshot(ctx, SnapshotConfig{DestinationURL: FileURL("/a b")}) },
		func() error { return c.Restore(ctx, RestoreConfig{SourceURL: FileURL("/c"), Resume: true}) },
		func() error { return c.RemoveDevice(ctx, "d") },
		func() error { return c.ShutdownVMM(ctx) },
	}
	for _, call := range calls {
		if err := call(); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		`PUT /api/v1/vm.create {"cpus":{"boot_vcpus":1,"max_vcpus":2},"memory":{"size":0}}`,
		`PUT /api/v1/vm.boot `,
		`PUT /api/v1/vm.snapshot {"destination_url":"file:///a b"}`,
		`PUT /api/v1/vm.restore {"source_url":"file:///c","resume":true}`,
		`PUT /api/v1/vm.remove-device {"id":"d"}`,
		`PUT /api/v1/vmm.shutdown `,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestClientCarriesTheVMMsMessages(t *testing.T) {
	cases := []struct {
		name, body string
		status     int
		messages   []string
		text       string
	}{
		{"a chain of errors", `["Error from API","The VM could not boot","VM config is missing"]`, 404,
			[]string{"Error from API", "The VM could not boot", "VM config is missing"},
			"vm.boot: Error from API: The VM could not boot: VM config is missing (status 404)"},
		{"the HTTP layer's own words", "{ \"error\": \"Invalid HTTP Method.\nAll previous unanswered requests will be dropped.\" }", 400,
			[]string{"Invalid HTTP Method.\nAll previous unanswered requests will be dropped."},
			"vm.boot: Invalid HTTP Method.\nAll previous unanswered requests will be dropped. (status 400)"},
		{"nothing", "", 400, nil, "vm.boot: status 400"},
		{"something else", "<html>", 500, []string{"<html>"}, "vm.boot: <html> (status 500)"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tc.status)
				_, _ = w.Write([]byte(tc.body))
			})
			err := c.Boot(t.Context())
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v, want an *Error", err)
			}
			if e.Op != "vm.boot" || e.Status != tc.status || e.Error() != tc.text {
				t.Errorf("got %q (op %s, status %d), want %q", e, e.Op, e.Status, tc.text)
			}
			if diff := cmp.Diff(tc.messages, e.Messages); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
		})
	}
}

func TestClientBoundsWhatItSendsAndReads(t *testing.T) {
	var calls atomic.Int32
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		chunk := []byte(strings.Repeat("x", 1<<20))
		for range 9 {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	err := c.Create(t.Context(), VMConfig{Payload: &PayloadConfig{Cmdline: strings.Repeat("x", maxRequestBytes)}})
	if err == nil || calls.Load() != 0 {
		t.Errorf("a request too large: %v, after %d calls", err, calls.Load())
	}
	if _, err := c.Info(t.Context()); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("an answer too large: %v", err)
	}
}

func TestClientReadsAnswers(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/v1/vm.info":
			_, _ = w.Write([]byte(`{"config":{"cpus":{"boot_vcpus":1,"max_vcpus":1},"memory":{"size":1},"unheard_of":{}},"state":"Paused","memory_actual_size":18446744073709551615}`))
		case "/api/v1/vm.add-disk":
			w.WriteHeader(http.StatusNoContent)
		}
	})
	info, err := c.Info(t.Context())
	if err != nil || info.State != StatePaused || info.MemoryActualSize != 1<<64-1 {
		t.Errorf("info %+v, %v", info, err)
	}
	dev, err := c.AddDisk(t.Context(), DiskConfig{})
	if err != nil || dev != (PCIDevice{}) {
		t.Errorf("a disk added before boot: %+v, %v", dev, err)
	}
}

func TestClientEndsWithItsContext(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	c := serve(t, func(http.ResponseWriter, *http.Request) { close(arrived); <-release })
	defer close(release)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	if err := c.Pause(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want a cancelled call", err)
	}
}

func TestClientTalksToTheRightProcessAlone(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	right, wrong := newClient(c.Socket(), os.Getpid()), newClient(c.Socket(), 1)
	defer right.Close()
	defer wrong.Close()
	if err := right.Boot(t.Context()); err != nil {
		t.Errorf("this process's own socket: %v", err)
	}
	if err := wrong.Boot(t.Context()); err == nil || !strings.Contains(err.Error(), "listens there") {
		t.Errorf("another's socket: %v", err)
	}
}

func TestClientWithoutAVMM(t *testing.T) {
	c := NewClient(filepath.Join(t.TempDir(), "none"))
	if _, err := c.Ping(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want that there is no socket", err)
	}
}
