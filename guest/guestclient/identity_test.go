package guestclient_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// guest answers datagrams by answer, and connections with generation 99.
type guest struct {
	datagrams atomic.Int32
	client    *guestclient.Client
}

func start(t *testing.T, answer func(nth int32, msg []byte) []byte) *guest {
	t.Helper()
	g := &guest{}
	socket, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 64<<10)
		for {
			n, from, err := socket.ReadFrom(buf)
			if err != nil {
				return
			}
			if a := answer(g.datagrams.Add(1), buf[:n]); a != nil {
				_, _ = socket.WriteTo(a, from)
			}
		}
	}()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"generation":99}`))
	}))
	t.Cleanup(func() {
		server.Close()
		socket.Close()
		<-done
	})
	dial := func(network string, addr net.Addr) guestclient.Dial {
		return func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addr.String())
		}
	}
	g.client = guestclient.New(dial("tcp", server.Listener.Addr()), guestclient.ByDatagrams(dial("udp", socket.LocalAddr())))
	if answer == nil {
		socket.Close() // nobody listens there
	}
	return g
}

func answer(msg []byte, status uint16, body string) []byte {
	b := append([]byte(nil), msg[:guestapi.CallIDSize]...)
	return append(binary.BigEndian.AppendUint16(b, status), body...)
}

func TestLostDatagramIsSentAgain(t *testing.T) {
	var first []byte
	g := start(t, func(nth int32, msg []byte) []byte {
		if nth == 1 {
			first = append(first, msg[:guestapi.CallIDSize]...)
			return nil
		}
		if string(first) != string(msg[:guestapi.CallIDSize]) {
			return answer(msg, 400, `{"error":"another call"}`)
		}
		// All the time was the guest's.
		return answer(msg, 200, `{"generation":5,"entropy_bits":512,"took_microseconds":3600000000}`)
	})
	done, err := g.client.Identity(t.Context(), guestapi.Identity{Generation: 5})
	if err != nil || done.Generation != 5 || done.EntropyBits != 512 {
		t.Errorf("got %+v, %v", done, err)
	}
	if n := g.datagrams.Load(); n != 2 {
		t.Errorf("%d datagrams, want 2", n)
	}
}

// What is sent to a guest that stands still is answered once it goes on, and not
// sent again.
func TestIdentityThatIsSentBeforeItIsWaitedFor(t *testing.T) {
	goOn := make(chan struct{})
	g := start(t, func(_ int32, msg []byte) []byte {
		<-goOn
		return answer(msg, 200, `{"generation":5,"entropy_bits":512,"took_microseconds":3600000000}`)
	})
	call := g.client.NewIdentityCall(guestapi.Identity{Generation: 5})
	defer call.Close()
	call.Send(t.Context())
	close(goOn)
	if done, err := call.Wait(t.Context()); err != nil || done.Generation != 5 {
		t.Errorf("got %+v, %v", done, err)
	}
	if n := g.datagrams.Load(); n != 1 {
		t.Errorf("%d datagrams, want 1", n)
	}
}

func TestIdentityThatCouldNotBeSentGoesByAConnection(t *testing.T) {
	g := start(t, nil)
	call := g.client.NewIdentityCall(guestapi.Identity{Generation: 5})
	defer call.Close()
	call.Send(t.Context())
	if done, err := call.Wait(t.Context()); err != nil || done.Generation != 99 {
		t.Errorf("got %+v, %v", done, err)
	}
}

// A guest that polls for a datagram must get one before it answers connections.
func TestIdentityTooLargeForADatagramIsAnnouncedByOne(t *testing.T) {
	got := make(chan int, 1)
	g := start(t, func(_ int32, msg []byte) []byte {
		got <- len(msg)
		return nil
	})
	id := guestapi.Identity{Generation: 5, Env: map[string]string{"LARGE": strings.Repeat("x", guestapi.MaxIdentityDatagram)}}
	if done, err := g.client.Identity(t.Context(), id); err != nil || done.Generation != 99 {
		t.Errorf("got %+v, %v", done, err)
	}
	select {
	case n := <-got:
		if n != guestapi.CallIDSize {
			t.Errorf("%d bytes, want %d", n, guestapi.CallIDSize)
		}
	case <-time.After(10 * time.Second):
		t.Error("no datagram")
	}
}

func TestIdentityThatIsNotSentAfterAll(t *testing.T) {
	g := start(t, func(int32, []byte) []byte { return nil })
	g.client.NewIdentityCall(guestapi.Identity{}).Close()
	call := g.client.NewIdentityCall(guestapi.Identity{})
	call.Send(t.Context())
	call.Close()
}

// A guest that is late with its answer may have been late with the question:
// it is told the time again, by another call.
func TestLateGuestIsToldTheTimeAgain(t *testing.T) {
	var mu sync.Mutex
	calls := map[string]bool{}
	g := start(t, func(nth int32, msg []byte) []byte {
		mu.Lock()
		calls[string(msg[:guestapi.CallIDSize])] = true
		mu.Unlock()
		if nth == 1 {
			<-time.After(70 * time.Millisecond) // what is tested is that time passes
		}
		return answer(msg, 200, `{"generation":5,"entropy_bits":512}`)
	})
	if _, err := g.client.Identity(t.Context(), guestapi.Identity{Generation: 5}); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(calls) < 2 {
		t.Errorf("%d calls, want another after the late one", len(calls))
	}
}

func TestAnswerToAnotherCallIsPassedBy(t *testing.T) {
	g := start(t, func(nth int32, msg []byte) []byte {
		if nth == 1 {
			msg[0]++
			return answer(msg, 200, `{"generation":4}`)
		}
		return answer(msg, 200, `{"generation":5}`)
	})
	if done, err := g.client.Identity(t.Context(), guestapi.Identity{Generation: 5}); err != nil || done.Generation != 5 {
		t.Errorf("got %+v, %v", done, err)
	}
}

func TestRefusalByDatagram(t *testing.T) {
	g := start(t, func(_ int32, msg []byte) []byte { return answer(msg, 409, `{"error":"over"}`) })
	_, err := g.client.Identity(t.Context(), guestapi.Identity{Generation: 5})
	var refused *guestclient.Error
	if !errors.As(err, &refused) || refused.Status != 409 || refused.Message != "over" {
		t.Errorf("got %v", err)
	}
}

func TestConnectionWhereNobodyTakesDatagrams(t *testing.T) {
	g := start(t, nil)
	done, err := g.client.Identity(t.Context(), guestapi.Identity{Generation: 5})
	if err != nil || done.Generation != 99 {
		t.Errorf("got %+v, %v", done, err)
	}
}

func TestWaitForADatagramEndsWithTheContext(t *testing.T) {
	g := start(t, func(int32, []byte) []byte { return nil })
	cause := errors.New("the sandbox was deleted")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	time.AfterFunc(150*time.Millisecond, func() { cancel(cause) })
	if _, err := g.client.Identity(ctx, guestapi.Identity{Generation: 5}); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}
