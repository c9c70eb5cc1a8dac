package edge

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The benchmark compares requests through a preview with direct ones, over kept
// connections. CPU is that of all parts: client, edge, host and program.
func BenchmarkRequest(b *testing.B) {
	r := newRig(b)
	page := []byte(strings.Repeat("x", 1<<10))
	r.serve(8000, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write(page)
	}))
	front := httptest.NewServer(r.front.Config.Handler)
	b.Cleanup(front.Close)
	for name, address := range map[string]string{"direct": r.ports["8000"], "preview": front.Listener.Addr().String()} {
		b.Run(name, func(b *testing.B) {
			b.SetParallelism(4)
			before := used()
			b.RunParallel(func(pb *testing.PB) {
				conn, err := net.Dial("tcp", address)
				if err != nil {
					b.Error(err)
					return
				}
				defer conn.Close()
				in := bufio.NewReader(conn)
				request := fmt.Appendf(nil, "GET / HTTP/1.1\r\nHost: 8000-%s.%s\r\nUser-Agent: bench\r\nAccept-Encoding: gzip\r\n\r\n", box, suffix)
				for pb.Next() {
					if _, err := conn.Write(request); err != nil {
						b.Error(err)
						return
					}
					resp, err := http.ReadResponse(in, nil)
					if err != nil || resp.StatusCode != http.StatusOK {
						b.Error(resp, err)
						return
					}
					_, _ = io.Copy(io.Discard, resp.Body)
				}
			})
			b.ReportMetric(float64((used()-before).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}

// used is the CPU time that this process has used.
func used() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
