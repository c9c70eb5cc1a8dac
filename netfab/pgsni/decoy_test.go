package pgsni

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
)

func TestAnUnknownNameIsAskedForAPassword(t *testing.T) {
	router := serve(t, Config{DecoySecret: []byte("of all routers")}, only(nil))
	salt := func() string {
		c := router.open(t, "nothing-here")
		if m := receive[*pgproto3.AuthenticationSASL](c).AuthMechanisms; !slices.Equal(m, []string{"SCRAM-SHA-256"}) {
			t.Errorf("offered %v", m)
		}
		c.message(&pgproto3.SASLInitialResponse{AuthMechanism: "SCRAM-SHA-256", Data: []byte("n,,n=,r=nonce")})
		reply := strings.Split(string(receive[*pgproto3.AuthenticationSASLContinue](c).Data), ",")
		c.message(&pgproto3.SASLResponse{Data: []byte("c=biws," + reply[0] + ",p=" + strings.Repeat("A", 43) + "=")})
		if e := c.refused("28P01"); e.Message != `password authentication failed for user "alice"` {
			t.Errorf("%+v", e)
		}
		return reply[1] + reply[2]
	}
	if a, b := salt(), salt(); a != b || !strings.HasSuffix(a, "i=4096") || len(a) != len("s=i=4096")+24 {
		t.Errorf("%s, then %s", a, b)
	}
}

func TestADecoyNegotiatesTheProtocolAsAServerDoes(t *testing.T) {
	router := serve(t, Config{}, only(nil))
	c := router.dial(t)
	c.encrypt("nothing-here." + domain)
	c.write(startupBytes(3<<16|2, "user", "alice", "_pq_.x", "1"))
	if v := receive[*pgproto3.NegotiateProtocolVersion](c); v.NewestMinorProtocol != 3<<16 || !slices.Equal(v.UnrecognizedOptions, []string{"_pq_.x"}) {
		t.Errorf("%+v", v)
	}
	receive[*pgproto3.AuthenticationSASL](c)
}

func TestADecoyTakesLoginsThatGoWrong(t *testing.T) {
	initial := func(body string) []byte {
		return append([]byte{'p', 0, 0, 0, byte(len(body) + 4)}, body...)
	}
	for name, test := range map[string]struct {
		message []byte
		code    string
	}{
		"another message":    {[]byte("Q\x00\x00\x00\x06x\x00"), "08P01"},
		"no mechanism":       {initial(""), "08P01"},
		"a cut length":       {initial("SCRAM-SHA-256\x00\x00\x00"), "08P01"},
		"a length too long":  {initial("SCRAM-SHA-256\x00\x00\x00\x00\x09n,,"), "08P01"},
		"PLUS, not offered":  {initial("SCRAM-SHA-256-PLUS\x00\x00\x00\x00\x0dn,,n=,r=nonce"), "08P01"},
		"a password instead": {initial("secret\x00"), "08P01"},
	} {
		t.Run(name, func(t *testing.T) {
			router := serve(t, Config{}, only(nil))
			c := router.open(t, "nothing-here")
			receive[*pgproto3.AuthenticationSASL](c)
			c.write(test.message)
			c.refused(test.code)
		})
	}
	t.Run("a message too long", func(t *testing.T) {
		router := serve(t, Config{}, only(nil))
		c := router.open(t, "nothing-here")
		receive[*pgproto3.AuthenticationSASL](c)
		c.write([]byte{'p', 0x7f, 0xff, 0xff, 0xff})
		c.ended()
	})
	t.Run("without an initial response", func(t *testing.T) {
		router := serve(t, Config{}, only(nil))
		c := router.open(t, "nothing-here")
		receive[*pgproto3.AuthenticationSASL](c)
		c.write(initial("SCRAM-SHA-256\x00\xff\xff\xff\xff"))
		if m := receive[*pgproto3.AuthenticationSASLContinue](c); len(m.Data) != 0 {
			t.Errorf("%q", m.Data)
		}
		c.message(&pgproto3.SASLResponse{Data: []byte("n,,n=,r=nonce")})
		receive[*pgproto3.AuthenticationSASLContinue](c)
	})
}

func TestAPaceIsOneOfTheLast(t *testing.T) {
	var p pace
	if p.draw() != 0 {
		t.Error("a pace out of nothing")
	}
	p.note(2 * longestPace) // a wake
	if p.draw() != 0 {
		t.Error("a wake counts")
	}
	for i := range 3 * remembered {
		p.note(time.Duration(i) * time.Millisecond)
	}
	for range 1000 {
		if d := p.draw(); d < 2*remembered*time.Millisecond {
			t.Fatalf("%v was forgotten long ago", d)
		}
	}
}

// BenchmarkUnknownName reports what a log-in with an unknown name takes, as a ratio to one
// with a wrong password, at a server that takes its time. It should be near 1: a name that
// does not exist must not answer at once. The ratio is of two medians.
//
//	go test ./netfab/pgsni -run xxx -bench UnknownName -benchtime 100x
func BenchmarkUnknownName(b *testing.B) {
	router := serve(b, Config{}, only(realPostgres(b)))
	cfg := map[string]*pgx.ConnConfig{}
	for _, name := range []string{known, "nothing-here"} {
		cfg[name] = pgxConfig(b, router, name, "sslmode=require")
		cfg[name].Password = "wrong"
	}
	took := map[string][]time.Duration{}
	for b.Loop() {
		for name, cfg := range cfg {
			began := time.Now()
			if _, err := pgx.ConnectConfig(b.Context(), cfg); err == nil {
				b.Fatal("logged in")
			}
			took[name] = append(took[name], time.Since(began))
		}
	}
	median := func(d []time.Duration) time.Duration { slices.Sort(d); return d[len(d)/2] }
	b.ReportMetric(float64(median(took["nothing-here"]))/float64(median(took[known])), "unknown/wrong")
}

func TestARhythmMakesUpForWhatItOwes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		until := make(chan struct{})
		var first, later pace
		first.note(10 * time.Millisecond)
		later.note(3 * time.Millisecond)
		r := &rhythm{until: until, first: &first, later: &later}
		began := time.Now()
		for i, want := range []time.Duration{8 * time.Millisecond, 11 * time.Millisecond, 14 * time.Millisecond} {
			r.answer([]time.Duration{2 * time.Millisecond, 0, 0}[i])
			if d := time.Since(began); d != want-timerLate {
				t.Errorf("answer %d after %v, not %v", i, d, want-timerLate)
			}
		}
		(&rhythm{}).answer(0)
		first.note(time.Second)
		close(until)
		before := time.Now()
		(&rhythm{until: until, first: &first, later: &first}).answer(0)
		if d := time.Since(before); d > 10*time.Millisecond {
			t.Errorf("paused for %v at the router's end", d)
		}
	})
}
