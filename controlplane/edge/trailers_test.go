package edge

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/raftstore/record"
)

// What a program says after its body is no more believed than what it says before.
func TestTrailersOfAnAnswer(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2"} {
		t.Run(proto, func(t *testing.T) {
			r := newAppRig(t)
			app := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if req.URL.Path == "/many" {
					io.WriteString(w, "x")
					for i := range maxFields + 1 {
						w.Header().Set(fmt.Sprint(http.TrailerPrefix, "X", i), "")
					}
					return
				}
				for _, k := range []string{"Grpc-Status", "Berth-Forwarded", "X-Service-App", "Set-Cookie"} {
					w.Header().Add("Trailer", k)
				}
				w.Header().Set("Content-Type", "application/grpc")
				io.WriteString(w, "body")
				w.(http.Flusher).Flush()
				for _, k := range []string{"Grpc-Status", "Berth-Forwarded", "X-Service-App", "Set-Cookie"} {
					w.Header().Set(k, "announced")
				}
				for _, k := range []string{
					"Grpc-Message", "Berth-Not-Leader", "X-Request-Id", "Strict-Transport-Security", "Content-Encoding", "Www-Authenticate",
				} {
					w.Header().Set(http.TrailerPrefix+k, "not announced")
				}
			}))
			if proto == "HTTP/2" {
				app.Config.Protocols = new(http.Protocols)
				app.Config.Protocols.SetUnencryptedHTTP2(true)
			}
			app.Start()
			t.Cleanup(app.Close)
			r.startAt(boxA, app.Listener.Addr().String())
			r.flip(record.AppRunning, boxA)
			get := func(path string) (*http.Response, string, error) {
				t.Helper()
				req := r.request(t, http.MethodPost, path, http.NoBody)
				if proto == "HTTP/2" {
					req.Header.Set("Content-Type", "application/grpc")
				}
				resp, err := r.front.Client().Do(req)
				if err != nil {
					return nil, "", err
				}
				defer resp.Body.Close()
				text, err := io.ReadAll(resp.Body)
				return resp, string(text), err
			}
			resp, text, err := get("/")
			if err != nil || text != "body" {
				t.Fatalf("%q, %v", text, err)
			}
			want := http.Header{"Grpc-Status": {"announced"}, "Grpc-Message": {"not announced"}}
			if d := cmp.Diff(want, resp.Trailer); d != "" {
				t.Error(d)
			}
			if resp, _, err := get("/many"); err == nil && len(resp.Trailer) > 0 {
				t.Errorf("%d trailers passed", len(resp.Trailer))
			}
		})
	}
}

// A program is not told of trailers that do not reach it.
func TestTrailersOfARequest(t *testing.T) {
	r := newAppRig(t)
	r.start(t, boxA, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		fmt.Fprint(w, len(req.Trailer), req.Header["Trailer"])
	}))
	r.flip(record.AppRunning, boxA)
	body, w := io.Pipe()
	req := r.request(t, http.MethodPost, "/", body)
	req.Trailer = http.Header{"Berth-Forwarded": {"r1"}, "X-Sum": {"1"}}
	go func() {
		_, _ = io.WriteString(w, "x")
		_ = w.Close()
	}()
	if _, text := r.do(t, req); text != "0 []" {
		t.Errorf("it sees %s", text)
	}
}
