package broker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/berth-cloud/berth/guest/pg/postgres"
	"github.com/berth-cloud/berth/guest/pg/tenant"
	"github.com/berth-cloud/berth/guest/pgapi"
)

// Routes adds the broker's to a mux.
func (b *Broker) Routes(mux *http.ServeMux) {
	mux.HandleFunc("POST "+pgapi.PathQuery, b.query)
	mux.HandleFunc("POST "+pgapi.PathBatch, b.batch)
	mux.HandleFunc("POST "+pgapi.PathTransaction, b.transaction)
	mux.HandleFunc("GET "+pgapi.PathSchema, b.schema)
}

// errTimeout is the cause of a context whose statement took too long.
var errTimeout = errors.New("the time-out passed")

func (b *Broker) query(w http.ResponseWriter, r *http.Request) {
	var q pgapi.Query
	if err := decode(w, r, &q); err != nil {
		refuse(w, err)
		return
	}
	ctx, cancel, err := timeout(r.Context(), q.TimeoutSeconds)
	if err != nil {
		refuse(w, err)
		return
	}
	defer cancel()
	s, err := b.acquire(ctx)
	if err != nil {
		refuse(w, err)
		return
	}
	if strings.Contains(r.Header.Get("Accept"), pgapi.NDJSON) {
		err := stream(ctx, w, s, q)
		b.release(s, err == nil || ctx.Err() == nil)
		return
	}
	rows := &collected{}
	out, err := s.run(ctx, q, rows)
	b.release(s, err == nil || ctx.Err() == nil)
	if err != nil {
		refuse(w, err)
		return
	}
	answer(w, http.StatusOK, rows.result(out))
}

// batch runs statements one by one, each for itself.
func (b *Broker) batch(w http.ResponseWriter, r *http.Request) {
	b.several(w, r, func(ctx context.Context, s *session, qs pgapi.Queries) (pgapi.BatchResults, error) {
		var done pgapi.BatchResults
		room := maxBytes
		for i, q := range qs.Queries {
			rows := &collected{used: maxBytes - room}
			out, err := s.run(ctx, q, rows)
			room = maxBytes - rows.used
			if err != nil {
				cut := ctx.Err() != nil || s.conn.IsClosed()
				if cut && i == 0 {
					return done, err
				}
				_, e := explain(err)
				done.Results = append(done.Results, pgapi.BatchResult{BatchError: &pgapi.BatchError{Error: e.Error, SQLState: e.SQLState, Detail: e.Detail}})
				if cut { // what is done stays so, and its caller is told
					for range qs.Queries[i+1:] {
						done.Results = append(done.Results, pgapi.BatchResult{BatchError: &pgapi.BatchError{Error: "not run: a statement before it was cut off", SQLState: e.SQLState}})
					}
					return done, nil
				}
				continue
			}
			result := rows.result(out)
			done.Results = append(done.Results, pgapi.BatchResult{Result: &result})
		}
		return done, nil
	})
}

// failed says which statement of a transaction failed.
type failed struct {
	error
	index int
}

func (f failed) Unwrap() error { return f.error }

// transaction runs statements all or none.
func (b *Broker) transaction(w http.ResponseWriter, r *http.Request) {
	b.several(w, r, func(ctx context.Context, s *session, qs pgapi.Queries) (pgapi.BatchResults, error) {
		var done pgapi.BatchResults
		if _, err := s.simple(ctx, "BEGIN"); err != nil {
			return done, err
		}
		used := 0
		for i, q := range qs.Queries {
			rows := &collected{used: used}
			out, err := s.run(ctx, q, rows)
			if err != nil {
				// A session that is closed has rolled back by itself.
				_, _ = s.simple(context.WithoutCancel(ctx), "ROLLBACK")
				return done, failed{err, i}
			}
			used = rows.used
			result := rows.result(out)
			done.Results = append(done.Results, pgapi.BatchResult{Result: &result})
		}
		tag, err := s.simple(ctx, "COMMIT")
		err = unresolved(err)
		if err == nil && tag != "COMMIT" {
			err = errors.New("the transaction was rolled back")
		}
		return done, err
	})
}

func (b *Broker) several(w http.ResponseWriter, r *http.Request, run func(context.Context, *session, pgapi.Queries) (pgapi.BatchResults, error)) {
	var qs pgapi.Queries
	if err := decode(w, r, &qs); err != nil {
		refuse(w, err)
		return
	}
	if len(qs.Queries) == 0 || len(qs.Queries) > maxQueries {
		refuse(w, fmt.Errorf("%w: %d queries: want 1 to %d", errRefused, len(qs.Queries), maxQueries))
		return
	}
	ctx, cancel, err := timeout(r.Context(), qs.TimeoutSeconds)
	if err != nil {
		refuse(w, err)
		return
	}
	defer cancel()
	s, err := b.acquire(ctx)
	if err != nil {
		refuse(w, err)
		return
	}
	done, err := run(ctx, s, qs)
	b.release(s, ctx.Err() == nil)
	if err != nil {
		refuse(w, err)
		return
	}
	answer(w, http.StatusOK, done)
}

// collected is a result in memory, within bounds.
type collected struct {
	cols []pgapi.Column
	rows [][]json.RawMessage
	used int // bytes
}

func (c *collected) columns(cols []pgapi.Column) error {
	c.cols = cols
	return nil
}

func (c *collected) row(row []json.RawMessage) (bool, error) {
	size := 0
	for _, v := range row {
		size += len(v) + 1
	}
	if len(c.rows) >= maxRows || c.used+size > maxBytes {
		return false, nil
	}
	c.used += size
	c.rows = append(c.rows, row)
	return true, nil
}

func (c *collected) result(out outcome) pgapi.Result {
	r := pgapi.Result{Columns: c.cols, Rows: c.rows, RowCount: out.affected, Command: out.command, Truncated: out.truncated}
	if r.Columns == nil {
		r.Columns = []pgapi.Column{}
	} else {
		r.RowCount = int64(len(c.rows))
	}
	if r.Rows == nil {
		r.Rows = [][]json.RawMessage{}
	}
	return r
}

// writeLimit is how long a reader of a stream may take for a part of it: it holds a
// session.
const writeLimit = 30 * time.Second

// lines writes a result as it comes.
type lines struct {
	w       *bufio.Writer
	control *http.ResponseController
	begun   bool
	rows    int64
}

func (l *lines) columns(cols []pgapi.Column) error {
	l.begun = true
	return l.line(struct {
		Columns []pgapi.Column `json:"columns"`
	}{cols})
}

func (l *lines) row(row []json.RawMessage) (bool, error) {
	l.rows++
	return true, l.line(row)
}

func (l *lines) line(v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_ = l.control.SetWriteDeadline(time.Now().Add(writeLimit))
	if _, err := l.w.Write(append(raw, '\n')); err != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	return nil
}

var errGone = errors.New("the caller does not read")

// stream answers with a line for each row, and has no bound but the time-out.
func stream(ctx context.Context, w http.ResponseWriter, s *session, q pgapi.Query) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w.Header().Set("Content-Type", pgapi.NDJSON)
	l := &lines{w: bufio.NewWriterSize(w, 32<<10), control: http.NewResponseController(w)}
	out, err := s.run(ctx, q, l)
	switch {
	case errors.Is(err, errGone):
		// The rest is not read either: what the statement did is not to last.
		s.conn.Conn().Close()
		return err
	case err != nil && !l.begun:
		w.Header().Del("Content-Type")
		refuse(w, err)
		return err
	case err != nil:
		_, e := explain(err)
		_ = l.line(pgapi.BatchError{Error: e.Error, SQLState: e.SQLState, Detail: e.Detail}) // it reaches the tenant as it is
	default:
		if !l.begun {
			_ = l.columns([]pgapi.Column{})
			l.rows = out.affected
		}
		_ = l.line(struct {
			RowCount int64  `json:"row_count"`
			Command  string `json:"command"`
		}{l.rows, out.command})
	}
	_ = l.w.Flush()
	return err
}

func timeout(ctx context.Context, seconds float64) (context.Context, context.CancelFunc, error) {
	d := defaultTimeout
	if seconds != 0 {
		d = time.Duration(seconds * float64(time.Second))
	}
	if !(seconds >= 0) || d <= 0 || d > maxTimeout {
		return nil, nil, fmt.Errorf("%w: timeout_seconds is %v: want up to %v", errRefused, seconds, maxTimeout.Seconds())
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d, errTimeout)
	return ctx, cancel, nil
}

func decode(w http.ResponseWriter, r *http.Request, into any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		if errors.As(err, new(*http.MaxBytesError)) {
			return err
		}
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: more than one JSON value", errRefused)
	}
	return nil
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the caller may have gone
}

func refuse(w http.ResponseWriter, err error) {
	if errors.Is(err, postgres.ErrNotServing) { // no session could be opened
		w.Header().Set(pgapi.HeaderRetryAfter, "1")
	}
	status, body := explain(err)
	answer(w, status, body)
}

// SQLSTATEs of what PostgreSQL has not said itself. A tenant's client tells errors apart
// by them alone.
const (
	stateInvalid   = "08P01" // protocol_violation
	stateTooMany   = "53300" // too_many_connections
	stateTooLarge  = "54000" // program_limit_exceeded
	stateNotReady  = "57P03" // cannot_connect_now
	stateCancelled = "57014" // query_canceled
	stateCut       = "08006" // connection_failure
	stateNoCatalog = "3D000" // invalid_catalog_name
)

// rotateHint is the remedy where the tenant has dropped or renamed its database.
const rotateHint = "reset the credentials (berth db rotate): then the broker uses the database that has the name by then, which is made if there is none"

// maxWords bounds what PostgreSQL's words of an error may have, in bytes: a function may
// raise as much as it likes.
const maxWords = 64 << 10

func short(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxWords)], "") }

// explain says what an error is to a caller, who is a tenant: PostgreSQL's words and
// ours, and nothing from within.
func explain(err error) (int, pgapi.Error) {
	e := pgapi.Error{Error: "internal error"}
	if at, ok := errors.AsType[failed](err); ok {
		e.Failed = &at.index
	}
	pg, isPG := errors.AsType[*pgconn.PgError](err)
	if isPG {
		e.Error, e.SQLState, e.Detail, e.Code = pg.Message, pg.Code, pg.Detail, pgapi.CodeRefused
		if pg.Hint != "" {
			e.Detail = strings.TrimSpace(e.Detail + "\n" + pg.Hint)
		}
		e.Error, e.Detail = short(e.Error), short(e.Detail)
	}
	set := func(status int, code, state, text string) (int, pgapi.Error) {
		e.Code = code
		if state != "" {
			e.SQLState = state
		}
		if text != "" {
			e.Error = text
		}
		return status, e
	}
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		return set(http.StatusRequestEntityTooLarge, pgapi.CodeInvalid, stateTooLarge, fmt.Sprintf("the request has more than %d bytes", maxBody))
	case errors.Is(err, errUnresolved) && errors.Is(err, errTimeout):
		return set(http.StatusRequestTimeout, pgapi.CodeTimeout, stateCut, errUnresolved.Error())
	case errors.Is(err, errUnresolved): // no 503, of which a caller takes that nothing was done
		return set(http.StatusBadGateway, pgapi.CodeCut, stateCut, errUnresolved.Error())
	case errors.Is(err, errTimeout):
		return set(http.StatusRequestTimeout, pgapi.CodeTimeout, stateCancelled, "the statement took longer than its time-out")
	case errors.Is(err, errRefused):
		return set(http.StatusBadRequest, pgapi.CodeInvalid, stateInvalid, err.Error())
	case errors.Is(err, errTooMany):
		return set(http.StatusServiceUnavailable, pgapi.CodeTooManyCall, stateTooMany, errTooMany.Error())
	case errors.Is(err, tenant.ErrNone):
		return set(http.StatusConflict, pgapi.CodeNoTenant, stateNotReady, tenant.ErrNone.Error())
	case errors.Is(err, tenant.ErrDropped):
		e.Detail = rotateHint
		return set(http.StatusConflict, pgapi.CodeNoTenant, stateNoCatalog, tenant.ErrDropped.Error())
	case errors.Is(err, postgres.ErrNotServing):
		return set(http.StatusServiceUnavailable, pgapi.CodeNotReady, stateNotReady, postgres.ErrNotServing.Error())
	case isPG && (strings.HasPrefix(pg.Code, "53") || strings.HasPrefix(pg.Code, "57P")):
		return set(http.StatusServiceUnavailable, pgapi.CodeNotReady, "", "")
	case isPG:
		return http.StatusBadRequest, e
	case errors.As(err, new(*pgproto3.ExceededMaxBodyLenErr)):
		return set(http.StatusBadRequest, pgapi.CodeInvalid, stateTooLarge, fmt.Sprintf("a row has more than %d bytes", maxMessage))
	}
	return set(http.StatusServiceUnavailable, pgapi.CodeCut, stateCut, "PostgreSQL ended the session")
}
