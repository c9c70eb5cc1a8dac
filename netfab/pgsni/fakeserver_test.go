package pgsni

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// fakeServer is a Backend that trusts everybody and answers each query with its
// text, as a command tag.
type fakeServer struct {
	t      testing.TB
	key    CancelKey
	before []pgproto3.BackendMessage // said before AuthenticationOk

	mu       sync.Mutex
	startups [][]byte
	cancels  []CancelKey
	dials    int
	running  sync.WaitGroup
}

func newFakeServer(t testing.TB) *fakeServer {
	s := &fakeServer{t: t, key: CancelKey{PID: 4242, Secret: []byte{1, 2, 3, 4}}}
	t.Cleanup(s.running.Wait)
	return s
}

// Dial makes a connection over the loopback, for its half-close.
func (s *fakeServer) Dial(context.Context) (net.Conn, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	far, err := l.Accept()
	if err != nil {
		near.Close()
		return nil, err
	}
	s.serve(far)
	return near, nil
}

func (s *fakeServer) serve(far net.Conn) {
	s.mu.Lock()
	s.dials++
	s.mu.Unlock()
	s.running.Go(func() {
		defer far.Close()
		s.session(far)
	})
}

func (s *fakeServer) session(far net.Conn) {
	p, err := readPacket(far)
	if err != nil {
		return
	}
	if p.code == codeCancel {
		key, err := p.cancelKey()
		if err != nil {
			s.t.Error(err)
		}
		s.mu.Lock()
		s.cancels = append(s.cancels, key)
		s.mu.Unlock()
		return
	}
	s.mu.Lock()
	s.startups = append(s.startups, p.raw)
	s.mu.Unlock()
	b := pgproto3.NewBackend(far, far)
	for _, m := range s.before {
		b.Send(m)
	}
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: "16.4"})
	b.Send(&pgproto3.BackendKeyData{ProcessID: s.key.PID, SecretKey: s.key.Secret})
	b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	for b.Flush() == nil {
		m, err := b.Receive()
		if err != nil {
			return
		}
		q, ok := m.(*pgproto3.Query)
		if !ok {
			return
		}
		b.Send(&pgproto3.CommandComplete{CommandTag: []byte(q.String)})
		b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	}
}

// lastStartup is the last StartupMessage that came.
func (s *fakeServer) lastStartup() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.startups) == 0 {
		return nil
	}
	return s.startups[len(s.startups)-1]
}

func (s *fakeServer) seenCancels() []CancelKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]CancelKey(nil), s.cancels...)
}

// ready reads a fake server's login, and returns the key that came with it.
func (c *client) ready() CancelKey {
	c.t.Helper()
	receive[*pgproto3.AuthenticationOk](c)
	receive[*pgproto3.ParameterStatus](c)
	k := receive[*pgproto3.BackendKeyData](c)
	key := CancelKey{PID: k.ProcessID, Secret: append([]byte(nil), k.SecretKey...)}
	receive[*pgproto3.ReadyForQuery](c)
	return key
}

// query asks something, and checks the answer.
func (c *client) query(text string) {
	c.t.Helper()
	c.message(&pgproto3.Query{String: text})
	if tag := string(receive[*pgproto3.CommandComplete](c).CommandTag); tag != text {
		c.t.Fatalf("%q answered %q", text, tag)
	}
	receive[*pgproto3.ReadyForQuery](c)
}
