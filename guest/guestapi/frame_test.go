package guestapi

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

func TestFramesComeBack(t *testing.T) {
	var b bytes.Buffer
	want := []struct {
		kind    FrameType
		payload string
	}{{FrameStdout, "out"}, {FrameEOF, ""}, {FrameStdin, string(make([]byte, MaxFrame))}}
	for _, f := range want {
		if err := WriteFrame(&b, f.kind, []byte(f.payload)); err != nil {
			t.Fatal(err)
		}
	}
	buf := make([]byte, 16)
	for _, f := range want {
		kind, payload, err := ReadFrame(&b, buf)
		if err != nil || kind != f.kind || string(payload) != f.payload {
			t.Errorf("got type %d, %d bytes, %v", kind, len(payload), err)
		}
	}
	if _, _, err := ReadFrame(&b, buf); !errors.Is(err, io.EOF) {
		t.Errorf("after the last: %v", err)
	}
}

func TestFrameMadeInPlace(t *testing.T) {
	frame := append(make([]byte, FrameHeader), "payload"...)
	PutFrameHeader(frame, FrameStderr)
	kind, payload, err := ReadFrame(bytes.NewReader(frame), nil)
	if err != nil || kind != FrameStderr || string(payload) != "payload" {
		t.Errorf("got %d %q %v", kind, payload, err)
	}
}

func TestFramesThatAreTooLarge(t *testing.T) {
	if err := WriteFrame(io.Discard, FrameStdout, make([]byte, MaxFrame+1)); !errors.Is(err, ErrFrameTooLarge) {
		t.Errorf("written: %v", err)
	}
	if _, _, err := ReadFrame(bytes.NewReader([]byte{1, 0, 4, 0, 1}), nil); !errors.Is(err, ErrFrameTooLarge) {
		t.Errorf("read: %v", err)
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 2, 'h', 'i'})
	f.Add([]byte{1, 0, 0, 0, 9, 'h', 'i'})
	f.Add([]byte{16, 255, 255, 255, 255})
	f.Add([]byte{1, 0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		r := bytes.NewReader(raw)
		for {
			left := r.Len()
			_, payload, err := ReadFrame(r, nil)
			if err != nil {
				if errors.Is(err, io.EOF) && left != 0 {
					t.Errorf("io.EOF with %d bytes left", left)
				}
				return
			}
			if len(payload) > MaxFrame || len(payload) > left {
				t.Errorf("%d bytes of %d", len(payload), left)
			}
		}
	})
}
