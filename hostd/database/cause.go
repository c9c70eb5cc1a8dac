package database

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/pgarchive"
)

// errFull refuses what would go beyond an archive's quota.
var errFull = errors.New("the archive has reached its quota")

// cause is what a tenant is told of why an archive cannot be written or read. The
// bucket's own words name its machines and its owner.
func cause(err error) string {
	if damaged, ok := errors.AsType[*pgarchive.DamagedError](err); ok {
		return hostapi.ArchiveCauseDamaged + ": " + damaged.Object
	}
	_, network := errors.AsType[net.Error](err)
	_, guest := errors.AsType[*guestFault](err)
	_, backup := errors.AsType[*copyFault](err)
	switch {
	case backup:
		return hostapi.ArchiveCauseUncopied
	case guest, errors.Is(err, pgarchive.ErrCut), errors.Is(err, pgarchive.ErrInvalid):
		return hostapi.ArchiveCauseUnread
	case errors.Is(err, errFull):
		return hostapi.ArchiveCauseFull
	case errors.Is(err, pgarchive.ErrOtherBytes):
		return hostapi.ArchiveCauseConflict
	case network, errors.Is(err, errStalled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, io.ErrUnexpectedEOF):
		return hostapi.ArchiveCauseSilent
	}
	return hostapi.ArchiveCauseRefused
}

// guestFault is an error of a guest, and not of the bucket.
type guestFault struct{ error }

func (e *guestFault) Unwrap() error { return e.error }

// copyFault is an error of a guest that sends a base backup, and not of the bucket.
type copyFault struct{ error }

func (e *copyFault) Unwrap() error { return e.error }

// fromGuest reads what a guest sends, which may wait for it for so long in all.
type fromGuest struct {
	r    io.Reader
	left time.Duration
	cut  func() // ends the reads
}

// open begins to read.
func (g *fromGuest) open(begin func() (io.ReadCloser, error)) (r io.ReadCloser, err error) {
	g.wait(func() { r, err = begin() })
	g.r = r
	return r, err
}

// Read implements io.Reader.
func (g *fromGuest) Read(b []byte) (n int, err error) {
	g.wait(func() { n, err = g.r.Read(b) })
	if err != nil && !errors.Is(err, io.EOF) {
		err = &guestFault{err}
	}
	return n, err
}

func (g *fromGuest) wait(do func()) {
	began := time.Now()
	late := time.AfterFunc(g.left, g.cut)
	do()
	late.Stop()
	g.left -= time.Since(began)
}

// bucketFault is an error of an archive where others may be a guest's.
type bucketFault struct{ error }

func (e *bucketFault) Unwrap() error { return e.error }

// trouble is what a tenant is told of why a restore does not go on: what the guest says, or
// that it says nothing.
func trouble(err error) string {
	if of, ok := errors.AsType[*bucketFault](err); ok {
		return cause(of)
	}
	if said, ok := errors.AsType[*pgapi.Refusal](err); ok {
		return said.Error()
	}
	return hostapi.CauseMute
}
