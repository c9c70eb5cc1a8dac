package pgsni

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// answering is a server that logs everybody in and answers each request of the
// length request with an answer of another length, by TLS or without. It plays
// both the server behind a router and the one that a client reaches directly.
type answering struct {
	net.Listener
	request, answer int
	tls             *tls.Config
}

func newAnswering(b *testing.B, request, answer int, cfg *tls.Config) *answering {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	a := &answering{l, request, answer, cfg}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go a.serve(c)
		}
	}()
	return a
}

func (a *answering) Dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", a.Addr().String())
}

func (a *answering) serve(c net.Conn) {
	defer c.Close()
	if a.tls != nil {
		_, _ = readPacket(c)
		_, _ = c.Write([]byte{'S'})
		c = tls.Server(c, a.tls)
	}
	if _, err := readPacket(c); err != nil {
		return
	}
	out, _ := encode[pgproto3.BackendMessage](&pgproto3.AuthenticationOk{}, &pgproto3.ReadyForQuery{TxStatus: 'I'})
	in, answer := make([]byte, a.request), rows(a.answer)
	for {
		if _, err := c.Write(out); err != nil {
			return
		}
		if _, err := io.ReadFull(c, in); err != nil {
			return
		}
		out = answer
	}
}

// rows are messages of 100 bytes and the rest in one.
func rows(n int) []byte {
	out := make([]byte, 0, n)
	for n > 0 {
		size := 100
		if n < 2*size {
			size = n
		}
		row := make([]byte, size)
		copy(row, []byte{'D', 0, 0, 0, byte(size - 1)})
		out, n = append(out, row...), n-size
	}
	return out
}

// BenchmarkRelay exchanges requests and answers with a server directly, by TLS,
// and by the router, which has one hop more; "of-direct" is the share of the
// direct rate that is left.
func BenchmarkRelay(b *testing.B) {
	cfg := &tls.Config{Certificates: []tls.Certificate{certs().cert}, DynamicRecordSizingDisabled: true}
	for _, size := range []struct {
		name            string
		request, answer int
	}{
		{"round trips", 60, 100},
		{"rows of 64 KB", 60, 64 << 10},
		{"rows of 16 MB", 60, 16 << 20},
		{"COPY IN of 16 MB", 16 << 20, 100},
	} {
		for _, clients := range []int{1, 8} {
			b.Run(fmt.Sprintf("%s/%d clients", size.name, clients), func(b *testing.B) {
				direct := newAnswering(b, size.request, size.answer, cfg)
				behind := newAnswering(b, size.request, size.answer, nil)
				router := serve(b, Config{}, only(behind))
				run := func(addr string) time.Duration {
					return exchangeAll(b, addr, clients, size.request, size.answer)
				}
				before := run(direct.Addr().String())
				b.ResetTimer()
				d := run(router.addr)
				b.StopTimer()
				b.SetBytes(int64(size.request + size.answer))
				b.ReportMetric(before.Seconds()/d.Seconds(), "of-direct")
			})
		}
	}
}

// exchangeAll makes b.N exchanges among so many clients.
func exchangeAll(b *testing.B, addr string, clients, request, answer int) time.Duration {
	conns := make([]net.Conn, clients)
	for i := range conns {
		conns[i] = loggedIn(b, addr)
		defer conns[i].Close()
	}
	began := time.Now()
	errs := make(chan error, clients)
	for i, c := range conns {
		n := b.N / clients
		if i < b.N%clients {
			n++
		}
		go func() {
			in, out := make([]byte, answer), make([]byte, request)
			for range n {
				if _, err := c.Write(out); err != nil {
					errs <- err
					return
				}
				if _, err := io.ReadFull(c, in); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	var err error
	for range conns {
		err = errors.Join(err, <-errs)
	}
	if err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}

func loggedIn(b *testing.B, addr string) net.Conn {
	raw, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	_, _ = raw.Write(framedBytes(codeSSL, ""))
	_, _ = io.ReadFull(raw, make([]byte, 1))
	c := tls.Client(raw, &tls.Config{ServerName: known + "." + domain, InsecureSkipVerify: true, DynamicRecordSizingDisabled: true})
	_, _ = c.Write(startupBytes(3<<16, "user", "alice"))
	if _, err := io.ReadFull(c, make([]byte, 9+6)); err != nil {
		b.Fatal(err)
	}
	return c
}

// BenchmarkLogin is a whole connection: TLS, the start-up, and the end.
func BenchmarkLogin(b *testing.B) {
	router := serve(b, Config{}, only(newAnswering(b, 60, 100, nil)))
	for b.Loop() {
		loggedIn(b, router.addr).Close()
	}
}

// BenchmarkFramer is what following the messages costs.
func BenchmarkFramer(b *testing.B) {
	for _, size := range []int{20, 100, 8000} {
		b.Run(fmt.Sprintf("rows of %d bytes", size), func(b *testing.B) {
			row := make([]byte, size)
			copy(row, []byte{'D', 0, 0, byte((size - 1) >> 8), byte(size - 1)})
			var stream []byte
			for len(stream) < largeBuffer {
				stream = append(stream, row...)
			}
			b.SetBytes(int64(len(stream)))
			var f framer
			for b.Loop() {
				f.advance(stream)
			}
		})
	}
}

// BenchmarkPgbench runs pgbench's SELECT-only script through the router, directly, and
// through pgbouncer where there is one, in turns and all by TLS, at a real server.
func BenchmarkPgbench(b *testing.B) {
	server := realPostgres(b)
	router := serve(b, Config{}, only(server))
	_, port, _ := strings.Cut(router.addr, ":")
	pgbench := func(port string, args ...string) float64 {
		info := "host=" + known + "." + domain + " hostaddr=127.0.0.1 port=" + port + " dbname=postgres user=" + role + " sslmode=require"
		cmd := exec.Command("pgbench", append(args, info)...)
		cmd.Env = append(os.Environ(), "PGPASSWORD="+password, "LC_ALL=C")
		out, err := cmd.CombinedOutput()
		if err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		var tps float64
		if _, after, ok := strings.Cut(string(out), "tps = "); ok {
			_, _ = fmt.Sscanf(after, "%g", &tps)
		}
		return tps
	}
	paths := []struct{ metric, port string }{{"tps", port}, {"direct-tps", strconv.Itoa(server.port)}}
	if bouncer := server.bouncer(b); bouncer != 0 {
		paths = append(paths, struct{ metric, port string }{"pgbouncer-tps", strconv.Itoa(bouncer)})
	}
	pgbench(paths[1].port, "-i", "-s", "1", "-q")
	for _, clients := range []string{"1", "8", "64"} {
		b.Run(clients+" clients", func(b *testing.B) {
			rates := map[string]float64{}
			for turn := 0; b.Loop(); turn++ {
				for i := range paths { // each is the first in turn
					path := paths[(turn+i)%len(paths)]
					rates[path.metric] += pgbench(path.port, "-n", "-S", "-M", "prepared", "-T", "2", "-c", clients, "-j", "2")
				}
			}
			for _, path := range paths {
				b.ReportMetric(rates[path.metric]/float64(b.N), path.metric)
			}
		})
	}
}

// bouncer runs pgbouncer before the server, and returns its port; 0 where there is none.
func (p *postgres) bouncer(b *testing.B) int {
	b.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		if program, err = filepath.Abs("../../.tools/bin/pgbouncer"); err != nil {
			b.Fatal(err)
		}
		if _, err := os.Stat(program); err != nil {
			b.Log("no pgbouncer: scripts/install-deps bench")
			return 0
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	for name, content := range map[string]string{
		"pgbouncer.ini": fmt.Sprintf(`[databases]
postgres = host=127.0.0.1 port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = scram-sha-256
auth_file = %s
pool_mode = session
default_pool_size = 100
max_client_conn = 200
client_tls_sslmode = require
client_tls_cert_file = %s
client_tls_key_file = %s
server_tls_sslmode = disable
logfile = %s
`, p.port, port, p.file("users"), p.file("server.crt"), p.file("server.key"), p.file("pgbouncer.log")),
		"users": strconv.Quote(role) + " " + strconv.Quote(password) + "\n",
	} {
		if err := os.WriteFile(p.file(name), []byte(content), 0o600); err != nil {
			b.Fatal(err)
		}
		if os.Geteuid() == 0 {
			if err := os.Chown(p.file(name), nobody, nobody); err != nil {
				b.Fatal(err)
			}
		}
	}
	// .tools may be in a home that the server's user may not enter.
	copied, err := os.ReadFile(program)
	if err == nil {
		err = os.WriteFile(p.file("pgbouncer"), copied, 0o755)
	}
	if err != nil {
		b.Fatal(err)
	}
	cmd := p.command("", "-q", p.file("pgbouncer.ini"))
	cmd.Path = p.file("pgbouncer")
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // its status is that of a kill
	})
	return port
}
