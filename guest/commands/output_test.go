package commands

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-cloud/berth/guest/guestapi"
)

func newFile(t *testing.T) func() (*os.File, error) {
	return func() (*os.File, error) { return os.Create(filepath.Join(t.TempDir(), "output")) }
}

// all reads an output from an offset, as text and as one letter a byte for its stream.
func all(t *testing.T, o *output, at int64) (text, streams []byte, begin int64) {
	t.Helper()
	begin = at
	for {
		pieces, next, _, _, err := o.read(at)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pieces {
			if p.Stream == guestapi.StreamGap {
				begin, at = p.Offset, p.Offset
				continue
			}
			if p.Offset != at {
				t.Fatalf("a piece at %d, want %d", p.Offset, at)
			}
			at += int64(len(p.Data))
			text = append(text, p.Data...)
			streams = append(streams, bytes.Repeat([]byte{p.Stream[3]}, len(p.Data))...) // stdout, stderr
		}
		if at != next {
			t.Fatalf("it goes on at %d, want %d", next, at)
		}
		if len(pieces) == 0 {
			return text, streams, begin
		}
	}
}

func TestOutputKeepsItsEndInAnyMixture(t *testing.T) {
	for _, size := range []int64{8, 64, 1 << 16} {
		o := newOutput(size, newFile(t))
		var wrote, of []byte
		for range 500 {
			piece := bytes.Repeat([]byte{byte(rand.IntN(256))}, 1+rand.IntN(int(size)/4+9))
			stream, letter := guestapi.StreamStdout, byte('o')
			if rand.IntN(2) == 0 {
				stream, letter = guestapi.StreamStderr, 'e'
			}
			o.append(stream, piece)
			wrote, of = append(wrote, piece...), append(of, bytes.Repeat([]byte{letter}, len(piece))...)

			since := rand.Int64N(int64(len(wrote)) + 1)
			text, streams, begin := all(t, o, since)
			if want := max(since, int64(len(wrote))-size); begin != want {
				t.Fatalf("size %d: it begins at %d, want %d", size, begin, want)
			}
			if !bytes.Equal(text, wrote[begin:]) || !bytes.Equal(streams, of[begin:]) {
				t.Fatalf("size %d, since %d of %d: other bytes or streams", size, since, len(wrote))
			}
		}
		o.release()
	}
}

func TestOutputThatCannotBeKeptIsAGap(t *testing.T) {
	full := errors.New("no space left on device")
	failing := true
	make := newFile(t)
	o := newOutput(64, func() (*os.File, error) {
		if failing {
			return nil, full
		}
		return make()
	})
	o.append(guestapi.StreamStdout, []byte("lost"))
	if text, _, begin := all(t, o, 0); len(text) != 0 || begin != 4 {
		t.Errorf("got %q from %d", text, begin)
	}
	failing = false
	o.append(guestapi.StreamStdout, []byte("kept"))
	if text, _, begin := all(t, o, 0); string(text) != "kept" || begin != 4 {
		t.Errorf("got %q from %d", text, begin)
	}
	o.release()
}
