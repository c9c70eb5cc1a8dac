package broker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/guest/pg/pgtest"
	"github.com/berth-cloud/berth/guest/pg/postgres"
	"github.com/berth-cloud/berth/guest/pg/tenant"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/tier"
)

func TestMain(m *testing.M) {
	code := pgtest.Main(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// service is a broker over a server with a tenant.
type service struct {
	*Broker
	url    string
	server *postgres.Server
}

var app = pgapi.Credentials{Database: "app", Username: "app", Password: "some-password-1"}

func serve(t *testing.T) *service {
	t.Helper()
	server := pgtest.Run(t, pgtest.Config(t))
	if _, err := tenant.New(server).Set(pgtest.Context(t), app); err != nil {
		t.Fatal(err)
	}
	b := New(server.Config(), func(context.Context) (pgapi.Tenant, error) { return app.Tenant(), nil })
	mux := http.NewServeMux()
	b.Routes(mux)
	s := httptest.NewServer(mux)
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		s.Close()
		b.Close()
	})
	return &service{b, s.URL, server}
}

// post returns the status and the body of a call.
func (s *service) post(t *testing.T, path, body string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(pgtest.Context(t), http.MethodPost, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(raw))
}

func q(sql string, params ...any) string {
	raw, err := json.Marshal(map[string]any{"sql": sql, "params": params})
	if err != nil {
		panic(err)
	}
	return string(raw)
}

func qs(statements ...string) string {
	var all []string
	for _, sql := range statements {
		all = append(all, q(sql))
	}
	return `{"queries":[` + strings.Join(all, ",") + `]}`
}

func (s *service) rows(t *testing.T, sql string, params ...any) string {
	t.Helper()
	status, body := s.post(t, pgapi.PathQuery, q(sql, params...))
	if status != http.StatusOK {
		t.Fatalf("%s: %d %s", sql, status, body)
	}
	var r struct{ Rows json.RawMessage }
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		t.Fatal(err)
	}
	return string(r.Rows)
}

func TestValues(t *testing.T) {
	s := serve(t)
	for sql, want := range map[string]string{
		"SELECT 1::int2, 2::int4, 3::int8, 4::oid":                                                                      `[[1,2,"3",4]]`,
		"SELECT 9223372036854775807":                                                                                    `[["9223372036854775807"]]`,
		"SELECT 1.10::numeric, 'NaN'::numeric, 'Infinity'::numeric":                                                     `[["1.10","NaN","Infinity"]]`,
		"SELECT 1.5::float8, 'NaN'::float8, '-Infinity'::float4, 1e300::float8":                                         `[[1.5,"NaN","-Infinity",1e+300]]`,
		"SELECT true, false, NULL::bool, NULL":                                                                          `[[true,false,null,null]]`,
		`SELECT 'a"b\c', 'ü€', '', E'line\nline'`:                                                                       `[["a\"b\\c","ü€","","line\nline"]]`,
		`SELECT '{"b": [1, null], "a": 1.0}'::json, '{"b":1}'::jsonb, 'null'::json`:                                     `[[{"b":[1,null],"a":1.0},{"b":1},null]]`,
		`SELECT E'{\n "a": "x\\ny"}'::json`:                                                                             `[[{"a":"x\ny"}]]`,
		`SELECT '\xdeadbeef'::bytea, ''::bytea`:                                                                         `[["\\xdeadbeef","\\x"]]`,
		"SELECT '2024-02-29'::date, '2024-02-29 12:00:00.5+02'::timestamptz, '12:00'::time, '1 day 02:03:04'::interval": `[["2024-02-29","2024-02-29 10:00:00.5+00","12:00:00","1 day 02:03:04"]]`,
		"SELECT ARRAY[1,NULL,3], ARRAY[[1,2],[3,4]], '{}'::int[], ARRAY[1::int8]":                                       `[[[1,null,3],[[1,2],[3,4]],[],["1"]]]`,
		`SELECT ARRAY['a,b','c"d','e\f','NULL',NULL,'','{}']`:                                                           `[[["a,b","c\"d","e\\f","NULL",null,"","{}"]]]`,
		`SELECT ARRAY['{"a":1}'::jsonb], ARRAY[true,false], '[5:6]={7,8}'::int[]`:                                       `[[[{"a":1}],[true,false],[7,8]]]`,
		"SELECT '6f1c1f3e-0000-4000-8000-000000000000'::uuid, '10.0.0.0/8'::cidr, '(1,2)'::point, '[1,3)'::int4range":   `[["6f1c1f3e-0000-4000-8000-000000000000","10.0.0.0/8","(1,2)","[1,3)"]]`,
		"SELECT ROW(1,'a')":                 `[["(1,a)"]]`,
		"SELECT '$12.50'::money":            `[["$12.50"]]`,
		"SELECT":                            `[[]]`,
		"SELECT * FROM (VALUES (1),(2)) v":  `[[1],[2]]`,
		"/* a /* b */ c */ -- d\n SELECT 1": `[[1]]`,
		"(SELECT 1)":                        `[[1]]`,
		"TABLE pg_catalog.pg_am LIMIT 0":    `[]`,
	} {
		if got := s.rows(t, sql); got != want {
			t.Errorf("%s: %s, want %s", sql, got, want)
		}
	}
}

func TestParameters(t *testing.T) {
	s := serve(t)
	for name, c := range map[string]struct {
		sql    string
		params []any
		want   string
	}{
		"a number":             {"SELECT $1::int4 + 1", []any{41}, `[[42]]`},
		"a number as a string": {"SELECT $1::int8", []any{"9007199254740993"}, `[["9007199254740993"]]`},
		"a large number":       {"SELECT $1::numeric", []any{json.Number("12345678901234567890.5")}, `[["12345678901234567890.5"]]`},
		"null":                 {"SELECT $1::text IS NULL", []any{nil}, `[[true]]`},
		"a bool":               {"SELECT NOT $1::bool", []any{true}, `[[false]]`},
		"text that is SQL":     {"SELECT $1::text", []any{"'; DROP TABLE a; --"}, `[["'; DROP TABLE a; --"]]`},
		"an object":            {"SELECT $1::jsonb -> 'a'", []any{map[string]any{"a": []int{1}}}, `[[[1]]]`},
		"JSON as a string":     {"SELECT $1::jsonb -> 'a'", []any{`{"a":2}`}, `[[2]]`},
		"a list for jsonb":     {"SELECT $1::jsonb", []any{[]any{1, "a", nil}}, `[[[1,"a",null]]]`},
		"a list for an array":  {"SELECT $1::text[]", []any{[]any{"a\"b", `c\d`, nil, "NULL", "", "{}", "x,y"}}, `[[["a\"b","c\\d",null,"NULL","","{}","x,y"]]]`},
		"lists of lists":       {"SELECT $1::int4[]", []any{[][]int{{1, 2}, {3, 4}}}, `[[[[1,2],[3,4]]]]`},
		"an empty list":        {"SELECT $1::int4[]", []any{[]int{}}, `[[[]]]`},
		"objects in an array":  {"SELECT $1::jsonb[]", []any{[]any{map[string]int{"a": 1}, []int{2}}}, `[[[{"a":1},[2]]]]`},
		"a list for ANY":       {"SELECT count(*)::int4 FROM generate_series(1,9) g WHERE g = ANY($1)", []any{[]int{1, 5, 99}}, `[[2]]`},
		"bytes":                {"SELECT length($1::bytea)", []any{`\x00ff00`}, `[[3]]`},
		"several, one twice":   {"SELECT $2::text || $1 || $2", []any{"a", "b"}, `[["bab"]]`},
		"an emoji":             {"SELECT length($1::text)", []any{"😀"}, `[[1]]`},
	} {
		t.Run(name, func(t *testing.T) {
			if got := s.rows(t, c.sql, c.params...); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	s := serve(t)
	for name, c := range map[string]struct {
		body   string
		status int
		holds  string
	}{
		"a syntax error":              {q("SELEC 1"), 400, `"sqlstate":"42601"`},
		"a missing table":             {q("SELECT * FROM gone"), 400, `"sqlstate":"42P01"`},
		"a wrong value":               {q("SELECT $1::int4", "x"), 400, `"sqlstate":"22P02"`},
		"an error in the middle":      {q("SELECT 1/(5-g) FROM generate_series(1,9) g"), 400, `"sqlstate":"22012"`},
		"several statements":          {q("SELECT 1; SELECT 2"), 400, `"sqlstate":"42601"`},
		"a transaction":               {q(" begin"), 400, "use the route transaction"},
		"a commit in a comment's end": {q("/* x */COMMIT"), 400, "use the route transaction"},
		"COPY":                        {q("COPY pg_class TO STDOUT"), 400, "COPY"},
		"COPY FROM":                   {q("copy a from stdin"), 400, "COPY"},
		"no SQL":                      {`{}`, 400, "no statement"},
		"a comment alone":             {q("-- nothing"), 400, "no statement"},
		"a semicolon alone":           {q(";"), 400, "no statement"},
		"too few params":              {q("SELECT $1::int4, $2::int4", 1), 400, "2 parameters"},
		"too many params":             {q("SELECT 1", 1), 400, "0 parameters"},
		"a NUL in a param":            {`{"sql":"SELECT $1::text","params":["a\u0000"]}`, 400, "NUL"},
		"a NUL in SQL":                {`{"sql":"SELECT '\u0000'"}`, 400, "NUL"},
		"no JSON":                     {`{`, 400, "refused"},
		"an unknown field":            {`{"sql":"SELECT 1","sqll":""}`, 400, "sqll"},
		"two values":                  {`{"sql":"SELECT 1"}{}`, 400, "more than one"},
		"a negative time-out":         {`{"sql":"SELECT 1","timeout_seconds":-1}`, 400, "timeout_seconds"},
		"an endless time-out":         {`{"sql":"SELECT 1","timeout_seconds":1e300}`, 400, "timeout_seconds"},
		"oversized SQL":               {q("SELECT '" + strings.Repeat("a", maxSQL) + "'"), 400, "sql has"},
		"an oversized body":           {`{"sql":"SELECT $1","params":["` + strings.Repeat("a", maxBody) + `"]}`, 413, "bytes"},
		"a statement that is slow":    {`{"sql":"SELECT pg_sleep(60)","timeout_seconds":0.05}`, 408, `"sqlstate":"57014"`},
		"a file of the server":        {q("SELECT pg_read_file('PG_VERSION')"), 400, `"sqlstate":"42501"`},
		"a deep array":                {`{"sql":"SELECT $1::int4[]","params":[[[[[[[[1]]]]]]]]}`, 400, "dimensions"},
	} {
		t.Run(name, func(t *testing.T) {
			if status, body := s.post(t, pgapi.PathQuery, c.body); status != c.status || !strings.Contains(body, c.holds) {
				t.Errorf("%d %.300s", status, body)
			}
		})
	}
	if got := s.rows(t, "SELECT 1"); got != "[[1]]" {
		t.Errorf("afterwards: %s", got)
	}
	if s.Busy() != 0 {
		t.Errorf("%d sessions are busy", s.Busy())
	}
}

func TestResultsThatAreTooLarge(t *testing.T) {
	s := serve(t)
	var r pgapi.Result
	_, body := s.post(t, pgapi.PathQuery, q("SELECT generate_series(1, 1000000000)"))
	if err := json.Unmarshal([]byte(body), &r); err != nil || !r.Truncated || len(r.Rows) != maxRows || r.RowCount != maxRows || r.Command != "SELECT" {
		t.Errorf("%d rows, %v, %+v", len(r.Rows), err, r.Truncated)
	}
	r = pgapi.Result{}
	_, body = s.post(t, pgapi.PathQuery, q("SELECT repeat('x', 1000000) FROM generate_series(1, 1000)"))
	if err := json.Unmarshal([]byte(body), &r); err != nil || !r.Truncated || len(r.Rows) != 8 {
		t.Errorf("%d rows, %v", len(r.Rows), err)
	}
	// What a statement changes is changed whole, however little of it is told.
	s.rows(t, "CREATE TABLE a (n int)")
	r = pgapi.Result{}
	_, body = s.post(t, pgapi.PathQuery, q("INSERT INTO a SELECT generate_series(1, 20000) RETURNING n"))
	if err := json.Unmarshal([]byte(body), &r); err != nil || !r.Truncated || len(r.Rows) != maxRows {
		t.Errorf("%d rows, %v", len(r.Rows), err)
	}
	if got := s.rows(t, "SELECT count(*) FROM a"); got != `[["20000"]]` {
		t.Errorf("%s rows are there", got)
	}
	status, body := s.post(t, pgapi.PathQuery, q("SELECT repeat('x', 50000000)"))
	if status != 400 || !strings.Contains(body, "a row has more") {
		t.Errorf("a row of 50 MB: %d %.200s", status, body)
	}
	if got := s.rows(t, "SELECT 1"); got != "[[1]]" {
		t.Errorf("afterwards: %s", got)
	}
}

// A connection that pgconn has given up is its own: a goroutine of it may still be
// taking leave there, and whoever wrote as well would race with that.
func TestAConnectionThatIsGivenUpIsLeftAlone(t *testing.T) {
	s := serve(t)
	ctx := pgtest.Context(t)
	session, err := s.acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer s.release(session, false)
	if err := session.conn.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := (&portal{session: session}).finish(); err != nil {
		t.Errorf("something was sent on it: %v", err)
	}
}

// A session whose question for types fails asks again.
func TestTypesAreKnownOnceTheyAreAnswered(t *testing.T) {
	s := serve(t)
	ctx := pgtest.Context(t)
	session, err := s.acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer s.release(session, false)
	if _, err := session.conn.Exec(ctx, "BEGIN; SELECT 1/0").ReadAll(); err == nil {
		t.Fatal("a division by zero has a result")
	}
	const text = 25 // the OID of text
	if err := session.learn([]uint32{text}); err == nil {
		t.Error("an aborted transaction answers")
	}
	if _, err := session.conn.Exec(ctx, "ROLLBACK").ReadAll(); err != nil {
		t.Fatal(err)
	}
	if err := session.learn([]uint32{text}); err != nil || session.types[text].name != "text" {
		t.Errorf("the type is %+v: %v", session.types[text], err)
	}
}

// A commit that does not heed the time-out may be done all the same, so nobody may be told
// that it was cancelled: whoever sends it again would have it twice.
func TestACommitThatIsCutOffIsNotCalledCancelled(t *testing.T) {
	tier.Slow(t)
	s := serve(t)
	ctx := pgtest.Context(t)
	s.rows(t, "CREATE TABLE a (n int)")
	s.rows(t, `CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN LOOP
		BEGIN PERFORM pg_advisory_lock(1); RETURN NULL; EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END $$`)
	s.rows(t, "CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON a DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hold()")
	for path, body := range map[string]string{
		pgapi.PathQuery:       `{"timeout_seconds":1,"sql":"INSERT INTO a VALUES (1)"}`,
		pgapi.PathTransaction: `{"timeout_seconds":1,"queries":[` + q("INSERT INTO a VALUES (1)") + `]}`,
	} {
		holder, err := s.server.Config().LogIn(ctx, app.Username, app.Database, app.Password)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := holder.Exec(ctx, "SELECT pg_advisory_lock(1)").ReadAll(); err != nil {
			t.Fatal(err)
		}
		status, answer := s.post(t, path, body)
		holder.Close(ctx)
		if status != http.StatusRequestTimeout || !strings.Contains(answer, `"sqlstate":"08006"`) || !strings.Contains(answer, "may or may not") {
			t.Errorf("%s: %d %s", path, status, answer)
		}
	}
	for s.rows(t, "SELECT count(*) FROM a") != `[["2"]]` {
		if ctx.Err() != nil {
			t.Fatal("they are not committed")
		}
	}
}

// What a batch has done before it is cut off stays done, so its answer says what that is.
func TestABatchThatIsCutOffTellsWhatIsDone(t *testing.T) {
	s := serve(t)
	s.rows(t, "CREATE TABLE a (n int)")
	inserted := `{"results":[{"columns":[],"rows":[],"row_count":1,"command":"INSERT","truncated":false},`
	for name, c := range map[string]struct{ body, sqlstate string }{
		"by its time-out":  {`{"timeout_seconds":3,"queries":[` + q("INSERT INTO a VALUES (1)") + `,` + q("SELECT pg_sleep(60)") + `,` + q("INSERT INTO a VALUES (2)") + `]}`, "57014"},
		"by its session's": {qs("INSERT INTO a VALUES (1)", "SELECT pg_terminate_backend(pg_backend_pid())", "INSERT INTO a VALUES (2)"), "57P01"},
	} {
		status, body := s.post(t, pgapi.PathBatch, c.body)
		notRun := `,{"error":"not run: a statement before it was cut off","sqlstate":"` + c.sqlstate + `"}]}`
		if status != 200 || !strings.HasPrefix(body, inserted) || strings.Count(body, c.sqlstate) != 2 || !strings.HasSuffix(body, notRun) {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
	if got := s.rows(t, "SELECT string_agg(n::text, ' ') FROM a"); got != `[["1 1"]]` {
		t.Errorf("it has %s", got)
	}
	// The first one has its status, as by itself.
	if status, body := s.post(t, pgapi.PathBatch, `{"timeout_seconds":0.1,"queries":[`+q("SELECT pg_sleep(60)")+`]}`); status != 408 {
		t.Errorf("%d %s", status, body)
	}
}

func TestBatchesAndTransactions(t *testing.T) {
	s := serve(t)
	status, body := s.post(t, pgapi.PathBatch, qs("CREATE TABLE a (n int PRIMARY KEY)", "INSERT INTO a VALUES (1)", "INSERT INTO a VALUES (1)", "BEGIN", "SELECT n FROM a"))
	want := `{"results":[{"columns":[],"rows":[],"row_count":0,"command":"CREATE TABLE","truncated":false},` +
		`{"columns":[],"rows":[],"row_count":1,"command":"INSERT","truncated":false},` +
		`{"error":"duplicate key value violates unique constraint \"a_pkey\"","sqlstate":"23505","detail":"Key (n)=(1) already exists."},` +
		`{"error":"refused: BEGIN: use the route transaction","sqlstate":"08P01"},` +
		`{"columns":[{"name":"n","type":"int4"}],"rows":[[1]],"row_count":1,"command":"SELECT","truncated":false}]}`
	if status != 200 || body != want {
		t.Errorf("%d %s\nwant %s", status, body, want)
	}
	status, body = s.post(t, pgapi.PathTransaction, qs("INSERT INTO a VALUES (2)", "INSERT INTO a VALUES (3)", "SELECT count(*) FROM a"))
	if status != 200 || !strings.Contains(body, `"rows":[["3"]]`) {
		t.Errorf("%d %s", status, body)
	}
	for name, c := range map[string]struct{ body, holds string }{
		"a statement that fails":   {qs("INSERT INTO a VALUES (4)", "INSERT INTO a VALUES (1)", "INSERT INTO a VALUES (5)"), `"sqlstate":"23505","detail":"Key (n)=(1) already exists.","code":"sql_refused","failed":1`},
		"a commit in the middle":   {qs("INSERT INTO a VALUES (4)", "COMMIT", "SELECT 1"), `"failed":1`},
		"a procedure that commits": {qs("INSERT INTO a VALUES (4)", "DO $$ BEGIN COMMIT; END $$"), `"sqlstate":"2D000"`},
		"a constraint at the end":  {qs("CREATE TABLE d (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)", "INSERT INTO a VALUES (4)", "INSERT INTO d VALUES (1), (1)"), `"sqlstate":"23505"`},
		"one that is slow":         {`{"timeout_seconds":0.1,"queries":[` + q("INSERT INTO a VALUES (4)") + `,` + q("SELECT pg_sleep(60)") + `]}`, `57014`},
		"none":                     {`{"queries":[]}`, "0 queries"},
		"too many":                 {qs(make([]string, maxQueries+1)...), "queries"},
	} {
		if status, body := s.post(t, pgapi.PathTransaction, c.body); status < 400 || !strings.Contains(body, c.holds) {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
	if got := s.rows(t, "SELECT string_agg(n::text, ' ' ORDER BY n) FROM a"); got != `[["1 2 3"]]` {
		t.Errorf("rows %s", got)
	}
}

func TestASessionLeavesNothingToTheNext(t *testing.T) {
	s := serve(t)
	for _, sql := range []string{
		"SET search_path = nowhere", "SET DateStyle = 'German'", "SET bytea_output = 'escape'", "CREATE TEMP TABLE left_over (n int)", "PREPARE p AS SELECT 1", "LISTEN x",
		"SELECT pg_advisory_lock(1)", "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "CREATE ROLE other", "GRANT other TO app", "SET ROLE other", "SET client_encoding = 'LATIN1'", "SET statement_timeout = 1",
	} {
		s.rows(t, sql)
	}
	if got := s.rows(t, `SELECT current_setting('search_path'), '2024-02-29'::date, '\xff'::bytea, to_regclass('left_over') IS NULL, (SELECT count(*)::int FROM pg_prepared_statements),
		(SELECT count(*)::int FROM pg_locks WHERE locktype = 'advisory'), current_setting('transaction_read_only'), current_user, session_user, 'ü'`); got != `[["\"$user\", public","2024-02-29","\\xff",true,1,0,"off","app","app","ü"]]` {
		t.Errorf("%s", got)
	}
}

func TestRowsByTheLine(t *testing.T) {
	s := serve(t)
	lines := func(sql string) []string {
		_, body := s.post(t, pgapi.PathQuery, q(sql), "Accept", pgapi.NDJSON)
		return strings.Split(body, "\n")
	}
	got := lines("SELECT g, NULL AS x FROM generate_series(1, 30000) g")
	if len(got) != 30002 || got[0] != `{"columns":[{"name":"g","type":"int4"},{"name":"x","type":"text"}]}` || got[1] != "[1,null]" || got[30001] != `{"row_count":30000,"command":"SELECT"}` {
		t.Errorf("%d lines: %s … %s", len(got), got[0], got[len(got)-1])
	}
	if got := lines("CREATE TABLE a (n int)"); strings.Join(got, " ") != `{"columns":[]} {"row_count":0,"command":"CREATE TABLE"}` {
		t.Errorf("%s", got)
	}
	got = lines("SELECT 1/(2-g) FROM generate_series(1, 9) g")
	if last := got[len(got)-1]; last != `{"error":"division by zero","sqlstate":"22012"}` {
		t.Errorf("%s", got)
	}
	if status, body := s.post(t, pgapi.PathQuery, q("SELECT * FROM gone"), "Accept", pgapi.NDJSON); status != 400 || !strings.Contains(body, "42P01") {
		t.Errorf("%d %s", status, body)
	}
}

func TestAStatementEndsWithItsCaller(t *testing.T) {
	s := serve(t)
	for name, sql := range map[string]string{"one that waits": "SELECT pg_sleep(3600)", "one that is read by the line": "SELECT repeat('x', 1000), generate_series(1, 1000000000)"} {
		ctx, cancel := context.WithCancel(pgtest.Context(t))
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+pgapi.PathQuery, strings.NewReader(q(sql)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", pgapi.NDJSON)
		done := make(chan struct{})
		go func() {
			defer close(done)
			resp, err := http.DefaultClient.Do(req)
			if err == nil {
				bufio.NewReader(resp.Body).ReadString('\n')
				<-ctx.Done()
				resp.Body.Close()
			}
		}()
		running := func() (n int) {
			conn, err := s.server.Connect(pgtest.Context(t))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			if err := conn.QueryRow(pgtest.Context(t), "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app' AND state = 'active'").Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		pgtest.Await(t, "the statement", func() bool { return running() > 0 })
		cancel()
		<-done
		pgtest.Await(t, "its end", func() bool { return running() == 0 && s.Busy() == 0 })
		if got := s.rows(t, "SELECT 1"); got != "[[1]]" {
			t.Errorf("%s: afterwards %s", name, got)
		}
	}
}

func TestSessionsAreBounded(t *testing.T) {
	tier.Slow(t)
	s := serve(t)
	ctx, cancel := context.WithCancel(pgtest.Context(t))
	done := make(chan struct{})
	for range maxSessions {
		go func() {
			defer func() { done <- struct{}{} }()
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, s.url+pgapi.PathQuery, strings.NewReader(`{"sql":"SELECT pg_sleep(3600)","timeout_seconds":600}`))
			if resp, err := http.DefaultClient.Do(req); err == nil {
				resp.Body.Close()
			}
		}()
	}
	pgtest.Await(t, "all sessions in use", func() bool { return s.Busy() == maxSessions })
	for _, ask := range []string{q("SELECT 1"), `{"sql":"SELECT 1","timeout_seconds":0.05}`} {
		if status, body := s.post(t, pgapi.PathQuery, ask); status != 503 || !strings.Contains(body, pgapi.CodeTooManyCall) {
			t.Errorf("%s: %d %s", ask, status, body)
		}
	}
	cancel()
	for range maxSessions {
		<-done
	}
	pgtest.Await(t, "no session in use", func() bool { return s.Busy() == 0 })
}

func TestTheSchema(t *testing.T) {
	s := serve(t)
	for _, sql := range []string{
		"CREATE TABLE a (id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name varchar(20) NOT NULL DEFAULT 'x', tags text[])",
		"CREATE SCHEMA other", "CREATE VIEW other.v AS SELECT name FROM a", "CREATE EXTENSION hstore",
		// A tenant's operators and functions are not met.
		"CREATE FUNCTION public.format_type(oid, int4) RETURNS text LANGUAGE sql AS 'SELECT ''mine'''",
	} {
		s.rows(t, sql)
	}
	resp, err := http.Get(s.url + pgapi.PathSchema)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(resp.Body)
	want := `{"tables":[{"schema":"other","name":"v","kind":"view","estimated_rows":-1,"columns":[{"name":"name","type":"character varying(20)","nullable":true,"primary_key":false}]},` +
		`{"schema":"public","name":"a","kind":"table","estimated_rows":-1,"columns":[{"name":"id","type":"bigint","nullable":false,"primary_key":true},` +
		`{"name":"name","type":"character varying(20)","nullable":false,"default":"'x'::character varying","primary_key":false},{"name":"tags","type":"text[]","nullable":true,"primary_key":false}]}],"truncated":false}`
	if got := strings.ReplaceAll(string(bytes.TrimSpace(raw)), `"estimated_rows":0`, `"estimated_rows":-1`); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// Whoever is told that PostgreSQL does not serve may send the request again; not so after a
// statement that says the same.
func TestWhatMayBeSentAgain(t *testing.T) {
	s := serve(t)
	again := func(sql string) (status int, retry, body string) {
		t.Helper()
		w := httptest.NewRecorder()
		s.query(w, httptest.NewRequestWithContext(pgtest.Context(t), http.MethodPost, pgapi.PathQuery, strings.NewReader(q(sql))))
		return w.Code, w.Header().Get(pgapi.HeaderRetryAfter), w.Body.String()
	}
	raise := "DO 'BEGIN RAISE EXCEPTION USING ERRCODE = ''57P03''; END'"
	if status, retry, body := again(raise); status != http.StatusServiceUnavailable || retry != "" || !strings.Contains(body, stateNotReady) {
		t.Errorf("a statement that ran: %d %q %s", status, retry, body)
	}
	if err := s.server.Stop(pgtest.Context(t), false); err != nil {
		t.Fatal(err)
	}
	if status, retry, body := again("SELECT 1"); status != http.StatusServiceUnavailable || retry == "" || !strings.Contains(body, stateNotReady) {
		t.Errorf("a server that is stopped: %d %q %s", status, retry, body)
	}
}

// A server that is starting refuses every session with a SQLSTATE.
func TestAServerThatIsStarting(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			b := pgproto3.NewBackend(conn, conn)
			if _, err := b.ReceiveStartupMessage(); err == nil {
				b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: stateNotReady, Message: "the database system is starting up"})
				_ = b.Flush()
			}
			conn.Close()
		}
	}()
	defer func() { l.Close(); <-done }()
	b := New(postgres.Config{Run: dir, Port: 5432}, func(context.Context) (pgapi.Tenant, error) { return app.Tenant(), nil })
	w := httptest.NewRecorder()
	b.query(w, httptest.NewRequest(http.MethodPost, pgapi.PathQuery, strings.NewReader(q("SELECT 1"))))
	if w.Code != http.StatusServiceUnavailable || w.Header().Get(pgapi.HeaderRetryAfter) == "" || !strings.Contains(w.Body.String(), stateNotReady) {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
}

func TestWithoutATenant(t *testing.T) {
	b := New(postgres.Config{}, func(context.Context) (pgapi.Tenant, error) { return pgapi.Tenant{}, tenant.ErrNone })
	w := httptest.NewRecorder()
	b.query(w, httptest.NewRequest(http.MethodPost, pgapi.PathQuery, strings.NewReader(q("SELECT 1"))))
	if w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), pgapi.CodeNoTenant) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// A tenant may drop or rename its database. The broker says what makes it work again.
func TestADatabaseThatIsNoLongerThere(t *testing.T) {
	s := serve(t)
	ctx := pgtest.Context(t)
	s.tenant = func(ctx context.Context) (pgapi.Tenant, error) {
		conn, err := s.server.Connect(ctx)
		if err != nil {
			return pgapi.Tenant{}, err
		}
		defer conn.Close(ctx)
		return tenant.Current(ctx, conn)
	}
	if status, body := s.post(t, pgapi.PathQuery, q("CREATE DATABASE beside")); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	for _, c := range []struct {
		sql    string
		again  bool // the broker has been restarted since
		status int
	}{
		{"ALTER DATABASE app RENAME TO before", false, http.StatusBadRequest},
		{"DROP DATABASE app WITH (FORCE)", false, http.StatusBadRequest},
		{"DROP DATABASE app WITH (FORCE)", true, http.StatusConflict},
		{"DROP DATABASE app WITH (FORCE); CREATE DATABASE app", true, http.StatusConflict},
	} {
		conn, err := s.server.Config().LogIn(ctx, app.Username, "beside", app.Password)
		if err != nil {
			t.Fatal(err)
		}
		for sql := range strings.SplitSeq("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = 'app';"+c.sql, ";") {
			if _, err := conn.Exec(ctx, sql).ReadAll(); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
		conn.Close(ctx)
		if c.again {
			s.Reset()
		}
		status, body := s.post(t, pgapi.PathQuery, q("SELECT 1"))
		if status != c.status || !strings.Contains(body, `"3D000"`) || !strings.Contains(body, "berth db rotate") {
			t.Errorf("%s: %d %s", c.sql, status, body)
		}
		if _, err := tenant.New(s.server).Set(ctx, app); err != nil {
			t.Fatal(err)
		}
		s.Reset()
		if status, body := s.post(t, pgapi.PathQuery, q("SELECT 1")); status != http.StatusOK {
			t.Errorf("after a rotation: %d %s", status, body)
		}
	}
}

func FuzzParams(f *testing.F) {
	for _, s := range []string{`1`, `"a"`, `null`, `[1,[2]]`, `{"a":1}`, `["a\"b\\c",null,"NULL"]`, `tru`, ``, `[[[[[[[1]]]]]]]`, `"\u0000"`} {
		f.Add([]byte(s), true)
	}
	text := typeInfo{name: "text", oid: 25}
	list := typeInfo{name: "_text", oid: 1009, elem: &text}
	f.Fuzz(func(t *testing.T, raw []byte, array bool) {
		typ := text
		if array {
			typ = list
		}
		out, err := typ.fromJSON(raw)
		if err != nil || out == nil || !array || out[0] != '{' || bytes.TrimSpace(raw)[0] != '[' {
			return
		}
		// What was made of a list is read back as one.
		back, ok := arrayToJSON(text, out)
		if !ok || !json.Valid(back) {
			t.Fatalf("%s became %s, which is read as %s", raw, out, back)
		}
	})
}

func FuzzArrayText(f *testing.F) {
	for _, s := range []string{`{1,2}`, `{{1},{2}}`, `{"a\"b",NULL}`, `[0:1]={1,2}`, `{`, `{}`, `{,}`, `{"a}`, `{{{{{{{1}}}}}}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if out, ok := arrayToJSON(typeInfo{oid: 25}, text); ok && !json.Valid(out) {
			t.Fatalf("%q became %s", text, out)
		}
	})
}
