package controlplane

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
)

// What runs in a sandbox learns its client from a balancer that the operator trusts, and
// from nobody else, whichever replica serves the preview.
func TestABalancerSaysWhoTheClientIs(t *testing.T) {
	const said = "192.0.2.66, 203.0.113.7, 198.51.100.1"
	for trusted, want := range map[string]string{"127.0.0.0/8,198.51.100.0/24": "203.0.113.7", "198.51.100.0/24": "127.0.0.1"} {
		t.Run(trusted, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, "BERTH_TRUSTED_PROXIES="+trusted)
			h := s.join("h1", 8192)
			h.SetDial(func(_ string, _ int, conn net.Conn) bool {
				go func() {
					defer conn.Close()
					r, err := http.ReadRequest(bufio.NewReader(conn))
					if err != nil {
						return
					}
					from := fmt.Sprintf("%q", r.Header.Values("X-Forwarded-For"))
					fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(from), from)
				}()
				return true
			})
			_, key := s.user("ann")
			sb, err := s.client(key).CreateSandbox(t.Context(), api.CreateSandbox{Template: "base"}, "")
			if err != nil {
				t.Fatal(err)
			}
			for _, at := range []*process{s.leader(), s.follower()} {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at.url+"/", nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Host = "80-" + sb.ID + ".preview.test"
				r.Header.Set("X-Forwarded-For", said)
				resp, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || string(got) != fmt.Sprintf("[%q]", want) {
					t.Errorf("%s: %d %s, %v, want %q", at.id, resp.StatusCode, got, err, want)
				}
			}
		})
	}
}
