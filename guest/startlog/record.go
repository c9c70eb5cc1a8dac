// Package startlog keeps what a template's start command writes: process 1
// collects it, line by line, in a file of bounded size; the agent reads it.
package startlog

import (
	"bytes"
	"strings"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// A record is a line of the file: time, stream, F for a whole line or P for a
// piece that is continued, and the text as the command wrote it.
//
//	2026-11-20T16:10:00.123456Z stdout F listening on 8080
const timeFormat = "2006-01-02T15:04:05.000000Z"

const (
	whole   = 'F'
	partial = 'P'
)

func appendRecord(b []byte, now time.Time, stream string, tag byte, text []byte) []byte {
	b = now.UTC().AppendFormat(b, timeFormat)
	b = append(append(b, ' '), stream...)
	b = append(b, ' ', tag, ' ')
	b = append(b, text...)
	return append(b, '\n')
}

// parseRecord reads a record without its line end. One that makes no sense,
// because the disk was full or the tenant wrote it, is not ok.
func parseRecord(raw []byte) (line guestapi.LogLine, ok bool) {
	stamp, rest, _ := bytes.Cut(raw, []byte(" "))
	stream, rest, _ := bytes.Cut(rest, []byte(" "))
	if len(stamp) != len(timeFormat) || len(rest) < 2 || rest[1] != ' ' || (rest[0] != whole && rest[0] != partial) {
		return line, false
	}
	text := rest[2:]
	t, err := time.Parse(timeFormat, string(stamp))
	if err != nil || len(text) > guestapi.MaxLine {
		return line, false
	}
	line = guestapi.LogLine{Time: t, Line: strings.ToValidUTF8(string(text), "\uFFFD"), Partial: rest[0] == partial}
	switch string(stream) {
	case guestapi.StreamStdout:
		line.Stream = guestapi.StreamStdout
	case guestapi.StreamStderr:
		line.Stream = guestapi.StreamStderr
	default:
		return line, false
	}
	return line, true
}

// lines makes records of what a stream brings, in whatever pieces.
type lines struct {
	stream string
	held   []byte // the beginning of a line
}

// take appends the records of what became complete to b.
func (l *lines) take(b []byte, now time.Time, data []byte) []byte {
	for {
		text, rest, found := bytes.Cut(data, []byte("\n"))
		for len(l.held)+len(text) > guestapi.MaxLine {
			n := guestapi.MaxLine - len(l.held)
			l.held = append(l.held, text[:n]...)
			b = appendRecord(b, now, l.stream, partial, l.held)
			l.held, text = l.held[:0], text[n:]
		}
		if !found {
			l.held = append(l.held, text...)
			return b
		}
		if len(l.held) > 0 {
			l.held = append(l.held, text...)
			text = l.held
		}
		b = appendRecord(b, now, l.stream, whole, text)
		l.held, data = l.held[:0], rest
	}
}

// last appends the record of a last line without an end.
func (l *lines) last(b []byte, now time.Time) []byte {
	if len(l.held) > 0 {
		b = appendRecord(b, now, l.stream, whole, l.held)
		l.held = nil
	}
	return b
}
