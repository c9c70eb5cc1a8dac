package httpapi

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/authn"
	"github.com/berth-cloud/berth/controlplane/pgedge"
)

var _ Broker = (*pgedge.Broker)(nil)

// fakeBroker serves one database, whose token is "token".
type fakeBroker struct {
	call func(ctx context.Context, method, operation string, header http.Header, body string) (*http.Response, error)
}

func (f *fakeBroker) Admit(r *http.Request, id string) (string, error) {
	token, ok := authn.Bearer(r.Header.Values("Authorization"))
	switch {
	case !ok:
		return "", apierror.Unauthorized(apierror.DetailMissingToken)
	case token != "token" || id != "db-1":
		return "", apierror.Unauthorized(apierror.DetailInvalidToken)
	}
	return "ws-1", nil
}

func (f *fakeBroker) Call(ctx context.Context, _, method, operation string, header http.Header, body io.Reader) (*http.Response, error) {
	if f.call == nil {
		return nil, errUnexpected
	}
	raw, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	return f.call(ctx, method, operation, header, string(raw))
}

func answered(status int, kind string, body io.Reader) (*http.Response, error) {
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {kind}, "X-Guest": {"x"}}, Body: io.NopCloser(body)}, nil
}

const proxy = "/v1/databases/db-1/proxy/"

// For want of memory a wake by the broker fails as any other does, and the document says
// so.
func TestTheBrokerAndAWakeFailAlike(t *testing.T) {
	said := map[string]bool{}
	for _, rt := range slices.Concat(databaseRoutes(), brokerRoutes()) {
		for _, f := range rt.doc.failures {
			if strings.Contains(f.Message+f.Detail, "insufficient") || f.Code == apierror.EInsufficient {
				if f.Code != apierror.EBadGateway || f.Message != "no available compute node" {
					t.Errorf("%s: %s %q", rt.doc.id, f.Code, f.Message)
				}
				said[rt.doc.id] = true
			}
		}
	}
	for _, id := range []string{"wakeDatabase", "queryDatabase", "batchDatabase", "transactDatabase", "databaseSchema"} {
		if !said[id] {
			t.Errorf("%s does not say it", id)
		}
	}
}

func TestTheBrokersAnswersPassThrough(t *testing.T) {
	r := newRig(t)
	r.broker.call = func(_ context.Context, method, operation string, header http.Header, body string) (*http.Response, error) {
		switch operation {
		case "query":
			if method != "POST" || body != `{"sql":"SELECT 1"}` || header.Get("Content-Type") == "" || len(header) != 1 {
				t.Errorf("%s %s %v", method, body, header)
			}
			return answered(400, "application/json", strings.NewReader(`{"error":"no","sqlstate":"42703"}`))
		case "schema":
			if method != "GET" || body != "" {
				t.Errorf("%s %s", method, body)
			}
			return answered(200, "application/json", strings.NewReader(`{"tables":[],"truncated":false}`))
		}
		return answered(200, "application/json", strings.NewReader(`{"results":[]}`))
	}
	for _, c := range []struct {
		method, operation, body string
		status                  int
		want                    string
	}{
		{"POST", "query", `{"sql":"SELECT 1"}`, 400, `{"error":"no","sqlstate":"42703"}`},
		{"POST", "batch", `{}`, 200, `{"results":[]}`},
		{"POST", "transaction", `{}`, 200, `{"results":[]}`},
		{"GET", "schema", "", 200, `{"tables":[],"truncated":false}`},
		{"HEAD", "schema", "", 200, ""},
	} {
		w := r.call(c.method, proxy+c.operation, "token", c.body)
		if w.Code != c.status || w.Body.String() != c.want || !strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") || w.Header().Get("X-Guest") != "" {
			t.Errorf("%s %s: %d %s %v", c.method, c.operation, w.Code, w.Body, w.Header())
		}
	}
}

func TestOnlyTheBrokersOperationsAreReached(t *testing.T) {
	r := newRig(t)
	for target, status := range map[string]int{
		proxy + "credentials": 404, proxy + "wal/next": 404, proxy + "query/x": 404, proxy + "../v1/stop": 404, proxy + "%2e%2e/stop": 404, proxy: 404,
	} {
		if w := r.call(http.MethodPost, target, "token", "{}"); w.Code != status {
			t.Errorf("%s: %d %s", target, w.Code, w.Body)
		}
	}
	if w := r.call(http.MethodGet, proxy+"query", "token", ""); w.Code != 405 {
		t.Errorf("GET query: %d", w.Code)
	}
}

func TestTheBrokerWantsItsToken(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct{ target, token, detail string }{
		{proxy + "query", "", "missing bearer token"},
		{proxy + "query", "tenant", "invalid api token"},
		{"/v1/databases/db-2/proxy/query", "token", "invalid api token"},
	} {
		w := r.call(http.MethodPost, c.target, c.token, "{")
		if e := errorOf(t, w); w.Code != 401 || e.Error != "unauthorized" || e.Detail != c.detail {
			t.Errorf("%s with %q: %d %+v", c.target, c.token, w.Code, e)
		}
	}
	limited := newRig(t, func(c *Config) {
		c.Limiter = limiterFunc(func(ws string) error {
			if ws != "ws-1" {
				t.Errorf("the limiter was asked for %q", ws)
			}
			return errRateLimited
		})
	})
	if w := limited.call(http.MethodPost, proxy+"query", "token", "{}"); w.Code != 429 {
		t.Errorf("over the rate: %d", w.Code)
	}
}

func TestBadInputForTheBroker(t *testing.T) {
	r := newRig(t)
	if w := r.call(http.MethodPost, proxy+"query", "token", `{"sql":"`+strings.Repeat("x", maxJSONBody)+`"}`); w.Code != 413 {
		t.Errorf("a body that is too large: %d", w.Code)
	}
	if w := r.call(http.MethodPost, proxy+"query", "token", ""); w.Code != 411 {
		t.Errorf("no body: %d", w.Code)
	}
}

func TestWhatAGuestMakesUpIsNotBelieved(t *testing.T) {
	r := newRig(t)
	for _, status := range []int{101, 204, 302, 401, 600} {
		r.broker.call = func(context.Context, string, string, http.Header, string) (*http.Response, error) {
			return answered(status, "text/html", strings.NewReader("<script>"))
		}
		if w := r.call(http.MethodPost, proxy+"query", "token", "{}"); w.Code != 502 || strings.Contains(w.Body.String(), "script") {
			t.Errorf("%d: %d %s", status, w.Code, w.Body)
		}
	}
	r.broker.call = func(context.Context, string, string, http.Header, string) (*http.Response, error) {
		return answered(200, "text/html", strings.NewReader(`{"columns":[],"rows":[],"row_count":0,"command":"SET","truncated":false}`))
	}
	if w := r.call(http.MethodPost, proxy+"query", "token", "{}"); !strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") {
		t.Errorf("%v", w.Header())
	}
}

// A tenant is told of an error what its client may rely on, and nothing else.
func TestErrorsOfTheBrokerHaveAnSQLStateAndNoCode(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		status     int
		body, want string
		retry      bool
	}{
		{400, `{"error":"duplicate key","sqlstate":"23505","detail":"(n)=(1)","code":"sql_refused","failed":1}`, `{"error":"duplicate key","sqlstate":"23505","detail":"(n)=(1)","failed":1}`, false},
		{400, `{"error":"refused: BEGIN","code":"invalid"}`, `{"error":"refused: BEGIN","sqlstate":"08P01"}`, false},
		{409, `{"error":"no credentials yet","code":"no_tenant"}`, `{"error":"no credentials yet","sqlstate":"57P03"}`, false},
		{503, `{"error":"all sessions are in use","sqlstate":"53300","code":"too_many"}`, `{"error":"all sessions are in use","sqlstate":"53300"}`, true},
		{503, `{"error":"PostgreSQL does not serve","code":"not_ready"}`, `{"error":"PostgreSQL does not serve","sqlstate":"57P03"}`, true},
	} {
		r.broker.call = func(context.Context, string, string, http.Header, string) (*http.Response, error) {
			return answered(c.status, "application/json", strings.NewReader(c.body))
		}
		w := r.call(http.MethodPost, proxy+"transaction", "token", "{}")
		if w.Code != c.status || w.Body.String() != c.want || (w.Header().Get("Retry-After") != "") != c.retry {
			t.Errorf("%s: %d %s %v", c.body, w.Code, w.Body, w.Header())
		}
	}
	for _, body := range []string{"", "<script>", `{"code":"invalid"}`, `"no"`} {
		r.broker.call = func(context.Context, string, string, http.Header, string) (*http.Response, error) {
			return answered(400, "application/json", strings.NewReader(body))
		}
		if w := r.call(http.MethodPost, proxy+"query", "token", "{}"); w.Code != 502 || strings.Contains(w.Body.String(), "script") {
			t.Errorf("%q: %d %s", body, w.Code, w.Body)
		}
	}
}

// What a guest says of an error counts against the memory of its workspace, if it is much.
func TestALargeErrorOfTheBrokerIsAdmitted(t *testing.T) {
	r := newRig(t)
	held, full := int64(0), false
	r.streams.admit = func(bytes int64) (func(), error) {
		if full {
			return nil, &apierror.Error{Code: apierror.ERateLimited, Message: "too much input at once"}
		}
		held += bytes
		return func() { held = 0 }, nil
	}
	quoted := strings.Repeat("x", 1<<20)
	for _, c := range []struct {
		error  string
		full   bool
		status int
	}{{quoted, false, 400}, {quoted, true, 429}, {"no", true, 400}} {
		full = c.full
		most := int64(0)
		look := readerFunc(func([]byte) (int, error) { most = held; return 0, io.EOF })
		body := io.MultiReader(strings.NewReader(`{"sqlstate":"23505","error":"`+c.error), look, strings.NewReader(`"}`))
		r.broker.call = func(context.Context, string, string, http.Header, string) (*http.Response, error) {
			return answered(400, "application/json", body)
		}
		w := r.call(http.MethodPost, proxy+"query", "token", "{}")
		if w.Code != c.status || c.status == 400 && !strings.Contains(w.Body.String(), c.error) || held != 0 {
			t.Errorf("an error of %d bytes: %d %.80s, %d bytes are held", len(c.error), w.Code, w.Body, held)
		}
		if large := c.error == quoted && !c.full; large != (most >= maxBrokerRefusal) {
			t.Errorf("an error of %d bytes was read with %d bytes held", len(c.error), most)
		}
	}
}

// Every error below /proxy has an SQLSTATE, whoever refuses: clients tell them apart by it.
func TestErrorsOfTheWayHaveAnSQLState(t *testing.T) {
	limited := false
	r := newRig(t, func(c *Config) {
		c.Limiter = limiterFunc(func(string) error {
			if limited {
				return errRateLimited
			}
			return nil
		})
	})
	crowded := &apierror.Error{Code: apierror.ERateLimited, Message: "no", Fields: map[string]any{"max": 1}}
	for _, c := range []struct {
		name, token, body string
		limited           bool
		err               error
		status            int
		state             string
	}{
		{name: "its own", token: "token", body: "{}", err: &apierror.Error{Code: apierror.EConflict, Message: "no", Fields: map[string]any{"sqlstate": "3D000"}}, status: 409, state: "3D000"},
		{name: "no token", body: "{}", status: 401, state: "28000"},
		{name: "no JSON", token: "token", body: "{", status: 400, state: "08P01"},
		{name: "too large", token: "token", body: `{"sql":"` + strings.Repeat("x", maxJSONBody) + `"}`, status: 413, state: "54000"},
		{name: "too many requests", token: "token", body: "{}", limited: true, status: 429, state: "53300"},
		{name: "with fields", token: "token", body: "{}", err: crowded, status: 429, state: "53300"},
		{name: "broke off", token: "token", body: "{}", err: apierror.Unreachable("the database broke off", nil), status: 502, state: "08006"},
		{name: "not ready", token: "token", body: "{}", err: apierror.Unavailable("no leader", nil), status: 503, state: "57P03"},
		{name: "a fault", token: "token", body: "{}", err: errors.New("secret"), status: 500, state: "XX000"},
	} {
		limited = c.limited
		r.broker.call = func(context.Context, string, string, http.Header, string) (*http.Response, error) { return nil, c.err }
		w := r.call(http.MethodPost, proxy+"query", c.token, c.body)
		if w.Code != c.status || !strings.Contains(w.Body.String(), `"sqlstate":"`+c.state+`"`) {
			t.Errorf("%s: %d %s, want %d and %s", c.name, w.Code, w.Body, c.status, c.state)
		}
	}
	if len(crowded.Fields) != 1 {
		t.Errorf("an error that others share has changed: %v", crowded.Fields)
	}
	if w := r.call(http.MethodGet, "/v1/sandboxes", "nobody", ""); strings.Contains(w.Body.String(), "sqlstate") {
		t.Errorf("%s", w.Body)
	}
}

// Each line of a result reaches the client while the statement still runs.
func TestLinesPassThroughAsTheyCome(t *testing.T) {
	r := newRig(t)
	rows, write := io.Pipe()
	r.broker.call = func(_ context.Context, _, _ string, header http.Header, _ string) (*http.Response, error) {
		if header.Get("Accept") != typeNDJSON {
			t.Errorf("%v", header)
		}
		return answered(200, typeNDJSON, rows)
	}
	server := r.server()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+proxy+"query", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer token")
	req.Header.Set("Accept", typeNDJSON)
	go func() { _, _ = io.WriteString(write, "[1]\n") }()
	resp, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	for _, want := range []string{"[1]\n", "[2]\n"} {
		if line, err := lines.ReadString('\n'); err != nil || line != want {
			t.Fatalf("%q, %v", line, err)
		}
		go func() { _, _ = io.WriteString(write, "[2]\n") }()
	}
	write.CloseWithError(errors.New("the guest is gone"))
	if _, err := io.ReadAll(lines); err == nil {
		t.Error("an answer that broke off looks whole")
	}
}
