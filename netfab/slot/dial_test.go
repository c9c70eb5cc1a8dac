package slot

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// guestd listens in the guest and says back what it is told.
func guestd(t testing.TB, g *guest) {
	t.Helper()
	var l net.Listener
	check(t, g.ns.Do(func(ns.NetNS) (err error) {
		l, err = net.Listen("tcp4", ":999")
		return err
	}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		var conns sync.WaitGroup
		defer conns.Wait()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			})
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
}

func roundTrip(ctx context.Context, f *Fabric, n int) error {
	c, err := f.Dial(ctx, n, 999)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, "hello"); err != nil {
		return err
	}
	buf := make([]byte, 5)
	if _, err := io.ReadFull(c, buf); err != nil {
		return err
	}
	if string(buf) != "hello" {
		return errors.New("another answer: " + string(buf))
	}
	return nil
}

func TestHundredsOfDialsAtOnce(t *testing.T) {
	f := newFabric(t)
	for n := range 2 {
		guestd(t, newGuest(t, ensure(t, f, n)))
	}
	home := inode(t)
	var wg sync.WaitGroup
	for i := range 400 {
		wg.Go(func() {
			err := roundTrip(t.Context(), f, i%2)
			// On a busy machine attempts are given up, and their ports taken by
			// others before the guest has noticed: it answers those with a reset.
			for errors.Is(err, syscall.ECONNRESET) {
				err = roundTrip(t.Context(), f, i%2)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	// No thread may be left behind in a slot's namespace.
	for range 50 {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if got := inode(t); got != home {
				t.Errorf("a thread is in namespace %d, the program in %d", got, home)
			}
		})
	}
	wg.Wait()
}

func inode(t testing.TB) uint64 {
	var st unix.Stat_t
	if err := unix.Stat(threadNetNS(), &st); err != nil {
		t.Error(err)
	}
	return st.Ino
}

func TestDialWithoutAGuestEndsWithTheContext(t *testing.T) {
	f := newFabric(t)
	startVMM(t, ensure(t, f, 0)) // takes frames, answers none
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := f.Dial(ctx, 0, 999); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a deadline: %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, stop)
	if _, err := f.Dial(ctx, 0, 999); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestDialErrors(t *testing.T) {
	f := newFabric(t)
	newGuest(t, ensure(t, f, 0))
	if _, err := f.Dial(t.Context(), 0, 998); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("port without a listener: %v", err)
	}
	if _, err := f.Dial(t.Context(), 1, 999); err == nil {
		t.Error("slot that was not made: no error")
	}
	if _, err := f.Dial(t.Context(), 100000, 999); !errors.Is(err, ErrNoSuchSlot) {
		t.Errorf("slot past the last: %v", err)
	}
	for _, port := range []int{0, -1, 65536} {
		if _, err := f.Dial(t.Context(), 0, port); err == nil {
			t.Errorf("port %d: no error", port)
		}
	}
}

func BenchmarkDial(b *testing.B) {
	f := newFabric(b)
	guestd(b, newGuest(b, ensure(b, f, 0)))
	for b.Loop() {
		check(b, roundTrip(b.Context(), f, 0))
	}
}
