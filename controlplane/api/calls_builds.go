package api

import (
	"context"
	"errors"
	"hash/maphash"
	"io"
)

// FollowBuild calls line with each line of a build's log, from the first, until the
// build ends, and returns how it ended. If the stream breaks, it continues where it
// was, on another replica if necessary, without gaps or duplicates. If another host
// has started the build again, it skips the lines that are the same.
func (c *Client) FollowBuild(ctx context.Context, id string, line func(BuildLog) error) (*BuildEnd, error) {
	var end *BuildEnd
	err := c.followToEnd(ctx, get(Version, "builds", id, "logs"), func(s *said, name string, data []byte) (over bool, err error) {
		switch name {
		case "log":
			var l BuildLog
			if err := decodeEvent(data, &l); err != nil {
				return true, err
			}
			if s.again(l.Line) {
				return false, nil
			}
			if err := line(l); err != nil {
				return true, err
			}
		case "end":
			end = new(BuildEnd)
			return true, decodeEvent(data, end)
		}
		return false, nil
	})
	if err != nil {
		return nil, err
	}
	return end, nil
}

// followToEnd hands each event of a stream to event, which says when it is over, with or
// without an error. A stream that breaks before is opened again; every stream begins
// with the first line.
func (c *Client) followToEnd(ctx context.Context, cl call, event func(s *said, name string, data []byte) (over bool, err error)) error {
	s := said{seed: maphash.MakeSeed()}
	pause := firstPause
	for begun := false; ; {
		before := len(s.lines)
		over, err := c.followOnce(ctx, cl, &s, &begun, event)
		if over || ctx.Err() != nil || !passing(err, begun) {
			return err
		}
		if len(s.lines) > before {
			pause = firstPause
		}
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
		pause = min(2*pause, longPause)
	}
}

func (c *Client) followOnce(ctx context.Context, cl call, lines *said, begun *bool, event func(s *said, name string, data []byte) (bool, error)) (over bool, err error) {
	s, err := c.listen(ctx, cl)
	if err != nil {
		return false, err
	}
	defer s.close()
	*begun, lines.next = true, 0
	for {
		name, data, err := s.next()
		switch {
		case errors.Is(err, io.EOF):
			return false, io.ErrUnexpectedEOF
		case err != nil:
			return false, err
		case name == "error":
			return false, streamError(data)
		}
		if over, err := event(lines, name, data); over || err != nil {
			return over, err
		}
	}
}

// said are the lines that were delivered, which outlive a broken stream.
type said struct {
	seed  maphash.Seed
	lines []uint64 // digests
	next  int      // index of the line that the current stream should repeat next
}

// again reports whether a line repeats one. If not, it is one of them from now on.
func (s *said) again(line string) bool {
	digest := maphash.String(s.seed, line)
	if s.next < len(s.lines) && s.lines[s.next] == digest {
		s.next++
		return true
	}
	s.lines = append(s.lines[:s.next], digest)
	s.next++
	return false
}
