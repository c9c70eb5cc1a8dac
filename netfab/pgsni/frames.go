package pgsni

import "encoding/binary"

// messageHead is the length of a message's type and length field.
const messageHead = 5

// framer follows where messages begin and end in a stream, and keeps nothing of
// them. It costs a few nanoseconds a message.
type framer struct {
	body int // bytes of the present message that are still to come
	head [messageHead]byte
	have int // bytes of head that have come, when body is 0
	lost bool
}

// advance takes the next bytes of the stream.
func (f *framer) advance(p []byte) {
	for len(p) > 0 && !f.lost {
		switch {
		case f.body > 0:
			n := min(f.body, len(p))
			f.body -= n
			p = p[n:]
		case f.have == 0 && len(p) >= messageHead:
			p = f.whole(p)
		default:
			n := copy(f.head[f.have:], p)
			f.have += n
			p = p[n:]
			if f.have == messageHead {
				f.begin(f.head[:])
			}
		}
	}
}

// whole skips the messages that p has whole, which are most, and begins the next
// if its head is there.
func (f *framer) whole(p []byte) (rest []byte) {
	for len(p) >= messageHead {
		end := 1 + int(binary.BigEndian.Uint32(p[1:]))
		if end < messageHead || end > len(p) {
			f.begin(p)
			return p[messageHead:]
		}
		p = p[end:]
	}
	return p
}

func (f *framer) begin(head []byte) {
	length := int(int32(binary.BigEndian.Uint32(head[1:])))
	f.body, f.have, f.lost = length-4, 0, length < 4
}

// atBoundary says whether the last message is complete, so that another may be
// put behind it.
func (f *framer) atBoundary() bool { return f.body == 0 && f.have == 0 && !f.lost }
