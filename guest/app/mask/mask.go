// Package mask replaces secret values in a stream of output: as they are, encoded, and
// split over writes and lines.
package mask

import "io"

// Mask is what is written for a secret.
const Mask = "********"

// Writer masks what is written to it and passes the rest on. What may be the beginning
// of a secret is held until it is known. Not for concurrent use.
type Writer struct {
	to   io.Writer
	tree *tree

	state   int32
	pending []held // what is held, in order
	plain   int    // how many of them are not skipped
	masked  bool   // the last byte that was written is in a mask
	newline bool   // blanks that follow are indentation
	out     []byte
}

// held is a byte that was not written yet.
type held struct {
	b       byte
	skipped bool // no part of what is compared
	secret  bool
}

// NewWriter returns a writer that masks the secrets.
func NewWriter(to io.Writer, secrets []string) *Writer {
	return &Writer{to: to, tree: newTree(patterns(secrets))}
}

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	if w.tree.empty() {
		return w.to.Write(p)
	}
	for _, b := range p {
		w.add(b)
	}
	w.release(w.tree.depth(w.state))
	return len(p), w.flushOut()
}

// shortest is how much of what may be a secret's beginning is let go while nothing
// comes, in bytes: less than that tells little of it, and the end of an ordinary line
// would be held with it.
const shortest = 8

// Idle writes what is held, unless its end is a long part of a secret: nothing has come
// for some time. A secret that goes on after it is masked from there.
func (w *Writer) Idle() error {
	open := 0 // compared bytes behind the last that are masked in any case
	for i := len(w.pending) - 1; i >= 0 && !w.pending[i].secret; i-- {
		if !w.pending[i].skipped {
			open++
		}
	}
	if open < shortest {
		open = 0
	}
	w.release(open)
	return w.flushOut()
}

// Flush writes what is held: nothing will come.
func (w *Writer) Flush() error {
	w.release(0)
	w.state = 0
	return w.flushOut()
}

func (w *Writer) flushOut() error {
	if len(w.out) == 0 {
		return nil
	}
	_, err := w.to.Write(w.out)
	w.out = w.out[:0]
	return err
}

// maxPending bounds what is held, in bytes: white space between two bytes of a secret
// could be without end.
const maxPending = 1 << 20

func (w *Writer) add(b byte) {
	if w.skips(b) {
		w.pending = append(w.pending, held{b: b, skipped: true})
		if w.tree.depth(w.state) == 0 || len(w.pending) > maxPending {
			w.release(0)
		}
		return
	}
	w.state = w.tree.next(w.state, b)
	w.pending = append(w.pending, held{b: b})
	w.plain++
	if n := w.tree.longest(w.state); n > 0 {
		w.mark(n)
	}
	// Bytes that are held and cannot be part of a secret are written in large pieces.
	if depth := w.tree.depth(w.state); w.plain > 2*depth+4096 {
		w.release(depth)
	}
}

// skips reports whether a byte is white space as output that is broken into lines has
// it: the end of a line, and what the next is indented by.
func (w *Writer) skips(b byte) bool {
	switch b {
	case '\n', '\r':
		w.newline = true
		return true
	case ' ', '\t':
		return w.newline
	}
	w.newline = false
	return false
}

// mark marks the last n compared bytes.
func (w *Writer) mark(n int) {
	for i := len(w.pending) - 1; i >= 0 && n > 0; i-- {
		if !w.pending[i].skipped {
			w.pending[i].secret = true
			n--
		}
	}
}

// release writes what is held but for the last n compared bytes and what is between
// them.
func (w *Writer) release(n int) {
	end := 0
	for ; end < len(w.pending) && w.plain > n; end++ {
		w.put(w.pending[end])
	}
	if n == 0 {
		for ; end < len(w.pending); end++ {
			w.put(w.pending[end])
		}
	}
	w.pending = w.pending[:copy(w.pending, w.pending[end:])]
}

func (w *Writer) put(h held) {
	switch {
	case h.skipped:
		w.masked = false
	case h.secret:
		w.plain--
		if w.masked {
			return
		}
		w.masked = true
		w.out = append(w.out, Mask...)
		return
	default:
		w.plain--
		w.masked = false
	}
	w.out = append(w.out, h.b)
}

// Text masks the secrets in a text.
func Text(text string, secrets []string) string {
	var b buffer
	w := NewWriter(&b, secrets)
	_, _ = w.Write([]byte(text)) // a buffer takes everything
	_ = w.Flush()
	return string(b)
}

type buffer []byte

func (b *buffer) Write(p []byte) (int, error) { *b = append(*b, p...); return len(p), nil }
