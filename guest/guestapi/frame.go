package guestapi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// FrameType says what a frame carries. The numbers are the wire format.
type FrameType uint8

// Frames from the guest (1–15) and from the host (16–31).
const (
	FrameStdout FrameType = 1 // bytes
	FrameStderr FrameType = 2 // bytes
	FrameExit   FrameType = 3 // JSON ExecExit; the last frame
	FrameError  FrameType = 4 // JSON Error: the process could not be started; the last frame

	FrameStdin  FrameType = 16 // bytes
	FrameEOF    FrameType = 17 // empty: close stdin
	FrameSignal FrameType = 18 // signal name without SIG, sent to the process group
	FrameResize FrameType = 19 // JSON TTY
)

// MaxFrame bounds a frame's payload, in bytes, so that a hostile peer cannot
// make the reader allocate.
const MaxFrame = 256 << 10

// ErrFrameTooLarge is returned for a frame whose header announces more than MaxFrame.
var ErrFrameTooLarge = errors.New("frame too large")

// FrameHeader is the size of a frame's header, in bytes.
const FrameHeader = 5

// PutFrameHeader makes buf a frame of type t in place: its first FrameHeader
// bytes become the header of the payload that follows them.
func PutFrameHeader(buf []byte, t FrameType) {
	buf[0] = byte(t)
	binary.BigEndian.PutUint32(buf[1:], uint32(len(buf)-FrameHeader))
}

// WriteFrame writes one frame: a type byte, the payload's length as a
// big-endian uint32, the payload. Payloads over MaxFrame are refused.
func WriteFrame(w io.Writer, t FrameType, payload []byte) error {
	if len(payload) > MaxFrame {
		return ErrFrameTooLarge
	}
	buf := make([]byte, FrameHeader+len(payload))
	copy(buf[FrameHeader:], payload)
	PutFrameHeader(buf, t)
	_, err := w.Write(buf)
	return err
}

// ReadFrame reads one frame into buf when it is large enough, else into new
// memory. It returns io.EOF only between frames, io.ErrUnexpectedEOF inside one.
func ReadFrame(r io.Reader, buf []byte) (FrameType, []byte, error) {
	var head [FrameHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > MaxFrame {
		return 0, nil, fmt.Errorf("%w: %d bytes announced", ErrFrameTooLarge, n)
	}
	if uint32(cap(buf)) < n {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	if _, err := io.ReadFull(r, buf); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return FrameType(head[0]), buf, nil
}
