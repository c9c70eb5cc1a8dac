// Package basebackup takes a running server's data as one tar stream, and puts such
// a stream back in the place of a server's data, checked file by file.
package basebackup

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/berth-cloud/berth/guest/pgapi"
)

// ErrInvalid is wrapped by what is wrong with a request.
var ErrInvalid = errors.New("invalid backup request")

// Bounds of a backup.
const (
	minRateK    = 32      // PostgreSQL's own, in kB a second
	maxRateK    = 1 << 20 //
	maxManifest = 64 << 20
)

// manifestFile is PostgreSQL's list of what a backup holds. It comes last.
const manifestFile = "backup_manifest"

var label = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,64}$`)

// Check says what is wrong with a request.
func Check(b pgapi.Backup) error {
	if !label.MatchString(b.Label) {
		return fmt.Errorf("%w: label is %.80q: want up to 64 of A-Z, a-z, 0-9 and . _ : -", ErrInvalid, b.Label)
	}
	if b.MaxRateK != 0 && (b.MaxRateK < minRateK || b.MaxRateK > maxRateK) {
		return fmt.Errorf("%w: max_rate_kb is %d: want %d to %d", ErrInvalid, b.MaxRateK, minRateK, maxRateK)
	}
	return nil
}

// Stream writes a base backup as one tar stream, whose last entry is the manifest.
// The session speaks the replication protocol. When the stream fails or ctx ends, the
// session is cut, and so the server gives the backup up.
func Stream(ctx context.Context, conn *pgconn.PgConn, b pgapi.Backup, w io.Writer) (info pgapi.BackupInfo, err error) {
	if err := Check(b); err != nil {
		return pgapi.BackupInfo{}, err
	}
	defer func() {
		if err != nil {
			conn.Conn().Close() // an orderly end would wait for all that is on its way
		}
	}()
	// It does not wait for the WAL up to its stop to be archived: an archive that has
	// reached its quota takes that only once it has the base backup.
	options := "LABEL '" + b.Label + "', WAL false, WAIT false, CHECKPOINT 'fast', MANIFEST 'yes', MANIFEST_CHECKSUMS 'CRC32C'"
	if b.MaxRateK > 0 {
		options += ", MAX_RATE " + strconv.Itoa(b.MaxRateK)
	}
	conn.Frontend().SendQuery(&pgproto3.Query{String: "BASE_BACKUP (" + options + ")"})
	if err := conn.Frontend().Flush(); err != nil {
		return pgapi.BackupInfo{}, fmt.Errorf("ask for a base backup: %w", err)
	}
	s := stream{out: w}
	for {
		message, err := conn.ReceiveMessage(ctx)
		if err != nil {
			return pgapi.BackupInfo{}, fmt.Errorf("base backup: %w", err)
		}
		done, err := s.take(message)
		if err != nil {
			return pgapi.BackupInfo{}, fmt.Errorf("base backup: %w", err)
		}
		if done {
			return s.info, nil
		}
	}
}

// stream is a base backup on its way; the protocol is that of PostgreSQL 15 and later
// (protocol-replication, BASE_BACKUP).
type stream struct {
	out      io.Writer
	result   int // of the results with rows, how many are complete
	archives int
	inside   bool   // of the manifest
	tail     []byte // of the archive, held back: it ends with two blocks of zeros
	manifest bytes.Buffer
	info     pgapi.BackupInfo
	wrote    bool // all is
}

func (s *stream) take(message pgproto3.BackendMessage) (done bool, err error) {
	switch m := message.(type) {
	case *pgproto3.ErrorResponse:
		return false, pgconn.ErrorResponseToPgError(m)
	case *pgproto3.DataRow:
		return false, s.row(m.Values)
	case *pgproto3.RowDescription:
		s.result++
	case *pgproto3.CopyData:
		return false, s.data(m.Data)
	case *pgproto3.CopyDone:
		return false, s.finish()
	case *pgproto3.ReadyForQuery:
		if !s.wrote || s.info.StopLSN == "" {
			return false, errors.New("it ended early")
		}
		return true, nil
	}
	return false, nil
}

// row takes one of the results: where the backup starts, the tablespaces, where it ends.
func (s *stream) row(values [][]byte) error {
	if len(values) < 2 {
		return errors.New("a result that no PostgreSQL 16 gives")
	}
	switch s.result {
	case 1:
		timeline, err := strconv.ParseUint(string(values[1]), 10, 32)
		if err != nil {
			return err
		}
		s.info.StartLSN, s.info.Timeline = string(values[0]), uint32(timeline)
	case 2:
		if values[0] != nil {
			return fmt.Errorf("a tablespace at %.100q: none is taken", values[1])
		}
	case 3:
		s.info.StopLSN = string(values[0])
	}
	return nil
}

const endOfTar = 1024

func (s *stream) data(raw []byte) error {
	if len(raw) == 0 {
		return errors.New("an empty message")
	}
	kind, raw := raw[0], raw[1:]
	switch kind {
	case 'n':
		if s.archives++; s.archives > 1 {
			return errors.New("a second archive")
		}
	case 'm':
		if len(s.tail) != endOfTar || len(bytes.Trim(s.tail, "\x00")) > 0 {
			return errors.New("the archive has no end")
		}
		s.inside, s.tail = true, nil
	case 'd':
		if s.inside {
			if s.manifest.Len()+len(raw) > maxManifest {
				return fmt.Errorf("the manifest has more than %d bytes", maxManifest)
			}
			s.manifest.Write(raw)
			return nil
		}
		return s.archive(raw)
	}
	return nil
}

// archive writes all but the last two blocks of what came so far.
func (s *stream) archive(raw []byte) error {
	if len(raw) >= endOfTar {
		if err := s.write(s.tail); err != nil {
			return err
		}
		cut := len(raw) - endOfTar
		s.tail = append(s.tail[:0], raw[cut:]...)
		return s.write(raw[:cut])
	}
	s.tail = append(s.tail, raw...)
	cut := max(0, len(s.tail)-endOfTar)
	if err := s.write(s.tail[:cut]); err != nil {
		return err
	}
	s.tail = append(s.tail[:0], s.tail[cut:]...)
	return nil
}

func (s *stream) write(raw []byte) error {
	if len(raw) == 0 {
		return nil
	}
	_, err := s.out.Write(raw)
	return err
}

// finish adds the manifest to the archive.
func (s *stream) finish() error {
	m, err := parseManifest(s.manifest.Bytes())
	if err != nil {
		return err
	}
	s.info.Files = len(m.files)
	for _, f := range m.files {
		s.info.DataBytes += f.size
	}
	tw := tar.NewWriter(s.out)
	if err := tw.WriteHeader(&tar.Header{Name: manifestFile, Mode: 0o600, Size: int64(s.manifest.Len())}); err != nil {
		return err
	}
	if _, err := tw.Write(s.manifest.Bytes()); err != nil {
		return err
	}
	s.wrote = true
	return tw.Close()
}
