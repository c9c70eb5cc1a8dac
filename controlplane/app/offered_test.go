package app

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// A host that reads nothing, or stops in the middle, or never ends, is noticed; a client
// that is slow is not taken for such a host.
func TestAHostThatStopsToReadABlobIsNoticed(t *testing.T) {
	t.Parallel()
	const soon, never = time.Millisecond, time.Hour
	for name, c := range map[string]struct {
		part, keep time.Duration
		read       int // by the host
		untouched  bool
	}{
		"at the beginning": {soon, never, 0, true},
		"in the middle":    {soon, never, 1, false},
		"after the end":    {never, soon, 3, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stalled := make(chan struct{})
			o := newOffered(iotest.OneByteReader(strings.NewReader("ab")), never, c.keep, func() { close(stalled) })
			o.part = c.part
			for range c.read {
				if _, err := o.Read(make([]byte, 9)); err != nil && !errors.Is(err, io.EOF) {
					t.Fatal(err)
				}
			}
			if c.read == 0 {
				o.stall.Reset(c.part)
			}
			select {
			case <-stalled:
			case <-time.After(time.Minute):
				t.Error("nobody has noticed")
			}
			if o.end() != c.untouched {
				t.Error("it is wrong about whether anything was read")
			}
		})
	}
	t.Run("a slow client", func(t *testing.T) {
		t.Parallel()
		r, w := io.Pipe()
		stalled := make(chan struct{})
		o := newOffered(r, never, never, func() { close(stalled) })
		o.part = soon
		read := make(chan error)
		go func() {
			_, err := o.Read(make([]byte, 9))
			read <- err
		}()
		select {
		case <-stalled:
			t.Error("a client was taken for a host")
		case <-time.After(50 * time.Millisecond):
		}
		w.CloseWithError(io.ErrUnexpectedEOF)
		if err := <-read; !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%v", err)
		}
		o.end()
	})
}

// What a transport reads late is not taken from the next host.
func TestABlobIsReadByOneHost(t *testing.T) {
	t.Parallel()
	r := strings.NewReader("ab")
	o := newOffered(r, time.Hour, time.Hour, func() {})
	if !o.end() {
		t.Error("it was read")
	}
	if n, err := o.Read(make([]byte, 9)); n != 0 || err == nil || errors.Is(err, io.EOF) || r.Len() != 2 {
		t.Errorf("%d bytes, %v", n, err)
	}
}
