package pgsni

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener whose clients are in memory, so that time is the test's.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

func (p *pipes) dial() net.Conn {
	near, far := net.Pipe()
	p.conns <- far
	return near
}

// inMemory runs a test against a router whose time is the test's.
func inMemory(t *testing.T, cfg Config, resolver Resolver, test func(t *testing.T, p *pipes)) {
	certs() // made in real time
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		cfg.Domain = domain
		cfg.TLS = &tls.Config{Certificates: []tls.Certificate{certs().cert}, Time: func() time.Time { return certs().cert.Leaf.NotBefore }}
		router, err := New(cfg, resolver)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- router.Serve(ctx, p) }()
		test(t, p)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// lasts reads until the other side closes, and says how long that took.
func lasts(c net.Conn) time.Duration {
	began := time.Now()
	_, _ = io.Copy(io.Discard, c)
	return time.Since(began)
}

func TestAClientThatSaysNothingHasTenSeconds(t *testing.T) {
	inMemory(t, Config{}, never(t), func(t *testing.T, p *pipes) {
		if d := lasts(p.dial()); d != DefaultHandshakeTimeout {
			t.Errorf("closed after %v", d)
		}
	})
}

func TestAByteASecondDoesNotExtendTheHandshake(t *testing.T) {
	sslRequest := framedBytes(codeSSL, "")
	for name, prepare := range map[string]func(c net.Conn) (io.Writer, []byte){
		"in the first packet": func(c net.Conn) (io.Writer, []byte) {
			return c, startupBytes(3<<16, "user", "alice", "options", string(make([]byte, 100)))
		},
		"in TLS": func(c net.Conn) (io.Writer, []byte) {
			_, _ = c.Write(sslRequest)
			_, _ = io.ReadFull(c, make([]byte, 1))
			return c, append([]byte{0x16, 3, 1, 1, 0, 1, 0, 0, 0xfc}, make([]byte, 300)...)
		},
		"in the start-up": func(c net.Conn) (io.Writer, []byte) {
			_, _ = c.Write(sslRequest)
			_, _ = io.ReadFull(c, make([]byte, 1))
			s := tls.Client(c, &tls.Config{ServerName: known + "." + domain, InsecureSkipVerify: true})
			if err := s.Handshake(); err != nil {
				panic(err)
			}
			return s, startupBytes(3<<16, "user", "alice", "options", "x", "application_name", "a long one, to have enough")
		},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, Config{}, never(t), func(t *testing.T, p *pipes) {
				began := time.Now()
				c := p.dial()
				to, what := prepare(c)
				tick := time.NewTicker(time.Second)
				defer tick.Stop()
				for _, b := range what {
					if _, err := to.Write([]byte{b}); err != nil {
						break
					}
					<-tick.C
				}
				if d := time.Since(began); d > DefaultHandshakeTimeout+time.Second {
					t.Errorf("still there after %v", d)
				}
				c.Close()
			})
		})
	}
}

func TestAPlayedLoginIsBounded(t *testing.T) {
	inMemory(t, Config{}, resolverFunc(func(context.Context, string) (Backend, error) { return nil, ErrUnknown }), func(t *testing.T, p *pipes) {
		c := p.dial()
		_, _ = c.Write(framedBytes(codeSSL, ""))
		_, _ = io.ReadFull(c, make([]byte, 1))
		s := tls.Client(c, &tls.Config{ServerName: known + "." + domain, InsecureSkipVerify: true})
		if err := s.Handshake(); err != nil {
			t.Fatal(err)
		}
		_, _ = s.Write(startupBytes(3<<16, "user", "alice"))
		if d := lasts(s); d != DefaultAuthTimeout {
			t.Errorf("closed after %v", d)
		}
		c.Close()
	})
}

func TestAWaitIsBoundedByItsSetting(t *testing.T) {
	waits := resolverFunc(func(ctx context.Context, _ string) (Backend, error) {
		<-ctx.Done()
		return nil, errors.New("not awake")
	})
	inMemory(t, Config{WaitTimeout: time.Hour}, waits, func(t *testing.T, p *pipes) {
		c := p.dial()
		_, _ = c.Write(framedBytes(codeSSL, ""))
		_, _ = io.ReadFull(c, make([]byte, 1))
		s := tls.Client(c, &tls.Config{ServerName: known + "." + domain, InsecureSkipVerify: true})
		if err := s.Handshake(); err != nil {
			t.Fatal(err)
		}
		_, _ = s.Write(startupBytes(3<<16, "user", "alice"))
		if d := lasts(s); d != time.Hour {
			t.Errorf("closed after %v", d)
		}
		c.Close()
	})
}
