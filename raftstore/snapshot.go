package raftstore

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/hashicorp/go-memdb"
	"github.com/hashicorp/raft"

	"github.com/berth-cloud/berth/raftstore/record"
)

// A snapshot is the magic with a version byte, the state's Raft index, the
// tables that have rows sorted by name with their rows sorted by id, and a
// trailer of the row count and a SHA-256 of everything before it. DESIGN.md has
// the layout.
const (
	snapshotMagic   = "BERTHST"
	snapshotVersion = 1

	maxSnapshotField = 64 << 20 // bytes; far above what a log entry can carry
)

var errSnapshot = errors.New("bad snapshot")

// fsmSnapshot is a state on its way to a file.
type fsmSnapshot struct {
	view     *Snapshot
	counters *counters
}

// Persist implements raft.FSMSnapshot.
func (s *fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	n, err := writeSnapshot(sink, s.view)
	if err != nil {
		return errors.Join(fmt.Errorf("write snapshot: %w", err), sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return fmt.Errorf("finish snapshot: %w", err)
	}
	s.counters.snapshots.Add(1)
	s.counters.snapshotBytes.Store(n)
	return nil
}

// Release implements raft.FSMSnapshot.
func (*fsmSnapshot) Release() {}

// writeSnapshot writes a state and returns its size in bytes.
func writeSnapshot(dst io.Writer, v *Snapshot) (int64, error) {
	sum := sha256.New()
	w := &snapshotWriter{buf: bufio.NewWriterSize(io.MultiWriter(dst, sum), 64<<10)}
	w.raw([]byte(snapshotMagic))
	w.raw([]byte{snapshotVersion})
	w.uvarint(v.index)
	// An empty table is left out: a replica that does not know it yet refuses
	// its name, and has no reason to before there is a row.
	tables, rowsOf := make([]*table, 0, len(v.set.sorted)), make([][]*stored, 0, len(v.set.sorted))
	for _, t := range v.set.sorted {
		if rows := t.all(v.txn); len(rows) > 0 {
			tables, rowsOf = append(tables, t), append(rowsOf, rows)
		}
	}
	w.uvarint(uint64(len(tables)))
	var total uint64
	for i, t := range tables {
		rows := rowsOf[i]
		w.field([]byte(t.name))
		w.uvarint(uint64(len(rows)))
		for _, s := range rows {
			w.field(s.id)
			w.varint(s.meta.CreatedAt.UnixNano())
			w.varint(s.meta.UpdatedAt.UnixNano())
			w.uvarint(s.meta.CreateIndex)
			w.uvarint(s.meta.ModifyIndex)
			w.field(s.payload)
		}
		total += uint64(len(rows))
	}
	w.raw(binary.BigEndian.AppendUint64(nil, total))
	if err := w.buf.Flush(); err != nil {
		return 0, err
	}
	if _, err := dst.Write(sum.Sum(nil)); err != nil {
		return 0, err
	}
	return w.n + sha256.Size, nil
}

// snapshotWriter writes fields; bufio keeps the first error until Flush.
type snapshotWriter struct {
	buf *bufio.Writer
	n   int64
	tmp [binary.MaxVarintLen64]byte
}

func (w *snapshotWriter) raw(b []byte) {
	n, _ := w.buf.Write(b)
	w.n += int64(n)
}

func (w *snapshotWriter) uvarint(v uint64) { w.raw(binary.AppendUvarint(w.tmp[:0], v)) }
func (w *snapshotWriter) varint(v int64)   { w.raw(binary.AppendVarint(w.tmp[:0], v)) }
func (w *snapshotWriter) field(b []byte)   { w.uvarint(uint64(len(b))); w.raw(b) }

// readSnapshot builds a database from a snapshot, or refuses the whole of it.
func readSnapshot(src io.Reader, set *tableSet) (*memdb.MemDB, uint64, error) {
	db, err := set.newDB()
	if err != nil {
		return nil, 0, err
	}
	r := &snapshotReader{buf: bufio.NewReaderSize(src, 64<<10), sum: sha256.New()}
	head := r.raw(len(snapshotMagic) + 1)
	if r.err == nil && string(head[:len(snapshotMagic)]) != snapshotMagic {
		r.fail("not a snapshot of this store")
	}
	if r.err == nil && head[len(snapshotMagic)] != snapshotVersion {
		r.fail("unknown format version %d", head[len(snapshotMagic)])
	}
	index := r.uvarint()
	tables := r.uvarint()
	w := db.Txn(true)
	defer w.Abort() // no effect after the commit below
	var total uint64
	last := ""
	for n := uint64(0); n < tables && r.err == nil; n++ {
		name := string(r.field())
		t := set.byName[name]
		switch {
		case r.err != nil:
		case name <= last:
			r.fail("table %q out of order", name)
		case t == nil:
			r.fail("unknown table %q", name)
		default:
			total += r.table(w, t, index)
		}
		last = name
	}
	count := r.raw(8)
	want := r.sum.Sum(nil)
	got := r.raw(sha256.Size)
	if r.err == nil && !bytes.Equal(want, got) {
		r.fail("checksum does not match")
	}
	if r.err == nil && binary.BigEndian.Uint64(count) != total {
		r.fail("%d rows, the trailer says %d", total, binary.BigEndian.Uint64(count))
	}
	if r.err == nil {
		if _, err := r.buf.ReadByte(); !errors.Is(err, io.EOF) {
			r.fail("bytes after the end")
		}
	}
	if r.err != nil {
		return nil, 0, r.err
	}
	w.Commit()
	return db, index, nil
}

// table reads the rows of one table and returns how many they are.
func (r *snapshotReader) table(w *memdb.Txn, t *table, index uint64) uint64 {
	rows := r.uvarint()
	last := ""
	for n := uint64(0); n < rows && r.err == nil; n++ {
		meta := record.Meta{ID: string(r.field())}
		meta.CreatedAt = time.Unix(0, r.varint()).UTC()
		meta.UpdatedAt = time.Unix(0, r.varint()).UTC()
		meta.CreateIndex, meta.ModifyIndex = r.uvarint(), r.uvarint()
		payload := r.field()
		if r.err != nil {
			break
		}
		if meta.ID <= last {
			r.fail("row %q of %s out of order", meta.ID, t.name)
			break
		}
		last = meta.ID
		if meta.CreateIndex > meta.ModifyIndex || meta.ModifyIndex > index {
			r.fail("row %q of %s is newer than the snapshot", meta.ID, t.name)
			break
		}
		s, err := t.load(meta, payload)
		if err != nil {
			r.fail("%v", err)
			break
		}
		for i, ix := range t.indexes {
			for _, key := range s.keys[i] {
				if ix.unique && t.holderOf(w, i, key) != nil {
					r.fail("row %q of %s: index %s has %q twice", meta.ID, t.name, ix.name, indexValue(key))
				}
			}
		}
		if r.err == nil {
			mustWrite(w.Insert(t.name, s))
		}
	}
	return rows
}

// snapshotReader reads and sums fields; after the first error it only yields
// zero values.
type snapshotReader struct {
	buf *bufio.Reader
	sum hash.Hash
	one [1]byte
	err error
}

func (r *snapshotReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", errSnapshot, fmt.Sprintf(format, args...))
	}
}

func (r *snapshotReader) raw(n int) []byte {
	if r.err != nil {
		return nil
	}
	// Grown as bytes arrive: a damaged length must not set aside memory.
	var b bytes.Buffer
	if _, err := io.CopyN(&b, r.buf, int64(n)); err != nil {
		r.readFailed(err)
		return nil
	}
	r.sum.Write(b.Bytes())
	return b.Bytes()
}

func (r *snapshotReader) readFailed(err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		r.fail("truncated")
	} else if r.err == nil {
		r.err = fmt.Errorf("read snapshot: %w", err)
	}
}

// ReadByte lets the varint functions read summed bytes.
func (r *snapshotReader) ReadByte() (byte, error) {
	b, err := r.buf.ReadByte()
	if err == nil {
		r.one[0] = b
		r.sum.Write(r.one[:])
	}
	return b, err
}

func (r *snapshotReader) uvarint() uint64 {
	if r.err != nil {
		return 0
	}
	v, err := binary.ReadUvarint(r)
	if err != nil {
		r.numberFailed(err)
	}
	return v
}

func (r *snapshotReader) varint() int64 {
	if r.err != nil {
		return 0
	}
	v, err := binary.ReadVarint(r)
	if err != nil {
		r.numberFailed(err)
	}
	return v
}

func (r *snapshotReader) numberFailed(err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		r.fail("truncated")
		return
	}
	r.fail("bad number: %v", err)
}

func (r *snapshotReader) field() []byte {
	n := r.uvarint()
	if n > maxSnapshotField {
		r.fail("field of %d bytes", n)
	}
	return r.raw(int(n))
}
