package app

import (
	"io"
	"sync"
	"time"

	"github.com/berth-cloud/berth/timescale"
)

// How long a host may take for the next part of a blob, and, after the last part, to keep
// the blob. A host that takes longer has a disk that hangs: it would hold the upload for as
// long as it is up.
var (
	partTime = timescale.Limit(time.Minute)
	keepTime = timescale.Limit(10 * time.Minute)
)

// offered is a blob on its way to one host. It knows whether the host has read any of it,
// and ends the call if the host stops to read.
type offered struct {
	r          io.Reader
	part, keep time.Duration // partTime and keepTime
	stall      *time.Timer   // runs while the host has to act, not while r is waited for

	mu    sync.Mutex
	begun bool
	over  bool
}

// newOffered returns a blob to send. It calls stalled if the host stops to read.
func newOffered(r io.Reader, part, keep time.Duration, stalled func()) *offered {
	return &offered{r: r, part: part, keep: keep, stall: time.AfterFunc(part, stalled)}
}

// Read implements io.Reader.
func (o *offered) Read(p []byte) (int, error) {
	if !o.begin() {
		return 0, io.ErrClosedPipe
	}
	n, err := o.r.Read(p)
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.over:
	case err != nil:
		o.stall.Reset(o.keep)
	default:
		o.stall.Reset(o.part)
	}
	return n, err
}

func (o *offered) begin() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over {
		return false
	}
	o.begun = true
	o.stall.Stop()
	return true
}

// end ends the reading and reports whether nothing was read. The transport may still try to
// read after its call has failed, and must not take what the next host is to get.
func (o *offered) end() (untouched bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
	o.stall.Stop()
	return !o.begun
}
