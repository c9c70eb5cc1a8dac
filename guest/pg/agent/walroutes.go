package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-cloud/berth/guest/pg/basebackup"
	"github.com/berth-cloud/berth/guest/pg/postgres"
	"github.com/berth-cloud/berth/guest/pg/wal"
	"github.com/berth-cloud/berth/guest/pgapi"
)

func (a *Agent) getWALNext(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel, err := waiting(r)
	if err != nil {
		return err
	}
	defer cancel()
	file, ok := a.archive.Next(ctx)
	if !ok {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	answer(w, http.StatusOK, file)
	return nil
}

func walName(r *http.Request) (string, error) {
	name := r.PathValue("name")
	if _, err := pgapi.ParseWALName(name); err != nil {
		return "", fmt.Errorf("%w: %w", errInvalid, err)
	}
	return name, nil
}

func (a *Agent) getWAL(w http.ResponseWriter, r *http.Request) error {
	name, err := walName(r)
	if err != nil {
		return err
	}
	f, file, err := a.archive.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(file.Size, 10))
	w.Header().Set(pgapi.SHA256Header, file.SHA256)
	_, _ = io.Copy(w, f) // the length tells the host whether it has all
	return nil
}

func (a *Agent) postWALStored(w http.ResponseWriter, r *http.Request) error {
	name, err := walName(r)
	if err != nil {
		return err
	}
	var s pgapi.Stored
	if err := decode(w, r, &s); err != nil {
		return err
	}
	if err := a.archive.Stored(name, s.SHA256); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// maxSwitch bounds a Switch, in seconds.
const maxSwitch = 600

func (a *Agent) postSwitch(w http.ResponseWriter, r *http.Request) error {
	var s pgapi.Switch
	if err := decode(w, r, &s); err != nil {
		return err
	}
	if s.TimeoutSeconds < 1 || s.TimeoutSeconds > maxSwitch {
		return fmt.Errorf("%w: timeout_seconds is %d: want 1 to %d", errInvalid, s.TimeoutSeconds, maxSwitch)
	}
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(s.TimeoutSeconds)*time.Second)
	defer cancel()
	switched, err := a.switchWAL(ctx)
	if err == nil {
		answer(w, http.StatusOK, switched)
	}
	return err
}

// checkpoint makes a checkpoint, which may take longer than the platform's sessions have.
func checkpoint(ctx context.Context, conn *pgx.Conn) error {
	for _, sql := range []string{"SET statement_timeout = 0", "CHECKPOINT"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// switchWAL ends the current segment and waits until all before it is stored.
func (a *Agent) switchWAL(ctx context.Context) (pgapi.Switched, error) {
	conn, err := a.server.Connect(ctx)
	if err != nil {
		return pgapi.Switched{}, fmt.Errorf("%w: %w", postgres.ErrNotServing, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	done := pgapi.Switched{Pending: []string{}}
	var last string
	if err := checkpoint(ctx, conn); err != nil {
		return done, fmt.Errorf("%w: %w", postgres.ErrNotServing, err)
	}
	// The name is that of the segment before where the position is the start of one.
	if err := conn.QueryRow(ctx, "SELECT lsn::text, pg_walfile_name(lsn) FROM pg_switch_wal() lsn").Scan(&done.LSN, &last); err != nil {
		return done, fmt.Errorf("%w: switch WAL: %w", postgres.ErrNotServing, err)
	}
	upTo, err := pgapi.ParseWALName(last)
	if err != nil {
		return done, err
	}
	for {
		pending, err := a.archive.Pending()
		if err != nil {
			return done, err
		}
		done.Pending = done.Pending[:0]
		for _, p := range pending {
			if w, err := pgapi.ParseWALName(p.Name); err == nil && (w.Kind != pgapi.WALSegment || w.Segment <= upTo.Segment) {
				done.Pending = append(done.Pending, p.Name)
			}
		}
		if len(done.Pending) == 0 {
			return done, nil
		}
		select {
		case <-ctx.Done():
			return done, nil
		case <-time.After(10 * time.Millisecond): // PostgreSQL notes it after its command
		}
	}
}

func (a *Agent) postBackup(w http.ResponseWriter, r *http.Request) error {
	var b pgapi.Backup
	if err := decode(w, r, &b); err != nil {
		return err
	}
	if err := basebackup.Check(b); err != nil {
		return err
	}
	if a.restoring() {
		return errRestoring
	}
	if v, _ := a.server.View(); v.State != pgapi.StateReady {
		return fmt.Errorf("%w, or is read-only: it is %s", postgres.ErrNotServing, v.State)
	}
	conn, err := a.server.ConnectReplication(r.Context())
	if err != nil {
		return fmt.Errorf("%w: %w", postgres.ErrNotServing, err)
	}
	defer conn.Close(context.WithoutCancel(r.Context()))
	w.Header().Set("Content-Type", "application/x-tar")
	for _, name := range []string{pgapi.TrailerStartLSN, pgapi.TrailerStopLSN, pgapi.TrailerTimeline, pgapi.TrailerFiles, pgapi.TrailerBytes, pgapi.TrailerComplete} {
		w.Header().Add("Trailer", name)
	}
	info, err := basebackup.Stream(r.Context(), conn, b, w)
	if err != nil {
		a.cfg.Log.Error("base backup failed", "label", b.Label, "error", err)
		panic(http.ErrAbortHandler) // the host sees a stream that was cut
	}
	for name, value := range map[string]string{
		pgapi.TrailerStartLSN: info.StartLSN, pgapi.TrailerStopLSN: info.StopLSN,
		pgapi.TrailerTimeline: fmt.Sprint(info.Timeline), pgapi.TrailerFiles: fmt.Sprint(info.Files),
		pgapi.TrailerBytes: fmt.Sprint(info.DataBytes), pgapi.TrailerComplete: "true",
	} {
		w.Header().Set(name, value)
	}
	return nil
}

func (a *Agent) getFetchNext(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel, err := waiting(r)
	if err != nil {
		return err
	}
	defer cancel()
	f := a.fetch()
	if f == nil {
		return wal.ErrNoRestore
	}
	asked, ok := f.Next(ctx)
	if !ok {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	answer(w, http.StatusOK, asked)
	return nil
}

func (a *Agent) putFetch(w http.ResponseWriter, r *http.Request) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, pgapi.SegmentBytes+1))
	if err != nil {
		if errors.As(err, new(*http.MaxBytesError)) {
			return wal.ErrTooLarge
		}
		return fmt.Errorf("%w: %w", errInvalid, err)
	}
	return a.fetched(w, r, func(f *wal.Fetch, name string) error {
		return f.Provide(name, body, r.Header.Get(pgapi.SHA256Header))
	})
}

func (a *Agent) deleteFetch(w http.ResponseWriter, r *http.Request) error {
	return a.fetched(w, r, func(f *wal.Fetch, name string) error { return f.Missing(name) })
}

func (a *Agent) postFetchFailed(w http.ResponseWriter, r *http.Request) error {
	var failed pgapi.FetchFailed
	if err := decode(w, r, &failed); err != nil {
		return err
	}
	return a.fetched(w, r, func(f *wal.Fetch, name string) error { return f.Fail(name, errors.New(failed.Error)) })
}

func (a *Agent) fetched(w http.ResponseWriter, r *http.Request, answer func(*wal.Fetch, string) error) error {
	name, err := walName(r)
	if err != nil {
		return err
	}
	f := a.fetch()
	if f == nil {
		return wal.ErrNoRestore
	}
	if err := answer(f, name); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
