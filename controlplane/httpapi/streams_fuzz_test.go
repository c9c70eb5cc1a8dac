package httpapi

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"
)

func holdNothing(int64) (func(), error) { return func() {}, nil }

// FuzzReadRPC: whatever a language server writes, what is read from it is bounded,
// and the framer's output passes through the framer unchanged.
func FuzzReadRPC(f *testing.F) {
	f.Add([]byte("Content-Length: 2\r\n\r\n{}"), 1)
	f.Add([]byte("content-length:3\r\nContent-Type: x\r\n\r\n[1]Content-Length: 0\r\n\r\n"), 3)
	f.Add([]byte("Content-Length: 99999999999\r\n\r\n"), 7)
	f.Add([]byte("Content-Length: -1\r\n\r\n"), 2)
	f.Add([]byte("\r\n\r\n"), 1)
	f.Add([]byte(strings.Repeat("x", 5000)), 100)
	f.Fuzz(func(t *testing.T, in []byte, piece int) {
		var messages [][]byte
		r := bufio.NewReader(&piecewise{in, max(1, piece%64)})
		for {
			m, _, err := readRPC(r, holdNothing)
			if err != nil {
				if !errors.Is(err, errRPC) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Fatal(err)
				}
				break
			}
			if len(m) > len(in) {
				t.Fatalf("%d bytes came out of %d", len(m), len(in))
			}
			messages = append(messages, m)
		}
		var framed []byte
		for _, m := range messages {
			framed = append(framed, frameRPC(m)...)
		}
		r = bufio.NewReader(iotest.OneByteReader(bytes.NewReader(framed)))
		for i, want := range messages {
			if got, _, err := readRPC(r, holdNothing); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("message %d: %q, %v; want %q", i, got, err, want)
			}
		}
		if _, _, err := readRPC(r, holdNothing); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	})
}

// piecewise gives its bytes a few at a time.
type piecewise struct {
	left []byte
	n    int
}

func (p *piecewise) Read(b []byte) (int, error) {
	if len(p.left) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.left[:min(p.n, len(p.left))])
	p.left = p.left[n:]
	return n, nil
}

// FuzzSplitter: the pieces together equal the input, each is UTF-8 or base64, and
// text stays text wherever it is cut.
func FuzzSplitter(f *testing.F) {
	f.Add([]byte("naïve €uro 😀"), uint8(1))
	f.Add([]byte{0xff, 0xe2, 0x82}, uint8(2))
	f.Add([]byte("\xed\xa0\x80\xf4\x90\x80\x80"), uint8(3))
	f.Fuzz(func(t *testing.T, in []byte, size uint8) {
		var s splitter
		var got []byte
		add := func(data, encoding string) {
			if data == "" {
				t.Fatal("an empty piece")
			}
			if encoding == "" {
				if !utf8.ValidString(data) {
					t.Fatalf("%q is not UTF-8", data)
				}
				got = append(got, data...)
				return
			}
			if utf8.Valid(in) {
				t.Fatalf("base64 for a part of %q", in)
			}
			raw, err := base64.StdEncoding.DecodeString(data)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, raw...)
		}
		for left := in; len(left) > 0; {
			n := min(len(left), max(1, int(size)))
			if o, ok := s.next(left[:n]); ok {
				add(o.Data, o.Encoding)
			}
			if len(s.held) >= utf8.UTFMax {
				t.Fatalf("%d bytes are held back", len(s.held))
			}
			left = left[n:]
		}
		if o, ok := s.end(); ok {
			add(o.Data, o.Encoding)
		}
		if !bytes.Equal(got, in) {
			t.Fatalf("%q became %q", in, got)
		}
	})
}

func TestRPCFraming(t *testing.T) {
	for name, c := range map[string]struct {
		in   string
		want error
	}{
		"nothing":              {"", io.EOF},
		"half a header":        {"Content-Len", io.ErrUnexpectedEOF},
		"no content":           {"Content-Length: 5\r\n\r\n", io.ErrUnexpectedEOF},
		"half the content":     {"Content-Length: 5\r\n\r\n{}", io.ErrUnexpectedEOF},
		"no length":            {"Content-Type: x\r\n\r\n{}", errRPC},
		"a line that is none":  {"hello\r\n\r\n", errRPC},
		"too much":             {"Content-Length: 16777217\r\n\r\n", errRPC},
		"not a number":         {"Content-Length: 0x5\r\n\r\n", errRPC},
		"a negative number":    {"Content-Length: -5\r\n\r\n", errRPC},
		"a header without end": {strings.Repeat("A: b\r\n", 2000), errRPC},
		"a line without end":   {strings.Repeat("A", 9000), errRPC},
	} {
		if _, _, err := readRPC(bufio.NewReader(strings.NewReader(c.in)), holdNothing); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}
