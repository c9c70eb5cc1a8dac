package pgsni

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5/pgproto3"
)

// loopback is a Backend whose other side a test holds.
type loopback struct {
	l net.Listener
}

func newLoopback(t *testing.T) *loopback {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return &loopback{l}
}

func (b *loopback) Dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", b.l.Addr().String())
}

// accept takes the router's connection and logs its client in.
func (b *loopback) accept(t *testing.T) *net.TCPConn {
	t.Helper()
	server, err := b.l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	if _, err := readPacket(server); err != nil {
		t.Fatal(err)
	}
	out, err := encode[pgproto3.BackendMessage](&pgproto3.AuthenticationOk{}, &pgproto3.ReadyForQuery{TxStatus: 'I'})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.Write(out); err != nil {
		t.Fatal(err)
	}
	return server.(*net.TCPConn)
}

// refuse takes the router's connection, logs its client in and then ends it.
func (b *loopback) refuse(t *testing.T) {
	t.Helper()
	server, err := b.l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if _, err := readPacket(server); err != nil {
		t.Fatal(err)
	}
	out, err := encode[pgproto3.BackendMessage](&pgproto3.AuthenticationOk{}, &pgproto3.ErrorResponse{
		Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "3D000", Message: "no such database", File: "postinit.c", Line: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.Write(out); err != nil {
		t.Fatal(err)
	}
}

// session is a client, logged in, and its server's side.
func (b *loopback) session(t *testing.T, router *serving) (*client, *net.TCPConn) {
	t.Helper()
	c := router.open(t, known)
	server := b.accept(t)
	receive[*pgproto3.AuthenticationOk](c)
	receive[*pgproto3.ReadyForQuery](c)
	return c, server
}

func TestTheRelayChangesNoByte(t *testing.T) {
	b := newLoopback(t)
	c, server := b.session(t, serve(t, Config{}, only(b)))
	const size = 20 << 20
	up, down := make([]byte, size), make([]byte, size)
	_, _ = rand.Read(up)
	_, _ = rand.Read(down)
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = c.Conn.Write(up) })
	wg.Go(func() { _, _ = server.Write(down) })
	for name, side := range map[string]struct {
		from io.Reader
		want []byte
	}{"up": {server, up}, "down": {c.Conn, down}} {
		wg.Go(func() {
			got := make([]byte, size)
			if _, err := io.ReadFull(side.from, got); err != nil || !bytes.Equal(got, side.want) {
				t.Errorf("%s: another %d bytes, %v", name, size, err)
			}
		})
	}
	wg.Wait()
}

func TestTheClientsEndReachesTheServer(t *testing.T) {
	b := newLoopback(t)
	router := serve(t, Config{}, only(b))
	c, server := b.session(t, router)
	c.write([]byte("last words"))
	_ = c.Conn.(interface{ CloseWrite() error }).CloseWrite()
	if got, err := io.ReadAll(server); string(got) != "last words" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	// The other half is still open.
	if _, err := server.Write([]byte("an answer")); err != nil {
		t.Fatal(err)
	}
	server.Close()
	if got, err := io.ReadAll(c.Conn); string(got) != "an answer" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestTheServersLastWordReachesAClientThatIsWriting(t *testing.T) {
	b := newLoopback(t)
	c, server := b.session(t, serve(t, Config{}, only(b)))
	go func() {
		for err := error(nil); err == nil; {
			_, err = c.Conn.Write(make([]byte, 1000))
		}
	}()
	last := []byte("E\x00\x00\x00\x08last")
	if _, err := server.Write(last); err != nil {
		t.Fatal(err)
	}
	server.Close() // with the client's bytes unread: a reset on that side
	if got, _ := io.ReadAll(io.LimitReader(c.Conn, int64(len(last)))); !bytes.Equal(got, last) {
		t.Errorf("%q", got)
	}
}

// A Backend without a half-close is closed whole.
func TestTheClientsEndAtABackendWithoutHalfClose(t *testing.T) {
	started, ended := make(chan struct{}), make(chan error, 1)
	router := serve(t, Config{}, only(dialFunc(func(context.Context) (net.Conn, error) {
		near, far := net.Pipe()
		go func() {
			_, _ = readPacket(far)
			close(started)
			_, err := io.Copy(io.Discard, far)
			ended <- err
		}()
		return near, nil
	})))
	c := router.open(t, known)
	<-started
	c.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestTheObserverIsTold(t *testing.T) {
	var mu sync.Mutex
	var opened, closed []Session
	var traffic Traffic
	var refused []string
	observe := Observe{
		Opened:  func(s Session) { mu.Lock(); defer mu.Unlock(); opened = append(opened, s) },
		Closed:  func(s Session, n Traffic) { mu.Lock(); defer mu.Unlock(); closed = append(closed, s); traffic = n },
		Refused: func(code string) { mu.Lock(); defer mu.Unlock(); refused = append(refused, code) },
	}
	server, late := newFakeServer(t), newLoopback(t)
	router := serve(t, Config{Observe: observe}, resolverFunc(func(_ context.Context, name string) (Backend, error) {
		if name == known {
			return server, nil
		}
		return late, nil
	}))
	c := router.open(t, known)
	c.ready()
	c.query("SELECT 1")
	plain := router.dial(t)
	plain.start()
	plain.refused("28000")
	noDatabase := router.open(t, "other")
	late.refuse(t)
	receive[*pgproto3.AuthenticationOk](noDatabase)
	if e := receive[*pgproto3.ErrorResponse](noDatabase); e.File == "" {
		t.Errorf("after the login the server's words are not the router's to change: %+v", e)
	}
	noDatabase.Close()
	eventually(t, "the second refusal is told", func() bool { mu.Lock(); defer mu.Unlock(); return len(refused) == 2 })
	c.Close()
	eventually(t, "the end is told", func() bool { mu.Lock(); defer mu.Unlock(); return len(closed) == 1 })
	mu.Lock()
	defer mu.Unlock()
	want := []Session{{Name: known, User: "alice"}}
	if diff := cmp.Diff(want, opened, cmpopts.IgnoreFields(Session{}, "Client", "Opened", "Login")); diff != "" {
		t.Error(diff)
	}
	if len(closed) != 1 || closed[0] != opened[0] || !closed[0].Client.IsValid() || closed[0].Opened.IsZero() || closed[0].Login <= 0 {
		t.Errorf("opened %+v, closed %+v", opened, closed)
	}
	if !cmp.Equal(refused, []string{"28000", "3D000"}) {
		t.Errorf("refused %q", refused)
	}
	startup := len(startupBytes(3<<16, "user", "alice", "database", "app"))
	login := 9 + (5 + len("server_version") + len("16.4") + 2) + 13 + 6
	query := 5 + len("SELECT 1") + 1
	if traffic != (Traffic{FromClient: int64(startup + query), ToClient: int64(login + query + 6)}) {
		t.Errorf("%+v", traffic)
	}
}
