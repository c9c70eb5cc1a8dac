package pgsni

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/berth-cloud/berth/telemetry"
)

// recorded has spans recorded until the test ends.
func recorded(t *testing.T) *tracetest.SpanRecorder {
	t.Helper()
	r := tracetest.NewSpanRecorder()
	telemetry.Use(sdk.NewTracerProvider(sdk.WithSpanProcessor(r)))
	t.Cleanup(func() { telemetry.Use(nil) })
	return r
}

// logins waits for so many spans of logins, and returns what is said of them. There are
// no others.
func logins(t *testing.T, r *tracetest.SpanRecorder, n int) []string {
	t.Helper()
	eventually(t, "the spans end", func() bool { return len(r.Ended()) >= n })
	var out []string
	for _, s := range r.Ended() {
		words := []string{s.Name(), s.Status().Code.String()}
		for _, a := range s.Attributes() {
			words = append(words, a.Value.String())
		}
		out = append(out, strings.Join(words, " "))
	}
	return out
}

func TestALoginIsOneSpan(t *testing.T) {
	var inDial, inResolve string
	server := newFakeServer(t)
	backend := dialFunc(func(ctx context.Context) (net.Conn, error) {
		inDial = telemetry.Parent(ctx)
		return server.Dial(ctx)
	})
	resolver := resolverFunc(func(ctx context.Context, _ string) (Backend, error) {
		inResolve = telemetry.Parent(ctx)
		return backend, nil
	})
	r := recorded(t)
	router := serve(t, Config{}, resolver)
	c := router.open(t, known)
	key := c.ready()
	if got := logins(t, r, 1); len(got) != 1 || got[0] != "pg.login Unset ok" {
		t.Errorf("%q", got)
	}
	span := r.Ended()[0]
	if id := span.SpanContext().SpanID().String(); !strings.Contains(inDial, id) || inDial != inResolve || span.Parent().IsValid() {
		t.Errorf("the login is %s below %s, it is resolved in %s and dialled in %s", id, span.Parent().SpanID(), inResolve, inDial)
	}
	for range 3 {
		c.query("SELECT 1")
	}
	cancel := router.dial(t) // is no login
	cancel.message(&pgproto3.CancelRequest{ProcessID: key.PID, SecretKey: key.Secret})
	cancel.ended()
	c.message(&pgproto3.Terminate{})
	c.Close()
	eventually(t, "the session ends", func() bool { return router.Stats().Sessions == 0 })
	if got := logins(t, r, 1); len(got) != 1 {
		t.Errorf("%q", got)
	}
}

func TestALoginsSpanTellsItsOutcome(t *testing.T) {
	for name, test := range map[string]struct {
		resolver Resolver
		does     func(c *client)
		want     string
	}{
		"an unreachable database": {
			only(dialFunc(func(context.Context) (net.Conn, error) { return nil, errors.New("no route") })),
			func(c *client) { c.start(); c.refused("57P03") }, "pg.login Error refused 57P03",
		},
		"a refusal of the resolver": {
			resolverFunc(func(context.Context, string) (Backend, error) { return nil, &Refusal{Code: "bad code", Message: "x"} }),
			func(c *client) { c.start(); c.refused("bad code") }, "pg.login Unset refused other",
		},
		"no user": {
			never(t), func(c *client) { c.start("user", ""); c.refused("28000") }, "pg.login Unset refused 28000",
		},
		"a client that leaves": {
			asleep(t), func(c *client) { c.start(); c.Close() }, "pg.login Unset broken_off",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := recorded(t)
			c := serve(t, Config{}, test.resolver).dial(t)
			c.encrypt(known + "." + domain)
			test.does(c)
			if got := logins(t, r, 1); len(got) != 1 || got[0] != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

// Strangers connect all day long.
func TestWhatIsNoLoginHasNoSpan(t *testing.T) {
	r := recorded(t)
	router := serve(t, Config{}, never(t))
	plain := router.dial(t)
	plain.start()
	plain.refused("28000")
	foreign := router.dial(t)
	foreign.encrypt("www.example.org")
	foreign.start()
	foreign.refused("08004")
	if n := len(r.Started()); n > 0 {
		t.Errorf("%d spans", n)
	}
}

// No span has what a client says of itself, nor the name of what does not exist.
func TestALoginsSpanNamesNobody(t *testing.T) {
	r := recorded(t)
	router := serve(t, Config{}, only(newFakeServer(t)))
	c := router.open(t, "another-name")
	receive[*pgproto3.AuthenticationSASL](c)
	c.Close()
	got := strings.Join(logins(t, r, 1), "\n")
	if got != "pg.login Unset broken_off" {
		t.Errorf("%q", got)
	}
}
