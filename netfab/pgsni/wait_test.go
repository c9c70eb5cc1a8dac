package pgsni

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// sleeping is a Resolver whose one database wakes when it is told.
type sleeping struct {
	Backend
	awake chan struct{}
	asked atomic.Int32
	left  atomic.Int32 // waits that ended before the wake
}

func (s *sleeping) Resolve(ctx context.Context, _ string) (Backend, error) {
	s.asked.Add(1)
	select {
	case <-s.awake:
		return s.Backend, nil
	case <-ctx.Done():
		s.left.Add(1)
		return nil, context.Cause(ctx)
	}
}

func asleep(t *testing.T) *sleeping {
	return &sleeping{Backend: newFakeServer(t), awake: make(chan struct{})}
}

func TestAClientIsHeldUntilItsDatabaseIsAwake(t *testing.T) {
	s := asleep(t)
	router := serve(t, Config{}, s)
	c := router.open(t, known)
	eventually(t, "the name is asked for", func() bool { return s.asked.Load() == 1 })
	if n := router.Stats(); n.Unauthenticated != 1 || n.Sessions != 0 {
		t.Errorf("%+v", n)
	}
	close(s.awake)
	c.ready()
	c.query("SELECT 1")
	if n := router.Stats(); n.Unauthenticated != 0 || n.Sessions != 1 {
		t.Errorf("%+v", n)
	}
}

func TestAClientThatGoesAwayEndsItsOwnWaitAlone(t *testing.T) {
	s := asleep(t)
	router := serve(t, Config{}, s)
	stays := router.open(t, known)
	for name, leave := range map[string]func(c *client){
		"in order":    func(c *client) { c.Close() },
		"with a word": func(c *client) { c.message(&pgproto3.Terminate{}); c.Close() },
		"by a reset": func(c *client) {
			raw := c.Conn.(interface{ NetConn() net.Conn }).NetConn().(*net.TCPConn)
			_ = raw.SetLinger(0)
			raw.Close()
		},
	} {
		asked, left := s.asked.Load(), s.left.Load()
		c := router.open(t, known)
		eventually(t, "the name is asked for", func() bool { return s.asked.Load() > asked })
		leave(c)
		eventually(t, name+": the wait ended", func() bool { return s.left.Load() == left+1 })
	}
	close(s.awake)
	stays.ready()
}

func TestWhatAClientSaysWhileItWaitsIsKept(t *testing.T) {
	s := asleep(t)
	router := serve(t, Config{}, s)
	c := router.open(t, known)
	eventually(t, "the name is asked for", func() bool { return s.asked.Load() == 1 })
	go func() {
		c.write([]byte("Q\x00\x00\x00\x0dSELECT 1\x00"))
		close(s.awake)
	}()
	c.ready()
	c.query("SELECT 1")
}

func TestMoreThanAWaitKeepsIsReadLater(t *testing.T) {
	s := asleep(t)
	router := serve(t, Config{}, s)
	c := router.open(t, known)
	text := strings.Repeat("x", 3*maxEarly)
	go func() {
		c.message(&pgproto3.Query{String: text})
		close(s.awake)
	}()
	c.ready()
	if tag := string(receive[*pgproto3.CommandComplete](c).CommandTag); tag != text {
		t.Errorf("answered with %d bytes", len(tag))
	}
}

func TestWhatTheResolverAnswersReachesTheClient(t *testing.T) {
	for name, test := range map[string]struct {
		err           error
		code, message string
	}{
		"a refusal":    {&Refusal{Code: "53000", Message: "no host has room", Hint: "Try again."}, "53000", "no host has room"},
		"a failure":    {errors.New("dial 10.0.0.7: secret detail"), "57P03", messageUnavailable},
		"its own wait": {context.DeadlineExceeded, "57P03", messageUnavailable},
	} {
		t.Run("resolve: "+name, func(t *testing.T) {
			router := serve(t, Config{}, resolverFunc(func(context.Context, string) (Backend, error) { return nil, test.err }))
			if e := router.open(t, known).refused(test.code); e.Message != test.message {
				t.Errorf("%+v", e)
			}
		})
		t.Run("dial: "+name, func(t *testing.T) {
			router := serve(t, Config{}, only(dialFunc(func(context.Context) (net.Conn, error) { return nil, test.err })))
			if e := router.open(t, known).refused(test.code); e.Message != test.message {
				t.Errorf("%+v", e)
			}
		})
	}
}

func TestTheWaitIsBounded(t *testing.T) {
	router := serve(t, Config{WaitTimeout: 50 * time.Millisecond}, asleep(t))
	if e := router.open(t, known).refused("57P03"); e.Message != messageWaitTimeout {
		t.Errorf("%+v", e)
	}
}

func TestAServerThatClosesAtOnceIsUnavailable(t *testing.T) {
	router := serve(t, Config{}, only(dialFunc(func(context.Context) (net.Conn, error) {
		near, far := net.Pipe()
		go func() { _, _ = readPacket(far); far.Close() }()
		return near, nil
	})))
	router.open(t, known).refused("57P03")
}

func TestAServerThatSaysNothingIsGivenUp(t *testing.T) {
	router := serve(t, Config{AuthTimeout: 50 * time.Millisecond}, only(dialFunc(func(context.Context) (net.Conn, error) {
		near, far := net.Pipe()
		go func() { _, _ = readPacket(far); _, _ = far.Read(make([]byte, 1)); far.Close() }()
		return near, nil
	})))
	router.open(t, known).refused("57014")
}

func TestAServerThatResetsIsUnavailable(t *testing.T) {
	b := newLoopback(t)
	router := serve(t, Config{}, only(b))
	c := router.open(t, known)
	server, err := b.l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = server.(*net.TCPConn).SetLinger(0)
	server.Close()
	c.refused("57P03")
}

func TestAServerThatReadsNothingIsGivenUp(t *testing.T) {
	router := serve(t, Config{AuthTimeout: 50 * time.Millisecond}, only(dialFunc(func(context.Context) (net.Conn, error) {
		near, far := net.Pipe()
		t.Cleanup(func() { far.Close() })
		return near, nil
	})))
	router.open(t, known).refused("57P03")
}

// A server that speaks another protocol, or lies about its lengths, breaks its
// own session and nothing else.
func TestAServerThatSpeaksNonsense(t *testing.T) {
	for _, nonsense := range []string{"HTTP/1.1 400 Bad Request\r\n\r\n", "R\xff\xff\xff\xff", "R\x00\x00\x00\x03", "E\x00\x00\x00\x09Sxxxx", "K\x00\x00\x00\x04", strings.Repeat("\x00", 100)} {
		router := serve(t, Config{}, only(dialFunc(func(context.Context) (net.Conn, error) {
			near, far := net.Pipe()
			go func() { _, _ = readPacket(far); _, _ = far.Write([]byte(nonsense)); far.Close() }()
			return near, nil
		})))
		router.open(t, known).ended()
		eventually(t, "nothing is left", func() bool { return router.Stats() == Stats{} })
	}
}
