package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/timescale"
)

// errRefused is wrapped by what the broker refuses by itself.
var errRefused = errors.New("refused")

// errUnresolved is wrapped by the error of a commit to which there was no answer.
var errUnresolved = errors.New("PostgreSQL did not answer the commit, which may or may not be done")

// unresolved makes the error of a commit errUnresolved, unless PostgreSQL said it.
func unresolved(err error) error {
	if err == nil || errors.As(err, new(*pgconn.PgError)) {
		return err
	}
	return fmt.Errorf("%w: %w", errUnresolved, err)
}

// chunk is how many rows are asked for at a time.
const chunk = 500

// sink takes a result.
type sink interface {
	columns([]pgapi.Column) error
	// row takes a row, and says whether it takes another.
	row([]json.RawMessage) (more bool, err error)
}

// outcome is how a statement ended.
type outcome struct {
	command   string
	affected  int64
	truncated bool
}

// cancelGrace is how long PostgreSQL may take to heed a cancel request.
var cancelGrace = timescale.Limit(5 * time.Second)

// run runs one statement. PostgreSQL itself refuses several in one. Once the sink
// takes no more, the statement is done all the same: what it changed stays changed,
// and rows that it would have gone on to read are not read. When ctx ends, the
// statement is cancelled.
func (s *session) run(ctx context.Context, q pgapi.Query, to sink) (outcome, error) {
	if err := admissible(q); err != nil {
		return outcome{}, err
	}
	stop := s.cancelWith(ctx)
	out, err := s.execute(q, to)
	if stop() && err != nil { // it was ctx that ended it
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return out, err
}

// cancelWith has PostgreSQL cancel what runs when ctx ends, and cuts the session if
// that does not help. The function that it returns ends this, and says whether ctx had
// ended.
func (s *session) cancelWith(ctx context.Context) func() bool {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		_ = s.conn.Conn().SetDeadline(time.Now().Add(cancelGrace))
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelGrace)
		defer cancel()
		_ = s.conn.CancelRequest(late) // else the deadline does it
	})
	return func() bool {
		if stop() {
			return false
		}
		<-done
		return true
	}
}

func (s *session) execute(q pgapi.Query, to sink) (outcome, error) {
	// A name of its own: one that failed cannot be closed in the same breath. The
	// session is cleaned of all of them.
	s.statements++
	name := "broker_" + strconv.Itoa(s.statements)
	sd, err := s.conn.Prepare(context.Background(), name, q.SQL, nil) // cancelWith watches
	if err != nil {
		return outcome{}, err
	}
	columns, types, err := s.describe(sd)
	if err != nil {
		return outcome{}, err
	}
	params, err := s.params(q.Params, sd.ParamOIDs)
	if err != nil {
		return outcome{}, err
	}
	if sd.Fields != nil {
		if err := to.columns(columns); err != nil {
			return outcome{}, err
		}
	}
	f := s.conn.Frontend()
	f.SendBind(&pgproto3.Bind{PreparedStatement: name, Parameters: params})
	p := portal{session: s, types: types, to: to, out: outcome{command: firstWord(q.SQL)}}
	err = p.drain()
	if errClosed := p.finish(); err == nil {
		err = errClosed
	}
	return p.out, err
}

// portal is a statement that runs.
type portal struct {
	*session
	types []typeInfo
	to    sink
	out   outcome
}

// drain asks for rows until there are none or the sink has enough.
func (p *portal) drain() error {
	for {
		f := p.conn.Frontend()
		f.SendExecute(&pgproto3.Execute{MaxRows: chunk})
		f.Send(&pgproto3.Flush{})
		if err := f.Flush(); err != nil {
			return err
		}
		if more, err := p.chunk(); err != nil || !more {
			return err
		}
	}
}

// chunk takes the messages of one Execute, and says whether there is another to make.
func (p *portal) chunk() (more bool, err error) {
	full := false
	for {
		message, err := p.conn.ReceiveMessage(context.Background())
		if err != nil {
			return false, err
		}
		switch m := message.(type) {
		case *pgproto3.ErrorResponse:
			return false, pgconn.ErrorResponseToPgError(m)
		case *pgproto3.DataRow:
			if full {
				p.out.truncated = true
				continue
			}
			row, err := p.encode(m.Values)
			if err != nil {
				return false, err
			}
			taken, err := p.to.row(row)
			if err != nil {
				return false, err
			}
			full = !taken
			p.out.truncated = p.out.truncated || full
		case *pgproto3.PortalSuspended:
			if full {
				return false, nil // it has no tag: see execute
			}
			return true, nil
		case *pgproto3.CommandComplete:
			tag := pgconn.NewCommandTag(string(m.CommandTag))
			p.out.affected = tag.RowsAffected()
			p.out.command = strings.TrimRight(tag.String(), " 0123456789") // "INSERT 0 1"
			return false, nil
		case *pgproto3.EmptyQueryResponse:
			return false, nil
		case *pgproto3.CopyInResponse, *pgproto3.CopyOutResponse, *pgproto3.CopyBothResponse:
			p.conn.Conn().Close()
			return false, fmt.Errorf("%w: COPY needs a connection", errRefused)
		}
	}
}

func (p *portal) encode(values [][]byte) ([]json.RawMessage, error) {
	row := make([]json.RawMessage, len(values))
	for i, v := range values {
		if i >= len(p.types) {
			return nil, errors.New("more values than columns")
		}
		row[i] = p.types[i].toJSON(v)
	}
	return row, nil
}

// finish ends the statement, which makes its changes durable where no transaction is
// open.
func (p *portal) finish() error {
	if p.conn.IsClosed() { // pgconn may still be taking leave on it
		return nil
	}
	f := p.conn.Frontend()
	f.SendSync(&pgproto3.Sync{})
	if err := f.Flush(); err != nil {
		return err
	}
	var refused error
	for {
		message, err := p.conn.ReceiveMessage(context.Background())
		if err != nil {
			if refused == nil && p.conn.TxStatus() == 'I' {
				return unresolved(err)
			}
			return errors.Join(refused, err)
		}
		switch m := message.(type) {
		case *pgproto3.ErrorResponse: // a deferred constraint
			refused = pgconn.ErrorResponseToPgError(m)
		case *pgproto3.ReadyForQuery:
			return refused
		}
	}
}

// simple runs one of the broker's own statements.
func (s *session) simple(ctx context.Context, sql string) (tag string, err error) {
	stop := s.cancelWith(ctx)
	results, err := s.conn.Exec(context.Background(), sql).ReadAll()
	if stop() && err != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	for _, r := range results {
		tag = r.CommandTag.String()
	}
	return tag, err
}

// admissible says what the broker does not run: what would leave a session or a
// transaction otherwise than it was, or speaks another protocol.
func admissible(q pgapi.Query) error {
	if len(q.SQL) > maxSQL {
		return fmt.Errorf("%w: sql has %d bytes: at most %d", errRefused, len(q.SQL), maxSQL)
	}
	if strings.ContainsRune(q.SQL, 0) {
		return fmt.Errorf("%w: sql has a NUL byte", errRefused)
	}
	if len(q.Params) > maxParams {
		return fmt.Errorf("%w: %d params: at most %d", errRefused, len(q.Params), maxParams)
	}
	switch word := firstWord(q.SQL); word {
	case "":
		return fmt.Errorf("%w: sql has no statement", errRefused)
	case "BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE":
		return fmt.Errorf("%w: %s: use the route transaction", errRefused, word)
	case "COPY":
		return fmt.Errorf("%w: COPY needs a connection", errRefused)
	}
	return nil
}

// firstWord is the first keyword of a statement, after space, comments and
// parentheses.
func firstWord(sql string) string {
	for {
		sql = strings.TrimLeft(sql, " \t\r\n\f\v(")
		switch {
		case strings.HasPrefix(sql, "--"):
			_, sql, _ = strings.Cut(sql, "\n")
		case strings.HasPrefix(sql, "/*"):
			sql = afterComment(sql)
		default:
			end := strings.IndexFunc(sql, func(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '_' })
			if end < 0 {
				end = len(sql)
			}
			if end == 0 && strings.Trim(sql, "; \t\r\n") != "" {
				return "?" // PostgreSQL says what it thinks of it
			}
			return strings.ToUpper(sql[:end])
		}
	}
}

// afterComment skips a comment, which may hold others.
func afterComment(sql string) string {
	depth := 0
	for i := 0; i+1 < len(sql); i++ {
		switch sql[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
			if depth == 0 {
				return sql[i+1:]
			}
		}
	}
	return ""
}
