package httpapi

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// overHTTP2 sends a request on an in-memory connection with prior knowledge.
func (r *rig) overHTTP2(t *testing.T, method, target, bearer string, body io.Reader) (*http.Response, error) {
	t.Helper()
	conn, protocols := r.onPipe(t), new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
	t.Cleanup(transport.CloseIdleConnections)
	req, err := http.NewRequestWithContext(t.Context(), method, "http://pipe"+target, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+bearer)
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { resp.Body.Close() })
	if resp.ProtoMajor != 2 {
		t.Errorf("it spoke %s", resp.Proto)
	}
	return resp, nil
}

// longSilence is longer than any limit of what makes no progress.
const longSilence = 2 * time.Minute

// haltingReader is quiet before each read.
type haltingReader struct{ pieces []string }

func (h *haltingReader) Read(p []byte) (int, error) {
	if len(h.pieces) == 0 {
		return 0, io.EOF
	}
	<-time.After(longSilence)
	n := copy(p, h.pieces[0])
	if h.pieces[0] = h.pieces[0][n:]; h.pieces[0] == "" {
		h.pieces = h.pieces[1:]
	}
	return n, nil
}

// An HTTP/2 deadline that passes while nobody reads or writes ends a stream for good. A
// sandbox that wakes, or that is paused, is no client that stalls.
func TestQuietSandboxesOverHTTP2(t *testing.T) {
	const size = 3 << 20 // more than the server receives before somebody reads it
	large := strings.Repeat("x", size)
	// take reads a body with a pause before it and one in its middle.
	take := func(t *testing.T, body io.Reader) {
		t.Helper()
		<-time.After(longSilence)
		first, err := io.CopyN(io.Discard, body, size/2)
		if err != nil {
			t.Errorf("the beginning: %d bytes, %v", first, err)
			return
		}
		<-time.After(longSilence)
		if rest, err := io.Copy(io.Discard, body); err != nil || first+rest != size {
			t.Errorf("%d bytes, %v", first+rest, err)
		}
	}
	for _, c := range []struct {
		name, method, target, bearer, body string
		prepare                            func(*testing.T, *rig)
		status                             int
		answer                             string // what it ends with
	}{
		{"an upload", http.MethodPut, "/v1/sandboxes/" + testID + "/fs?path=/a", "tenant", large, func(t *testing.T, r *rig) {
			r.streams.write = func(_, _ string, body io.Reader, _ int64) (bool, error) {
				take(t, body)
				return true, nil
			}
		}, 201, ""},
		{"a request to an app", http.MethodPost, "/v1/apps/app-1/proxy/x", "tenant", large, func(t *testing.T, r *rig) {
			r.api.cfg.AppProxy = func(string, string) http.Handler {
				return http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { take(t, req.Body) })
			}
		}, 200, ""},
		{"a restore", http.MethodPost, "/v1/admin/raft/restore", "operator", large, func(t *testing.T, r *rig) {
			r.cluster.restore = func(body io.Reader) error {
				take(t, body)
				return nil
			}
		}, 204, ""},
		{
			"an exec that waits for memory", http.MethodPost, "/v1/sandboxes/" + testID + "/exec", "tenant", `{"cmd":"cat","stdin":"` + large + `"}`,
			func(_ *testing.T, r *rig) {
				r.streams.admit = func(int64) (func(), error) {
					<-time.After(longSilence)
					return func() {}, nil
				}
				r.streams.exec = func(_ context.Context, _ string, in api.Exec) (api.ExecResult, error) {
					<-time.After(longSilence)
					return api.ExecResult{ExitCode: len(in.Stdin)}, nil
				}
			}, 200, "",
		},
		{"a download", http.MethodGet, "/v1/sandboxes/" + testID + "/fs?path=/a", "tenant", "", func(_ *testing.T, r *rig) {
			r.streams.read = func(string, http.Header) (*sandbox.File, error) {
				return &sandbox.File{Status: 200, Header: http.Header{}, Body: io.NopCloser(&haltingReader{[]string{large, large, "end"}})}, nil
			}
		}, 200, "xend"},
		{"rows", http.MethodPost, proxy + "query", "token", `{"query":"SELECT 1"}`, func(_ *testing.T, r *rig) {
			r.broker.call = func(context.Context, string, string, http.Header, string) (*http.Response, error) {
				return answered(200, typeNDJSON, &haltingReader{[]string{"[1]\n", "[2]\n", "[3]\n"}})
			}
		}, 200, "[1]\n[2]\n[3]\n"},
		{"a listing", http.MethodGet, "/v1/sandboxes/" + testID + "/fs/dir?path=/d", "tenant", "", func(_ *testing.T, r *rig) {
			r.streams.list = func(_ string, each func(api.FileStat) error) error {
				for range 3 {
					if err := each(api.FileStat{Path: "/d/x", Name: large, Type: "file", Mode: "0644"}); err != nil {
						return err
					}
					<-time.After(longSilence)
				}
				return nil
			}
		}, 200, "]}\n"},
		{"a backup", http.MethodGet, "/v1/admin/raft/snapshot", "operator", "", func(_ *testing.T, r *rig) {
			r.cluster.backup = func(w io.Writer) error {
				_, err := io.Copy(w, &haltingReader{[]string{large, large, "end"}})
				return err
			}
		}, 200, "xend"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				c.prepare(t, r)
				var body io.Reader
				if c.body != "" {
					body = strings.NewReader(c.body)
				}
				resp, err := r.overHTTP2(t, c.method, c.target, c.bearer, body)
				if err != nil {
					t.Fatal(err)
				}
				answer, err := io.ReadAll(resp.Body)
				if err != nil || resp.StatusCode != c.status || !strings.HasSuffix(string(answer), c.answer) {
					t.Errorf("%d, %d bytes %.300q, %v", resp.StatusCode, len(answer), answer, err)
				}
			})
		})
	}
}

// haltedReader has a beginning, and then nothing until it is closed.
type haltedReader struct {
	io.Reader
	closed chan struct{}
	once   sync.Once
}

func newHaltedReader(beginning string) *haltedReader {
	h := &haltedReader{closed: make(chan struct{})}
	h.Reader = io.MultiReader(strings.NewReader(beginning), readerFunc(func([]byte) (int, error) {
		<-h.closed
		return 0, io.EOF
	}))
	return h
}

func (h *haltedReader) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestSlowClientsOverHTTP2(t *testing.T) {
	for _, c := range []struct {
		name, method, target, bearer string
		after                        time.Duration
		status                       int
	}{
		{"a body that does not come", http.MethodPost, "/v1/sandboxes", "tenant", bodyTimeout, 408},
		{"input that does not come", http.MethodPost, "/v1/sandboxes/" + testID + "/exec", "tenant", bodyTimeout, 408},
		{"code that does not come", http.MethodPost, "/v1/functions/app-1/deploy", "tenant", bodyTimeout, 408},
		{"a body that nobody awaits", http.MethodPost, "/v1/sandboxes", "nobody", 0, 401},
		{"an upload that stalls", http.MethodPut, "/v1/sandboxes/" + testID + "/fs?path=/a", "tenant", stallTimeout, 408},
		{"a restore that stalls", http.MethodPost, "/v1/admin/raft/restore", "operator", stallTimeout, 408},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.cluster.restore = func(in io.Reader) error {
					_, err := io.Copy(io.Discard, in)
					return err
				}
				r.streams.write = func(_, _ string, in io.Reader, _ int64) (bool, error) {
					_, err := io.Copy(io.Discard, in)
					return false, err
				}
				beginning := "{"
				if strings.HasSuffix(c.target, "/deploy") {
					beginning = "" // its first byte says what it is
				}
				start := time.Now()
				resp, err := r.overHTTP2(t, c.method, c.target, c.bearer, newHaltedReader(beginning))
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(start); took != c.after || resp.StatusCode != c.status {
					t.Errorf("%d after %s, want %d after %s", resp.StatusCode, took, c.status, c.after)
				}
			})
		})
	}
}

// A client that reads nothing of a download is disconnected, which ends the work for it.
func TestDownloadThatNobodyReadsOverHTTP2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		start := time.Now()
		var took time.Duration
		r.streams.read = func(string, http.Header) (*sandbox.File, error) {
			endless := readerFunc(func(p []byte) (int, error) { return len(p), nil })
			return &sandbox.File{Status: 200, Header: http.Header{}, Body: closer{endless, func() { took = time.Since(start) }}}, nil
		}
		resp, err := r.overHTTP2(t, http.MethodGet, "/v1/sandboxes/"+testID+"/fs?path=/a", "tenant", nil)
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(longSilence)
		synctest.Wait()
		if took != stallTimeout {
			t.Errorf("it ended after %s, want %s", took, stallTimeout)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err == nil {
			t.Error("the download ended without an error")
		}
	})
}

type closer struct {
	io.Reader
	then func()
}

func (c closer) Close() error {
	c.then()
	return nil
}

// A transport may still read a body after its round trip; by then the request's context
// serves another request.
func TestABodyIsLeftWithItsRequest(t *testing.T) {
	r := newRig(t)
	var first io.Reader
	r.streams.write = func(_, _ string, body io.Reader, _ int64) (bool, error) {
		first = body
		return false, errors.New("the host has answered early")
	}
	target := "/v1/sandboxes/" + testID + "/fs?path=/a"
	r.send(request(t, http.MethodPut, target, "tenant", "one"))
	r.streams.write = func(_, _ string, second io.Reader, _ int64) (bool, error) {
		if got, err := io.ReadAll(first); err != nil || len(got) != 0 {
			t.Errorf("the first body goes on with %q, %v", got, err)
		}
		if got, err := io.ReadAll(second); err != nil || string(got) != "two" {
			t.Errorf("the second body is %q, %v", got, err)
		}
		return true, nil
	}
	r.send(request(t, http.MethodPut, target, "tenant", "two"))
}
