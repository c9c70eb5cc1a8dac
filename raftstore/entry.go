package raftstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// entryVersion is the format of the log entries written today. An entry holds
// one or more transactions, each with its own outcome. DESIGN.md has the
// layout; testdata/golden has an entry of every version ever written.
const entryVersion = 1

// opKind says what an operation does. The numbers are in logs: never reuse one.
type opKind byte

const (
	opPut        opKind = 1 // insert or replace a row
	opDelete     opKind = 2 // delete a row
	opCheckRow   opKind = 3 // only the guard: the row is as it was read
	opCheckRange opKind = 4 // only the guard: a listing is as it was read
)

// txn is the effect of one transaction: all of it is applied, or nothing.
type txn struct {
	time   time.Time // the leader's clock when it ran
	ops    []op      // at most one a row
	ranges []rangeGuard
}

// op is a guarded change of one row, or a guard alone.
type op struct {
	kind    opKind
	table   string
	id      string
	ifIndex uint64 // ModifyIndex the row must have; 0: there must be no such row
	payload []byte // opPut: the row as JSON
}

// rangeGuard pins the result of a listing. Rows are only ever changed under a
// rising index, so that an equal count with an equal highest ModifyIndex means
// equal rows: every row there now was there, unchanged, when the listing was
// read, and none is missing.
type rangeGuard struct {
	table string
	index string // empty: the whole table
	value string
	count uint64
	max   uint64
}

var errMalformed = errors.New("malformed log entry")

// appendTxn encodes one transaction; an entry is a header and transactions.
func appendTxn(b []byte, t *txn) []byte {
	b = binary.AppendVarint(b, t.time.UnixNano())
	b = binary.AppendUvarint(b, uint64(len(t.ops)+len(t.ranges)))
	for i := range t.ops {
		o := &t.ops[i]
		b = append(b, byte(o.kind))
		b = appendString(b, o.table)
		b = appendString(b, o.id)
		b = binary.AppendUvarint(b, o.ifIndex)
		if o.kind == opPut {
			b = appendString(b, o.payload)
		}
	}
	for i := range t.ranges {
		g := &t.ranges[i]
		b = append(b, byte(opCheckRange))
		b = appendString(b, g.table)
		b = appendString(b, g.index)
		b = appendString(b, g.value)
		b = binary.AppendUvarint(b, g.count)
		b = binary.AppendUvarint(b, g.max)
	}
	return b
}

// appendEntryHeader begins an entry of n transactions.
func appendEntryHeader(b []byte, n int) []byte {
	return binary.AppendUvarint(append(b, entryVersion), uint64(n))
}

func appendString[S string | []byte](b []byte, s S) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// decodeEntry is the inverse. It accepts nothing that an encoder of a known
// version would not have written. The payloads point into data.
func decodeEntry(data []byte) ([]txn, error) {
	if len(data) == 0 {
		return nil, fmt.Errorf("%w: empty", errMalformed)
	}
	if data[0] != entryVersion {
		return nil, fmt.Errorf("%w: unknown format version %d", errMalformed, data[0])
	}
	d := decoder{rest: data[1:]}
	n := d.count()
	if n == 0 {
		d.fail("no transactions")
	}
	txns := make([]txn, 0, min(n, 256))
	for range n {
		if d.err != nil {
			break
		}
		txns = append(txns, d.txn())
	}
	if d.err == nil && len(d.rest) > 0 {
		d.fail("%d bytes after the end", len(d.rest))
	}
	if d.err != nil {
		return nil, d.err
	}
	return txns, nil
}

// decoder reads fields off a byte slice; after the first error it only yields
// zero values.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", errMalformed, fmt.Sprintf(format, args...))
		d.rest = nil
	}
}

func (d *decoder) txn() txn {
	t := txn{time: time.Unix(0, d.varint()).UTC()}
	n := d.count()
	t.ops = make([]op, 0, min(n, 64))
	for range n {
		kind := opKind(d.byte())
		switch kind {
		case opPut, opDelete, opCheckRow:
			o := op{kind: kind, table: d.string(), id: d.string(), ifIndex: d.uvarint()}
			if kind == opPut {
				o.payload = d.bytes()
			}
			if o.id == "" {
				d.fail("a row without an id")
			}
			t.ops = append(t.ops, o)
		case opCheckRange:
			t.ranges = append(t.ranges, rangeGuard{
				table: d.string(), index: d.string(), value: d.string(), count: d.uvarint(), max: d.uvarint(),
			})
		default:
			d.fail("unknown operation %d", kind)
		}
		if d.err != nil {
			return txn{}
		}
	}
	if len(t.ops) > 1 {
		seen := make(map[rowKey]bool, len(t.ops))
		for i := range t.ops {
			k := rowKey{t.ops[i].table, t.ops[i].id}
			if seen[k] {
				d.fail("row %s of %s twice in a transaction", k.id, k.table)
				return txn{}
			}
			seen[k] = true
		}
	}
	return t
}

// count reads a number of things that take at least a byte each, so that a
// damaged count is refused before memory is set aside for it.
func (d *decoder) count() uint64 {
	n := d.uvarint()
	if n > uint64(len(d.rest)) {
		d.fail("count %d is larger than the entry", n)
		return 0
	}
	return n
}

func (d *decoder) byte() byte {
	if len(d.rest) == 0 {
		d.fail("truncated")
		return 0
	}
	b := d.rest[0]
	d.rest = d.rest[1:]
	return b
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 {
		d.fail("bad number")
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.rest)
	if n <= 0 {
		d.fail("bad number")
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) bytes() []byte {
	n := d.uvarint()
	if n > uint64(len(d.rest)) {
		d.fail("truncated")
		return nil
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) string() string { return string(d.bytes()) }
