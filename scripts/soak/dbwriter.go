package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/berth-cloud/berth/timescale"
)

// commitPause is the time between two commits of a writer.
const commitPause = 100 * time.Millisecond

var (
	// commitTime bounds one statement: a box may be frozen.
	commitTime = timescale.Limit(15 * time.Second)
	// connectTime covers a wake.
	connectTime = timescale.Limit(time.Minute)
)

// writer commits numbered rows, one at a time. It keeps its connection for as long as
// that works: two of them in one database show whether an old box still accepts
// commits when another one serves.
type writer struct {
	db     *managed
	random *rand.Rand
	conn   *pgx.Conn
	last   int64 // the row that was acknowledged last on this connection
}

// work commits until ctx ends.
func (w *writer) work(ctx context.Context) {
	defer func() {
		w.db.gate.RLock()
		defer w.db.gate.RUnlock()
		w.close()
	}()
	for wait(ctx, upTo(w.random, 2*commitPause)) {
		w.db.gate.RLock()
		err := w.commit(ctx)
		if err != nil {
			w.close()
		}
		w.db.gate.RUnlock()
		if err != nil {
			wait(ctx, 10*commitPause)
		}
	}
}

// close lets go of the connection; the next commit makes another. Its caller has the
// gate.
func (w *writer) close() {
	if w.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = w.conn.Close(ctx)
	w.conn, w.last = nil, 0
}

// Of one statement, for what it wrote: a position in the WAL before its commit, and
// the timeline on which it is.
const insert = `INSERT INTO soak (n) VALUES ($1) RETURNING pg_current_wal_insert_lsn() - '0/0'::pg_lsn, substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)`

// commit commits one row.
func (w *writer) commit(ctx context.Context) error {
	if w.conn == nil {
		var err error
		if w.conn, err = w.db.connect(ctx, w.random); err != nil {
			return err
		}
	}
	n := w.db.commits.begin()
	var lsn uint64
	var timeline string
	sent := time.Now()
	err := w.db.statement(ctx, "commit", func(ctx context.Context) error {
		return w.conn.QueryRow(ctx, insert, n).Scan(&lsn, &timeline)
	})
	if err != nil {
		return err
	}
	token, err := strconv.ParseUint(timeline, 16, 32)
	if err != nil {
		return fmt.Errorf("timeline: %w", err)
	}
	if wrong := w.db.commits.ack(n, uint32(token), sent, time.Now()); wrong != "" {
		w.db.history.violate("database %s: %s", w.db.id, wrong)
	}
	if w.last != 0 {
		w.db.commits.passed(w.last, uint32(token), lsn)
	}
	w.last = n
	return nil
}

// statement makes one call to PostgreSQL and counts it. Clients may meet only closed
// connections.
func (d *managed) statement(ctx context.Context, kind string, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, commitTime)
	defer cancel()
	began := time.Now()
	err := call(ctx)
	return d.counted(ctx, kind, began, err)
}

func (d *managed) counted(ctx context.Context, kind string, began time.Time, err error) error {
	d.history.call(kind, meaning(err), time.Since(began))
	if err != nil && !isClosed(err) && !errors.Is(ctx.Err(), context.Canceled) {
		d.history.violate("database %s: a client met at %s: %v", d.id, kind, err)
	}
	return err
}

// connect connects by any of the routers, as a client does.
func (d *managed) connect(ctx context.Context, r *rand.Rand) (*pgx.Conn, error) {
	cfg := d.config.Copy()
	router := pick(r, d.stack.Routers())
	cfg.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "tcp", router)
	}
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	began := time.Now()
	conn, err := pgx.ConnectConfig(ctx, cfg)
	return conn, d.counted(ctx, "connect", began, err)
}

// clientConfig is that of a client which verifies the router's certificate.
func clientConfig(url, host string, roots *x509.CertPool) (*pgx.ConnConfig, error) {
	cfg, err := pgx.ParseConfig(url + "?sslmode=require")
	if err != nil {
		return nil, err
	}
	cfg.TLSConfig = &tls.Config{ServerName: host, RootCAs: roots, MinVersion: tls.VersionTLS12}
	cfg.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
	return cfg, nil
}

// rowsThere reads the numbers of all rows.
func (d *managed) rowsThere(ctx context.Context, r *rand.Rand) ([]int64, error) {
	conn, err := d.connect(ctx, r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var found []int64
	err = d.statement(ctx, "read", func(ctx context.Context) error {
		rows, err := conn.Query(ctx, "SELECT n FROM soak")
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err
	})
	return found, err
}

// meaning is what an error is counted as; empty if there was none.
func meaning(err error) string {
	if err == nil {
		return ""
	}
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		return refused.Code
	}
	if isTimeout(err) {
		return "no answer"
	}
	return "closed"
}

// isClosed reports whether an error is one that clients must expect: a closed
// connection (classes 08 and 57P of SQLSTATE), or no answer in time.
func isClosed(err error) bool {
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		return len(refused.Code) == 5 && (refused.Code[:2] == "08" || refused.Code[:3] == "57P")
	}
	if _, untrusted := errors.AsType[*tls.CertificateVerificationError](err); untrusted {
		return false
	}
	for _, closed := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE, syscall.ECONNREFUSED} {
		if errors.Is(err, closed) {
			return true
		}
	}
	return isTimeout(err) || pgconn.SafeToRetry(err)
}

func isTimeout(err error) bool {
	var late net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &late) && late.Timeout()
}
