package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
)

// Broker passes requests to the query brokers in databases' guests.
type Broker interface {
	// Admit checks the broker token of a request to a database, and returns the
	// database's workspace.
	Admit(r *http.Request, id string) (workspaceID string, err error)
	// Call passes on a request and returns the broker's answer. The caller closes
	// the answer's body.
	Call(ctx context.Context, id, method, operation string, header http.Header, body io.Reader) (*http.Response, error)
}

const typeNDJSON = "application/x-ndjson"

// brokerRoutes are SQL over HTTP. They are the only operations of the guest's broker
// that tenants may call; the others are the platform's.
func brokerRoutes() []route {
	const woken = "A database that sleeps is woken. What PostgreSQL or the broker refuses has a `sqlstate`. "
	failures := func(more ...apierror.Error) []apierror.Error {
		return append(more,
			apierror.Error{Code: apierror.EConflict, Message: "the database has failed", Detail: "host h1 is lost"},
			apierror.Error{Code: apierror.EBadGateway, Message: "agent unreachable", Detail: "the database broke off; the statement may or may not have run"},
			apierror.Error{Code: apierror.EUnavailable, Message: "the database did not become ready in time"},
			apierror.Error{Code: apierror.EBadGateway, Message: errNoRoom.Message, Detail: errNoRoom.Detail},
		)
	}
	refusedSQL := apierror.Error{Code: apierror.EInvalid, Message: `column "oops" does not exist`, Fields: map[string]any{"sqlstate": "42703"}}
	timedOut := apierror.Error{Code: codeTimeout, Message: "the statement took longer than its time-out", Fields: map[string]any{"sqlstate": "57014"}}
	return []route{
		{post, "/v1/databases/:id/proxy/query", brokerToken, passToBroker("query", checked[api.SQLQuery]), operation{
			id: "queryDatabase", tag: "SQL", summary: "Run one SQL statement",
			detail: woken + "Rows over 10,000, or 8 MiB, are left out, and `truncated` is true. Whoever accepts only `" + typeNDJSON + "` gets all of them, a line each: " +
				"first `{columns}`, then the rows, then `{row_count, command}` or an error. A client that goes away ends the statement.",
			anyReplica: true, body: exampleQuery, status: 200, answer: exampleQueryResult, acceptType: typeNDJSON,
			failures: failures(refusedSQL, timedOut),
		}},
		{post, "/v1/databases/:id/proxy/batch", brokerToken, passToBroker("batch", checked[api.SQLQueries]), operation{
			id: "batchDatabase", tag: "SQL", summary: "Run SQL statements, each by itself",
			detail:     woken + "One that fails has its error in its place, and the next runs all the same. After one that was cut off, as by the time-out, none is run.",
			anyReplica: true, body: exampleQueries, status: 200, answer: exampleBatchResults,
			failures: failures(apierror.Error{Code: apierror.EInvalid, Message: "200 queries: want 1 to 100"}),
		}},
		{post, "/v1/databases/:id/proxy/transaction", brokerToken, passToBroker("transaction", checked[api.SQLQueries]), operation{
			id: "transactDatabase", tag: "SQL", summary: "Run SQL statements in one transaction",
			detail:     woken + "If one fails nothing has happened, and the answer is its error, with its number, from 0, in `failed`.",
			anyReplica: true, body: exampleTransaction, status: 200, answer: exampleTransactionResults,
			failures: failures(refusedSQL, timedOut),
		}},
		{get, "/v1/databases/:id/proxy/schema", brokerToken, passToBroker("schema", nil), operation{
			id: "databaseSchema", tag: "SQL", summary: "Describe the tables of a database",
			detail:     woken,
			anyReplica: true, status: 200, answer: exampleSchema, failures: failures(timedOut),
		}},
	}
}

// admitBroker admits requests with the broker token of the database.
func (a *API) admitBroker(c *gin.Context) error {
	workspaceID, err := a.cfg.Broker.Admit(c.Request, c.Param("id"))
	if err != nil {
		return err
	}
	c.Set(keyCaller, core.Caller{WorkspaceID: workspaceID, RequestID: requestID(c)})
	if a.cfg.Limiter != nil {
		return a.cfg.Limiter.Allow(workspaceID)
	}
	return nil
}

// checked checks that the body is a T, and returns it as received.
func checked[T any](c *gin.Context) ([]byte, error) {
	_, raw, err := bind[T](c, maxJSONBody)
	return raw, err
}

// passToBroker returns a handler that passes on a request. read reads its body; nil:
// there is none.
func passToBroker(operation string, read func(*gin.Context) ([]byte, error)) func(*API, *gin.Context) error {
	return func(a *API, c *gin.Context) error {
		method, header, body := http.MethodGet, http.Header{}, []byte(nil)
		if read != nil {
			release, err := a.admitBody(c, maxJSONBody)
			if err != nil {
				return err
			}
			defer release()
			if body, err = read(c); err != nil {
				return err
			}
			method = http.MethodPost
			header.Set("Content-Type", typeJSON)
		}
		if strings.Contains(c.GetHeader("Accept"), typeNDJSON) {
			header.Set("Accept", typeNDJSON)
		}
		resp, err := a.cfg.Broker.Call(c.Request.Context(), c.Param("id"), method, operation, header, bytes.NewReader(body))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		return a.answerOfBroker(c, resp)
	}
}

// answerOfBroker passes on a guest's answer. Only its status, JSON and type are
// trusted.
func (a *API) answerOfBroker(c *gin.Context, resp *http.Response) error {
	kind := typeJSON
	if resp.Header.Get("Content-Type") == typeNDJSON {
		kind = typeNDJSON
	}
	switch {
	case resp.StatusCode == http.StatusOK:
	case resp.StatusCode < http.StatusBadRequest, resp.StatusCode > 599, resp.StatusCode == http.StatusUnauthorized:
		return apierror.Unreachable("the database's answer makes no sense", nil)
	}
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
		c.Header("Retry-After", "1")
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return a.refusalOfBroker(c, resp)
	}
	c.Header("Content-Type", kind)
	return passOn(c, resp.StatusCode, resp.Body, kind == typeNDJSON)
}

// maxBrokerRefusal bounds what a guest may say of an error, in bytes: a replica has it in
// memory, and one that is large counts as input. PostgreSQL may quote a value as long as the
// request.
const maxBrokerRefusal = 4 * maxJSONBody

// sqlStates are the SQLSTATEs of errors that neither PostgreSQL nor its broker has said.
var sqlStates = map[apierror.Code]string{
	apierror.EInvalid:      "08P01", // protocol_violation
	apierror.EUnauthorized: "28000", // invalid_authorization_specification
	apierror.EQuota:        "53400", // configuration_limit_exceeded
	apierror.ENotFound:     "3D000", // invalid_catalog_name
	codeTimeout:            "08P01",
	apierror.EConflict:     "57P03", // cannot_connect_now
	apierror.ETooLarge:     "54000", // program_limit_exceeded
	apierror.ERateLimited:  "53300", // too_many_connections
	apierror.EBadGateway:   "08006", // connection_failure
	apierror.EUnavailable:  "57P03",
}

// withSQLState adds an SQLSTATE to an error that has none: clients of the broker tell
// errors apart by it, whoever refuses.
func withSQLState(e *apierror.Error) *apierror.Error {
	if _, has := e.Fields["sqlstate"]; has {
		return e
	}
	told := *e
	told.Fields = map[string]any{"sqlstate": cmp.Or(sqlStates[e.Code], "XX000")} // internal_error
	maps.Copy(told.Fields, e.Fields)                                             // the error may be shared
	return &told
}

// brokerRefusal is what a tenant is told of an error of the broker.
type brokerRefusal struct {
	Error    string `json:"error"`
	SQLState string `json:"sqlstate"`
	Detail   string `json:"detail,omitempty"`
	Failed   *int   `json:"failed,omitempty"`
}

// refusalOfBroker passes on a guest's error. What guests and hosts tell each other
// beside it, as a code, is not the tenant's; a guest of an earlier version has no
// SQLSTATE for what PostgreSQL did not say.
func (a *API) refusalOfBroker(c *gin.Context, resp *http.Response) error {
	var e brokerRefusal
	raw, err := io.ReadAll(io.LimitReader(resp.Body, freeInput))
	if err == nil && len(raw) == freeInput {
		release, admission := a.cfg.Inputs.AdmitInput(c.Request.Context(), callerOf(c), inputCopies*maxBrokerRefusal)
		if admission != nil {
			return admission
		}
		defer release()
		var rest []byte
		rest, err = io.ReadAll(io.LimitReader(resp.Body, maxBrokerRefusal-freeInput))
		raw = append(raw, rest...)
	}
	if err == nil {
		err = json.Unmarshal(raw, &e)
	}
	if err != nil || e.Error == "" {
		return apierror.Unreachable("the database's answer makes no sense", err)
	}
	if e.SQLState == "" {
		switch resp.StatusCode {
		case http.StatusTooManyRequests:
			e.SQLState = "53300"
		case http.StatusConflict, http.StatusServiceUnavailable:
			e.SQLState = "57P03"
		default:
			e.SQLState = "08P01"
		}
	}
	c.JSON(resp.StatusCode, e)
	return nil
}
