package api

import (
	"context"
	"errors"
	"hash/maphash"
	"io"
	"time"
)

// FollowBuild calls line with what the build says, from its beginning, until
// the build has ended, and returns how it ended. A stream that breaks off is
// taken up where it was, on another replica if need be, without a gap or a
// double. Of a build that another host has begun anew it gives what differs.
func (c *Client) FollowBuild(ctx context.Context, id string, line func(BuildLog) error) (*BuildEnd, error) {
	f := buildFollower{seed: maphash.MakeSeed(), line: line}
	pause := firstPause
	for {
		said := len(f.said)
		end, err := c.followBuild(ctx, id, &f)
		if err == nil || f.over || ctx.Err() != nil || !passing(err, f.begun) {
			return end, err
		}
		if len(f.said) > said {
			pause = firstPause
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		}
		pause = min(2*pause, longPause)
	}
}

// buildFollower is what is left of the streams of a build that broke off.
type buildFollower struct {
	line  func(BuildLog) error
	begun bool // there was a stream
	over  bool // what went wrong is not the stream's, and stays

	seed maphash.Seed
	said []uint64 // digests of the lines that were given
	next int      // of those, which the present stream repeats next
}

// take gives a line, unless it is a repetition. Every stream begins with the
// build's first line.
func (f *buildFollower) take(l BuildLog) error {
	digest := maphash.String(f.seed, l.Line)
	if f.next < len(f.said) && f.said[f.next] == digest {
		f.next++
		return nil
	}
	f.said = append(f.said[:f.next], digest)
	f.next++
	return f.line(l)
}

func (c *Client) followBuild(ctx context.Context, id string, f *buildFollower) (*BuildEnd, error) {
	s, err := c.listen(ctx, get(Version, "builds", id, "logs"))
	if err != nil {
		return nil, err
	}
	defer s.close()
	f.begun, f.next = true, 0
	for {
		name, data, err := s.next()
		switch {
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		}
		switch name {
		case "log":
			var l BuildLog
			if err = decodeEvent(data, &l); err == nil {
				err = f.take(l)
			}
			if err != nil {
				f.over = true
				return nil, err
			}
		case "end":
			f.over = true
			end := new(BuildEnd)
			return end, decodeEvent(data, end)
		case "error":
			return nil, streamError(data)
		}
	}
}
