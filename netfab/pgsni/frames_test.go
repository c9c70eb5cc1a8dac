package pgsni

import (
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"
)

func TestFramerFindsTheBoundaries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stream []byte
		boundaries := map[int]bool{0: true}
		for _, n := range rapid.SliceOf(rapid.IntRange(0, 40)).Draw(t, "bodies") {
			stream = append(stream, 'D')
			stream = binary.BigEndian.AppendUint32(stream, uint32(n+4))
			stream = append(stream, make([]byte, n)...)
			boundaries[len(stream)] = true
		}
		var f framer
		for at := 0; at < len(stream); {
			n := rapid.IntRange(1, len(stream)-at).Draw(t, "chunk")
			f.advance(stream[at : at+n])
			at += n
			if f.atBoundary() != boundaries[at] {
				t.Fatalf("at %d of %d: boundary %v", at, len(stream), f.atBoundary())
			}
		}
	})
}

func TestFramerIsLostInWhatIsNoMessage(t *testing.T) {
	for _, length := range []uint32{0, 3, 0x80000000, 0xffffffff} {
		var f framer
		f.advance(binary.BigEndian.AppendUint32([]byte{'D'}, length))
		f.advance(make([]byte, 100))
		if f.atBoundary() {
			t.Errorf("a message of length %#x ended", length)
		}
	}
}
