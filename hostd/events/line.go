package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Every file of events is lines of text: eight hex digits, a space, JSON, a
// newline. The digits are the CRC-32C of the JSON. Text, so that an operator
// can read it; checksummed, because it is not synced and a power cut may leave
// anything behind.

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// entry is one line.
type entry struct {
	hostapi.Event
	Key string `json:"key,omitempty"` // of an event of the control plane's
}

func (e *entry) line() ([]byte, error) {
	raw, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode event: %w", err)
	}
	return fmt.Appendf(make([]byte, 0, len(raw)+10), "%08x %s\n", crc32.Checksum(raw, castagnoli), raw), nil
}

var errDamaged = errors.New("damaged line")

// parse reads a line without its newline.
func parse(line []byte) (entry, error) {
	var e entry
	sum, body, ok := bytes.Cut(line, []byte{' '})
	if !ok || len(sum) != 8 {
		return e, errDamaged
	}
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if err != nil || crc32.Checksum(body, castagnoli) != uint32(want) {
		return e, errDamaged
	}
	if json.Unmarshal(body, &e) != nil || e.Seq == 0 || e.Time.IsZero() {
		return e, errDamaged
	}
	return e, nil
}

// scan visits every good line, with the offset of its end. It returns how many
// were bad and where the last whole line ends; a line without its end counts as
// bad.
func scan(raw []byte, visit func(e entry, end int64)) (damaged int, end int64) {
	for line := range bytes.Lines(raw) {
		text, whole := bytes.CutSuffix(line, []byte{'\n'})
		if !whole {
			return damaged + 1, end
		}
		end += int64(len(line))
		if e, err := parse(text); err != nil {
			damaged++
		} else {
			visit(e, end)
		}
	}
	return damaged, end
}
