package database

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/pgarchive"
)

// Tenants see it, so it has nothing of what a bucket or a guest says.
func TestWhatIsSaidOfAnArchiveThatFails(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: errors.New("10.1.2.3:9000: connection refused")}
	for want, errs := range map[string][]error{
		hostapi.ArchiveCauseSilent:   {context.DeadlineExceeded, refused, errStalled, io.ErrUnexpectedEOF},
		hostapi.ArchiveCauseRefused:  {errors.New("AccessDenied: request id 4711 of s3.internal"), os.ErrPermission},
		hostapi.ArchiveCauseFull:     {errFull},
		hostapi.ArchiveCauseConflict: {pgarchive.ErrOtherBytes},
		hostapi.ArchiveCauseUnread:   {&guestFault{refused}, pgarchive.ErrCut},
		hostapi.ArchiveCauseDamaged + ": pg/x/1/wal/1": {
			&pgarchive.DamagedError{Object: "pg/x/1/wal/1", Cause: errors.New("it is missing")},
			errors.Join(&pgarchive.DamagedError{Object: "pg/x/1/wal/1", Cause: errors.New("x")}, errors.New("the key may be wrong")),
		},
	} {
		for _, err := range errs {
			if got := cause(fmt.Errorf("archive WAL: %w", err)); got != want {
				t.Errorf("%v: %q, want %q", err, got, want)
			}
			if got := trouble(&bucketFault{err}); got != want {
				t.Errorf("of a restore, %v: %q, want %q", err, got, want)
			}
		}
	}
	if got := trouble(fmt.Errorf("status: %w", refused)); got != hostapi.CauseMute {
		t.Errorf("of a guest that cannot be reached: %q", got)
	}
	said := &pgapi.Refusal{Status: 409, Body: pgapi.Error{Error: "it restores another backup"}}
	if got := trouble(fmt.Errorf("restore: %w", said)); got != said.Error() {
		t.Errorf("of a guest: %q", got)
	}
	if _, err := io.ReadAll(&fromGuest{r: io.MultiReader(strings.NewReader("x"), errReader{refused}), left: time.Hour, cut: func() {}}); cause(err) != hostapi.ArchiveCauseUnread {
		t.Errorf("what a guest sends: %v", err)
	}
}

// A guest that refuses a base backup before its end closes the stream: the bucket is not
// to blame.
func TestWhatIsSaidOfARefusedBaseBackup(t *testing.T) {
	said := &pgapi.Refusal{Status: 500, Body: pgapi.Error{Error: "PostgreSQL (process 190) does not end"}}
	guest := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer guest.Close()
	tar, w := io.Pipe()
	read := make(chan error, 1)
	go func() {
		_, err := io.Copy(w, endless{})
		read <- err
	}()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, guest.URL, tar)
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := guest.Client().Do(req); err == nil {
		_ = resp.Body.Close()
	}
	readErr := <-read
	if got := trouble(notBrought(readErr, said)); got != said.Error() {
		t.Errorf("after %v: %q", readErr, got)
	}
	if got := trouble(notBrought(os.ErrPermission, said)); got != hostapi.ArchiveCauseRefused {
		t.Errorf("of the bucket: %q", got)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// next is the name of the segment that a database archives next.
func next(t *testing.T, h *host) string {
	t.Helper()
	h.bucket.set(true)
	st := h.await(t, idA, "failing", func(st *hostapi.DatabaseState) bool { return !st.Archive.FailingSince.IsZero() })
	return pgapi.SegmentName(1, parseLSN(st.Archive.LastLSN).segment()+1)
}

func TestADamagedObjectDoesNotEndTheArchive(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	g := live(t, h, idA, one)
	written := parseLSN(g.sql(t, "CREATE TABLE t AS SELECT 1 AS x; SELECT pg_current_wal_insert_lsn()"))
	path := filepath.Join(h.dir, "pg", filepath.FromSlash(one), "wal", next(t, h))
	if _, err := os.Stat(path); err == nil {
		t.Fatal("it is archived by now")
	}
	must(t, os.WriteFile(path, []byte("half of a segment"), 0o600))
	h.bucket.set(false)
	h.await(t, idA, "archived", func(st *hostapi.DatabaseState) bool {
		return st.Archive.Error == "" && st.Archive.FailingSince.IsZero() && parseLSN(st.Archive.LastLSN) >= written
	})
	families, err := h.metrics.Gather()
	must(t, err)
	mends := 0.0
	for _, f := range families {
		if f.GetName() == "berth_hostd_database_wal_mended_total" {
			mends = f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	if mends != 1 {
		t.Errorf("%g files were written anew, want 1", mends)
	}
}

// PostgreSQL breaks a base backup off where a page's checksum is another. Its owner is told
// until one is made, and not that the bucket were to blame.
func TestADamagedPageIsSaidUntilABaseBackupIsMade(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	g := live(t, h, idA, one)
	page := filepath.Join(g.cfg.Postgres.Data(), g.sql(t, "CREATE TABLE t AS SELECT 1 AS x; SELECT pg_relation_filepath('t')"))
	must(t, second(h.Switch(t.Context(), idA))) // it writes the page
	flip := func() {
		t.Helper()
		raw, err := os.ReadFile(page)
		must(t, err)
		raw[len(raw)-1] ^= 1
		must(t, os.WriteFile(page, raw, 0o600))
	}
	flip()
	must(t, h.Backup(idA))
	st := h.await(t, idA, "told to have no base backup", func(st *hostapi.DatabaseState) bool { return !st.Archive.BackupsFailingSince.IsZero() })
	if a := st.Archive; a.BackupError != hostapi.ArchiveCauseUncopied || !a.FailingSince.IsZero() || a.Error != "" {
		t.Errorf("archive = %+v", a)
	}
	flip()
	must(t, h.Backup(idA))
	h.await(t, idA, "backed up", func(st *hostapi.DatabaseState) bool {
		return st.Archive.BackupsFailingSince.IsZero() && st.Archive.BackupError == "" && st.Archive.BaseBackups == 2
	})
}

// The bucket is to blame for a base backup that it does not take.
func TestABucketThatTakesNoBaseBackup(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	live(t, h, idA, one)
	h.bucket.mu.Lock()
	h.bucket.full = true
	h.bucket.mu.Unlock()
	must(t, h.Backup(idA))
	st := h.await(t, idA, "told to have no base backup", func(st *hostapi.DatabaseState) bool { return !st.Archive.BackupsFailingSince.IsZero() })
	if st.Archive.BackupError != hostapi.ArchiveCauseRefused {
		t.Errorf("archive = %+v", st.Archive)
	}
}

func TestOtherWALUnderAFilesNameStays(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	g := live(t, h, idA, one)
	g.sql(t, "CREATE TABLE t AS SELECT 1 AS x")
	name := next(t, h)
	content := make([]byte, pgapi.SegmentBytes)
	sum := sha256.Sum256(content)
	a, err := pgarchive.New(h.bucket.Bucket).Open(archive(one))
	must(t, err)
	file := pgapi.WALFile{Name: name, Size: pgapi.SegmentBytes, SHA256: hex.EncodeToString(sum[:]), WrittenAt: time.Now()}
	must(t, second(a.PutWAL(t.Context(), file, bytes.NewReader(content))))
	h.bucket.set(false)
	st := h.await(t, idA, "refused", func(st *hostapi.DatabaseState) bool { return st.Archive.Error == hostapi.ArchiveCauseConflict })
	if st.Archive.FailingSince.IsZero() {
		t.Errorf("archive = %+v", st.Archive)
	}
	if got, _, err := a.WAL(t.Context(), name); err != nil || !bytes.Equal(got, content) {
		t.Errorf("what was there is not: %v", err)
	}
}
