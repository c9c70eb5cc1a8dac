package pgapi

import (
	"fmt"
	"strconv"
	"strings"
)

// SegmentBytes is the size of a WAL segment: what initdb makes by default.
const SegmentBytes = 16 << 20

const segmentsPerLog = 1 << 32 / SegmentBytes // of the second eight digits

// WALName is a name that PostgreSQL gives to what it archives.
type WALName struct {
	Timeline uint32
	Segment  uint64 // number of the segment; 0 for a history file
	Kind     WALKind
}

// WALKind tells the names apart.
type WALKind int

// The kinds of file in an archive.
const (
	WALSegment WALKind = iota // 000000010000000000000002
	WALHistory                // 00000002.history
	WALBackup                 // 000000010000000000000002.00000028.backup
	WALPartial                // 000000010000000000000002.partial
)

// ParseWALName reads a name as strictly as PostgreSQL writes it.
func ParseWALName(name string) (WALName, error) {
	bad := func() (WALName, error) { return WALName{}, fmt.Errorf("%.64q is no name of a WAL file", name) }
	if tli, ok := strings.CutSuffix(name, ".history"); ok {
		n, ok := hex(tli, 8)
		if !ok || n == 0 {
			return bad()
		}
		return WALName{Timeline: uint32(n), Kind: WALHistory}, nil
	}
	if len(name) < 24 {
		return bad()
	}
	tli, ok1 := hex(name[:8], 8)
	log, ok2 := hex(name[8:16], 8)
	seg, ok3 := hex(name[16:24], 8)
	if !ok1 || !ok2 || !ok3 || tli == 0 || seg >= segmentsPerLog {
		return bad()
	}
	w := WALName{Timeline: uint32(tli), Segment: log*segmentsPerLog + seg}
	switch rest := name[24:]; {
	case rest == "":
		return w, nil
	case rest == ".partial":
		w.Kind = WALPartial
		return w, nil
	case len(rest) == len(".00000028.backup") && rest[0] == '.' && strings.HasSuffix(rest, ".backup"):
		if _, ok := hex(rest[1:9], 8); ok {
			w.Kind = WALBackup
			return w, nil
		}
	}
	return bad()
}

// SegmentName is the name of a WAL segment.
func SegmentName(timeline uint32, segment uint64) string {
	return fmt.Sprintf("%08X%08X%08X", timeline, segment/segmentsPerLog, segment%segmentsPerLog)
}

// hex reads n upper-case hexadecimal digits.
func hex(s string, n int) (uint64, bool) {
	if len(s) != n || strings.Trim(s, "0123456789ABCDEF") != "" {
		return 0, false
	}
	v, err := strconv.ParseUint(s, 16, 64)
	return v, err == nil
}
