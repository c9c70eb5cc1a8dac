package code

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
)

// Checked passes on a tar.gz while it checks it. If the archive is refused, the last Read
// returns the reason instead of io.EOF, or an earlier Read does. Close ends the check and
// leaves r open.
type Checked struct {
	r    io.Reader
	left int64
	to   *io.PipeWriter
	done chan struct{}
	why  error // valid once done is closed
}

// Check returns a Checked for a tar.gz with the code of a function.
func Check(runtime string, r io.Reader) *Checked {
	from, to := io.Pipe()
	c := &Checked{r: r, left: MaxPacked, to: to, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		if c.why = look(runtime, from); c.why == nil {
			_, c.why = io.Copy(io.Discard, from) // what follows the archive
		}
		_ = from.CloseWithError(c.why)
	}()
	return c
}

// Read implements io.Reader.
func (c *Checked) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if c.left -= int64(n); c.left < 0 {
		return 0, tooLarge("the code of a function has at most %d MiB, packed", MaxPacked>>20)
	}
	if n > 0 {
		if _, refusal := c.to.Write(p[:n]); refusal != nil {
			return 0, refusal
		}
	}
	if errors.Is(err, io.EOF) {
		_ = c.to.Close()
		if <-c.done; c.why != nil {
			return 0, c.why
		}
	}
	return n, err
}

// Close implements io.Closer.
func (c *Checked) Close() error {
	_ = c.to.CloseWithError(io.ErrClosedPipe)
	<-c.done
	return nil
}

// maxArchive limits the size of an unpacked archive, in bytes: what it has beside its files may
// be packed to a thousandth, and has to be read, too.
const maxArchive = MaxUnpacked + MaxFiles*4<<10

// look reads an archive and returns what is wrong with it.
func look(runtime string, r io.Reader) error {
	damaged := func(err error) error {
		if errors.Is(err, io.ErrClosedPipe) {
			return err // nobody reads it any more
		}
		return refused("want a tar.gz: %s", err)
	}
	zip, err := gzip.NewReader(r)
	if err != nil {
		return damaged(err)
	}
	t, whole := newTree(), &io.LimitedReader{R: zip, N: maxArchive + 1}
	for archive := tar.NewReader(whole); ; {
		h, err := archive.Next()
		if whole.N <= 0 {
			return tooLarge("the archive of a function has at most %d MiB, unpacked", maxArchive>>20)
		}
		if errors.Is(err, io.EOF) {
			return t.complete(runtime)
		}
		if err != nil {
			return damaged(err)
		}
		switch h.Typeflag {
		case tar.TypeXGlobalHeader: // git archive writes one
			continue
		case tar.TypeReg, tar.TypeDir:
		case tar.TypeSymlink, tar.TypeLink:
			return refused("%.100q is a link: a function has files and directories alone", h.Name)
		default:
			return refused("%.100q is no file and no directory", h.Name)
		}
		if _, err := t.add(h.Name, h.Typeflag == tar.TypeDir, h.Size); err != nil {
			return err
		}
	}
}
