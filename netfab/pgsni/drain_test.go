package pgsni

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// drain drains a router in the background, with a time.
func drain(router *serving, timeout time.Duration) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		router.Drain(ctx)
	}()
	return done
}

func draining(t *testing.T, router *serving) {
	eventually(t, "the router drains", func() bool { return router.Router.open.Err() != nil })
}

func TestDrainLetsSessionsEnd(t *testing.T) {
	server := newFakeServer(t)
	router := serve(t, Config{}, only(server))
	c := router.open(t, known)
	key := c.ready()
	inHandshake := router.dial(t)
	inHandshake.encrypt(known + "." + domain)
	done := drain(router, time.Hour)
	draining(t, router)

	eventually(t, "the listener is closed", func() bool {
		late, err := net.Dial("tcp", router.addr)
		if err == nil {
			late.Close()
		}
		return err != nil
	})
	inHandshake.start()
	inHandshake.refused("57P03")
	c.query("COMMIT")
	if !router.Cancel(t.Context(), key) || len(server.seenCancels()) != 1 {
		t.Error("a session that is left cannot cancel")
	}
	c.message(&pgproto3.Terminate{})
	c.ended()
	c.Close()
	<-done
}

func TestDrainRefusesThoseThatWait(t *testing.T) {
	s := asleep(t)
	router := serve(t, Config{}, s)
	c := router.open(t, known)
	eventually(t, "the name is asked for", func() bool { return s.asked.Load() == 1 })
	done := drain(router, time.Hour)
	c.refused("57P03")
	c.Close()
	<-done
}

func TestTheEndOfDrainSaysWhyAtTheEndOfAMessage(t *testing.T) {
	router := serve(t, Config{}, only(newFakeServer(t)))
	c := router.open(t, known)
	c.ready()
	c.query("SELECT 1")
	silent := router.dial(t)
	done := drain(router, 10*time.Millisecond)
	c.refused("57P01")
	silent.ended()
	c.Close()
	<-done
	if n := router.Stats(); n != (Stats{}) {
		t.Errorf("%+v", n)
	}
}

func TestTheEndOfDrainCutsAMessage(t *testing.T) {
	far := make(chan net.Conn, 1)
	router := serve(t, Config{}, only(dialFunc(func(context.Context) (net.Conn, error) {
		near, other := net.Pipe()
		far <- other
		return near, nil
	})))
	c := router.open(t, known)
	server := <-far
	defer server.Close()
	if _, err := readPacket(server); err != nil {
		t.Fatal(err)
	}
	out, err := encode[pgproto3.BackendMessage](&pgproto3.AuthenticationOk{}, &pgproto3.ReadyForQuery{TxStatus: 'I'})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.Write(append(out, 'D', 0, 0, 1, 0, 'x')); err != nil { // a row of which more would come
		t.Fatal(err)
	}
	receive[*pgproto3.AuthenticationOk](c)
	receive[*pgproto3.ReadyForQuery](c)
	begun := make([]byte, 6)
	if _, err := c.Conn.Read(begun[:1]); err != nil {
		t.Fatal(err)
	}
	done := drain(router, 0)
	var rest int
	for {
		n, err := c.Conn.Read(begun)
		if rest += n; err != nil {
			break
		}
	}
	if rest != 5 {
		t.Errorf("%d bytes after the message's first", rest)
	}
	c.Close()
	<-done
}

func TestDrainOfAClientThatReadsNothing(t *testing.T) {
	var written atomic.Int64
	ended := make(chan struct{})
	router := serve(t, Config{}, only(dialFunc(func(context.Context) (net.Conn, error) {
		near, far := net.Pipe()
		go func() {
			defer close(ended)
			defer far.Close()
			_, _ = readPacket(far)
			out, _ := encode[pgproto3.BackendMessage](&pgproto3.AuthenticationOk{}, &pgproto3.ReadyForQuery{TxStatus: 'I'})
			row, _ := (&pgproto3.DataRow{Values: [][]byte{make([]byte, 64<<10)}}).Encode(nil)
			for err := error(nil); err == nil; out = row {
				written.Add(int64(len(out)))
				_, err = far.Write(out)
			}
		}()
		return near, nil
	})))
	router.open(t, known)
	eventually(t, "the server can write no more", func() bool {
		before := written.Load()
		<-time.After(20 * time.Millisecond)
		return before > 1<<20 && written.Load() == before
	})
	<-drain(router, 0)
	<-ended
}

func TestTheEndOfServesContextCutsAll(t *testing.T) {
	router := serve(t, Config{}, only(newFakeServer(t)))
	c := router.open(t, known)
	c.ready()
	router.cancel()
	c.refused("57P01")
}

func TestServeAfterDrainEndsAtOnce(t *testing.T) {
	router := serve(t, Config{}, never(t))
	router.Drain(t.Context())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := router.Serve(t.Context(), l); err != nil {
		t.Error(err)
	}
}
