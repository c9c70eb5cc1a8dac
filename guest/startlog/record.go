// Package startlog keeps what a template's start command writes: process 1
// writes it, line by line, to a file of bounded size; the agent reads it.
package startlog

import (
	"bufio"
	"bytes"
	"errors"
	"io"
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

// maxRecord is the longest record, in bytes.
const maxRecord = len(timeFormat) + len(" stdout F ") + guestapi.MaxLine + 1

func appendRecord(b []byte, now time.Time, stream string, tag byte, text []byte) []byte {
	b = now.UTC().AppendFormat(b, timeFormat)
	b = append(append(b, ' '), stream...)
	b = append(b, ' ', tag, ' ')
	b = append(b, text...)
	return append(b, '\n')
}

// parseRecord reads a record. A damaged one, after a full disk or written by the
// workload, is not ok.
func parseRecord(raw []byte) (line guestapi.LogLine, ok bool) {
	raw, ended := bytes.CutSuffix(raw, []byte("\n"))
	parts := bytes.SplitN(raw, []byte(" "), 4)
	if !ended || len(parts) != 4 || len(parts[0]) != len(timeFormat) || len(parts[2]) != 1 || len(parts[3]) > guestapi.MaxLine {
		return line, false
	}
	stream, tag := string(parts[1]), parts[2][0]
	if stream != guestapi.StreamStdout && stream != guestapi.StreamStderr || tag != whole && tag != partial {
		return line, false
	}
	t, err := time.Parse(timeFormat, string(parts[0]))
	return guestapi.LogLine{Time: t, Stream: stream, Line: strings.ToValidUTF8(string(parts[3]), "\uFFFD"), Partial: tag == partial}, err == nil
}

// toRecords passes what comes out of a stream to write until its end: the
// records of all lines that are there at once.
func toRecords(from io.Reader, stream string, now func() time.Time, write func(records []byte)) {
	in := bufio.NewReaderSize(from, guestapi.MaxLine+1) // the longest line and its end
	var records []byte
	for {
		text, err := in.ReadSlice('\n')
		switch {
		case err == nil:
			records = appendRecord(records, now(), stream, whole, text[:len(text)-1])
		case errors.Is(err, bufio.ErrBufferFull):
			_ = in.UnreadByte()
			records = appendRecord(records, now(), stream, partial, text[:guestapi.MaxLine])
		case len(text) > 0:
			records = appendRecord(records, now(), stream, whole, text)
		}
		next, _ := in.Peek(in.Buffered())
		if len(records) > 0 && bytes.IndexByte(next, '\n') < 0 {
			write(records)
			records = records[:0]
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}
