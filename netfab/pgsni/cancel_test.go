package pgsni

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgproto3"
)

func TestACancelKeyIsTheRoutersOwn(t *testing.T) {
	server := newFakeServer(t)
	router := serve(t, Config{}, only(server))
	a, b := router.open(t, known), router.open(t, known)
	keyA, keyB := a.ready(), b.ready()
	if cmp.Equal(keyA, keyB) || cmp.Equal(keyA, server.key) || cmp.Equal(keyB, server.key) {
		t.Errorf("keys %v and %v of the server's %v", keyA, keyB, server.key)
	}
	for name, request := range map[string]func(c *client){
		"plaintext":           func(*client) {},
		"TLS":                 func(c *client) { c.encrypt(known + "." + domain) },
		"TLS without SNI":     func(c *client) { c.message(&pgproto3.SSLRequest{}); c.answer(); c.startTLS(&tls.Config{}) },
		"after GSSENCRequest": func(c *client) { c.message(&pgproto3.GSSEncRequest{}); c.answer() },
	} {
		before := len(server.seenCancels())
		c := router.dial(t)
		request(c)
		c.message(&pgproto3.CancelRequest{ProcessID: keyA.PID, SecretKey: keyA.Secret})
		c.ended()
		// The end comes after the server's, so that the client may rely on it.
		if seen := server.seenCancels(); len(seen) != before+1 || !cmp.Equal(seen[before], server.key) {
			t.Errorf("%s: the server saw %v", name, seen)
		}
	}
}

func TestLongCancelKeys(t *testing.T) {
	for _, n := range []int{4, 32, 256} {
		server := newFakeServer(t)
		server.key.Secret = bytes.Repeat([]byte{7}, n)
		router := serve(t, Config{}, only(server))
		key := router.open(t, known).ready()
		if len(key.Secret) != n || bytes.Equal(key.Secret, server.key.Secret) {
			t.Errorf("a key of %d bytes became %d", n, len(key.Secret))
		}
		c := router.dial(t)
		c.message(&pgproto3.CancelRequest{ProcessID: key.PID, SecretKey: key.Secret})
		c.ended()
		if seen := server.seenCancels(); len(seen) != 1 || !cmp.Equal(seen[0], server.key) {
			t.Errorf("the server saw %v", seen)
		}
	}
}

func TestACancelKeyThatIsTooLongEndsTheLogin(t *testing.T) {
	server := newFakeServer(t)
	server.key.Secret = make([]byte, 257)
	router := serve(t, Config{}, only(server))
	c := router.open(t, known)
	c.ended()
}

func TestCancelRequestsThatAreNotOurs(t *testing.T) {
	server := newFakeServer(t)
	var mu sync.Mutex
	var asked []CancelKey
	router := serve(t, Config{CancelElsewhere: func(_ context.Context, key CancelKey) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, key)
	}}, only(server))
	key := router.open(t, known).ready()
	wrong := CancelKey{key.PID, bytes.Repeat([]byte{9}, 4)}
	for _, k := range []CancelKey{wrong, {key.PID ^ 1, key.Secret}, {key.PID, key.Secret[:3]}, server.key} {
		c := router.dial(t)
		c.message(&pgproto3.CancelRequest{ProcessID: k.PID, SecretKey: k.Secret})
		c.ended()
	}
	mu.Lock()
	defer mu.Unlock()
	if len(asked) != 4 || !cmp.Equal(asked[0], wrong) || len(server.seenCancels()) != 0 {
		t.Errorf("elsewhere %v, here %v", asked, server.seenCancels())
	}
	// A router that is asked by another.
	if router.Cancel(t.Context(), wrong) || !router.Cancel(t.Context(), key) || len(server.seenCancels()) != 1 {
		t.Error("Cancel does not know its own keys")
	}
}

func TestMalformedCancelRequestsAreClosed(t *testing.T) {
	router := serve(t, Config{}, never(t))
	for _, body := range []string{"", "abcd", "abcd" + string(make([]byte, 257))} {
		c := router.dial(t)
		c.write(framedBytes(codeCancel, body))
		c.ended()
	}
}

func TestACancelKeyDiesWithItsSession(t *testing.T) {
	router := serve(t, Config{}, only(newFakeServer(t)))
	c := router.open(t, known)
	key := c.ready()
	c.Close()
	eventually(t, "the key is forgotten", func() bool { return router.Stats().CancelKeys == 0 })
	if router.Cancel(t.Context(), key) {
		t.Error("the key still cancels")
	}
}

func TestACancelRequestEndsInTime(t *testing.T) {
	server := newFakeServer(t)
	var dials atomic.Int32
	backend := dialFunc(func(ctx context.Context) (net.Conn, error) {
		if dials.Add(1) == 1 {
			return server.Dial(ctx)
		}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	router := serve(t, Config{CancelTimeout: 1}, only(backend))
	key := router.open(t, known).ready()
	c := router.dial(t)
	c.message(&pgproto3.CancelRequest{ProcessID: key.PID, SecretKey: key.Secret})
	c.ended()
}

func TestKeysAreDrawnAgainUntilTheyAreFree(t *testing.T) {
	random := bytes.NewReader([]byte{
		0, 0, 0, 1, 1, 1, 1, 1, // pid 1
		0, 0, 0, 0, // none
		0x80, 0, 0, 1, // taken, without its sign
		0, 0, 0, 2, 2, 2, 2, 2, // pid 2
	})
	k := newKeys(random)
	for pid := uint32(1); pid <= 2; pid++ {
		key, err := k.issue(nil, CancelKey{7, []byte{7, 7, 7, 7}})
		if err != nil || key.PID != pid {
			t.Fatal(key, err)
		}
	}
	if _, err := k.issue(nil, CancelKey{7, []byte{7}}); err == nil {
		t.Error("a key without randomness")
	}
}

func TestKeysOfManySessions(t *testing.T) {
	k := newKeys(rand.Reader)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				key, err := k.issue(nil, CancelKey{7, []byte{7, 7, 7, 7}})
				if err != nil {
					t.Error(err)
				}
				if _, ok := k.find(key); !ok {
					t.Error("a key is not found")
				}
				k.revoke(key.PID)
			}
		})
	}
	wg.Wait()
	if k.size() != 0 {
		t.Errorf("%d keys are left", k.size())
	}
}
