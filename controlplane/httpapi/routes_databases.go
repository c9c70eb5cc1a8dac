package httpapi

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/peer"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// Databases are the use cases of /v1/databases.
type Databases interface {
	Create(ctx context.Context, c core.Caller, in api.CreateDatabase, i core.Idempotency) (api.Database, error)
	Get(ctx context.Context, c core.Caller, id string) (api.Database, error)
	List(ctx context.Context, c core.Caller, o core.ListOptions) (page []api.Database, next string, err error)
	Connection(ctx context.Context, c core.Caller, id string) (api.DatabaseConnection, error)
	Patch(ctx context.Context, c core.Caller, id string, in api.PatchDatabase) (api.Database, error)
	Delete(ctx context.Context, c core.Caller, id string) error
	Wake(ctx context.Context, c core.Caller, id string) (api.DatabaseWake, error)
	ResetCredentials(ctx context.Context, c core.Caller, id string) (api.DatabaseConnection, error)
	Clone(ctx context.Context, c core.Caller, id string, in api.CloneDatabase, i core.Idempotency) (api.Database, error)
	Failover(ctx context.Context, c core.Caller, id string, in api.FailoverDatabase) (api.DatabaseFailover, error)
	Archive(ctx context.Context, c core.Caller, id string) (api.DatabaseArchive, error)
	Logs(ctx context.Context, c core.Caller, id string, tail int) (io.ReadCloser, error)
	FollowLogs(ctx context.Context, c core.Caller, id string, tail int) (core.Follower[sandbox.LogLine], error)
}

// errNoRoom is the error of each wake of a database on a full host.
var errNoRoom = apierror.Error{
	Code: apierror.EBadGateway, Message: "no available compute node", Detail: "its host has no room to wake it: insufficient host memory for sandbox",
}

// databaseRoutes are the routes of managed PostgreSQL databases.
func databaseRoutes() []route {
	conflict := func(message, detail string) apierror.Error {
		return apierror.Error{Code: apierror.EConflict, Message: message, Detail: detail}
	}
	full := apierror.Error{Code: apierror.EBadGateway, Message: "no available compute node"}
	away := apierror.Error{Code: apierror.EBadGateway, Message: "agent unreachable"}
	size := apierror.Error{Code: apierror.EInvalid, Message: "size must be 1g, 4g or 16g"}
	suspended := apierror.Error{Code: apierror.EForbidden, Message: "account suspended"}
	tooMany := apierror.Error{Code: apierror.ERateLimited, Message: "max databases reached", Fields: map[string]any{"max": 100, "active": 100}}
	noArchive := apierror.Error{Code: apierror.ENoArchive, Message: "no restorable archive", Detail: "the first base backup is yet to be made"}
	damaged := apierror.Error{Code: apierror.EUnprocessable, Message: "archive is damaged", Detail: "wal/000000010000000000000003 has other bytes"}
	single := apierror.Error{Code: apierror.ENotImplemented, Message: "not available on a single-node install"}
	return []route{
		{post, "/v1/databases", workspace, (*API).createDatabase, operation{
			id: "createDatabase", tag: "Databases", summary: "Create a PostgreSQL database",
			detail: "Answers at once with status `provisioning`: read it until it is `running`, or `failed`, and `error` says why. " +
				"`cpu` and `memory_mb` are recorded and have no effect.",
			idempotent: true,
			body:       exampleCreateDatabase, status: 202, answer: exampleNewDatabase,
			failures: []apierror.Error{size, {Code: apierror.EInvalid, Message: "invalid label", Detail: "a label has at most 100 characters"}, suspended, tooMany, full},
		}},
		{get, "/v1/databases", workspace, (*API).listDatabases, operation{
			id: "listDatabases", tag: "Databases", summary: "List databases, newest first", detail: "Without passwords and broker tokens.",
			list: true, status: 200, answer: []api.Database{exampleNewDatabase},
		}},
		{get, "/v1/databases/:id", workspace, (*API).getDatabase, operation{
			id: "getDatabase", tag: "Databases", summary: "Read one database, with its credentials while it runs",
			status: 200, answer: exampleDatabase,
		}},
		{get, "/v1/databases/:id/connection", workspace, (*API).getDatabaseConnection, operation{
			id: "getDatabaseConnection", tag: "Databases", summary: "Read how a database is reached, with its credentials while it runs",
			status: 200, answer: exampleConnection,
		}},
		{patch, "/v1/databases/:id", workspace, (*API).patchDatabase, operation{
			id: "patchDatabase", tag: "Databases", summary: "Change whether a database is put to sleep when it is idle",
			body: api.PatchDatabase{AlwaysOn: true}, status: 200, answer: exampleDatabase,
			failures: []apierror.Error{{Code: apierror.EInvalid, Message: errNoFields.Message}},
		}},
		{del, "/v1/databases/:id", workspace, (*API).deleteDatabase, operation{
			id: "deleteDatabase", tag: "Databases", summary: "Delete a database and everything that it could be restored from",
			status: 204, also: goesOn,
			failures: []apierror.Error{conflict("database is being cloned", "its clone is provisioning: wait until it runs, or delete it first")},
		}},
		{post, "/v1/databases/:id/wake", workspace, (*API).wakeDatabase, operation{
			id: "wakeDatabase", tag: "Databases", summary: "Wake a database that hibernates",
			detail: "Whoever connects to one wakes it too.",
			body:   api.Empty{}, status: 202, answer: api.DatabaseWake{Status: api.DatabaseWaking, Detail: "it runs in a moment"},
			failures: []apierror.Error{conflict("database is provisioning", ""), errNoRoom, away},
		}},
		{post, "/v1/databases/:id/reset-credentials", workspace, (*API).resetCredentials, operation{
			id: "resetCredentials", tag: "Databases", summary: "Rotate the password and the broker token of a running database",
			detail: "Answers once a log-in with them was made. Who was logged in with the old password is cut off. " +
				"An error means that the old ones are in force, or will be; after a 503 a read says which are.",
			body: api.Empty{}, status: 200, answer: exampleConnection,
			failures: []apierror.Error{
				conflict("database is hibernated", ""), conflict("a rotation of its credentials is under way", ""),
				conflict("database takes no writes", "PostgreSQL serves reads alone: 412 of 10240 MB of the volume are free: the data fills it"), single,
				{Code: apierror.EBadGateway, Message: "agent unreachable", Detail: "the old credentials are in force"},
			},
		}},
		{post, "/v1/databases/:id/clone", workspace, (*API).cloneDatabase, operation{
			id: "cloneDatabase", tag: "Databases", summary: "Clone a database, as it is or as of a point in time",
			detail:     "Of databases that run, hibernate or have failed. Answers at once, as a create does. Another `size` is how a database is resized.",
			idempotent: true,
			body:       exampleClone, status: 202, answer: exampleCloned,
			failures: []apierror.Error{
				size, suspended, tooMany, noArchive, single, full,
				{Code: apierror.EInvalid, Message: "invalid target_time (want RFC3339, such as 2026-11-20T13:05:09Z)"},
				{Code: apierror.EInvalid, Message: "target_time must be at least 2 minutes in the past (it is now 2026-11-20T13:06:09.000Z)"},
				{Code: apierror.EInvalid, Message: "target_time is beyond the last archived WAL (2026-11-20T13:04:41.120Z) of the source"},
				damaged, away,
			},
		}},
		{post, "/v1/databases/:id/failover", workspace, (*API).failOverDatabase, operation{
			id: "failoverDatabase", tag: "Databases", summary: "Fail a database over: restore it on another host, from its archive",
			detail: "It keeps its id, its host name and its credentials. With `force` also one that runs: what it wrote in the last minute may be lost.",
			body:   api.FailoverDatabase{}, status: 202, answer: api.DatabaseFailover{
				ID: exampleDatabase.ID, Status: api.DatabaseRestoring,
				Error: "it is restored from its archive, which ends at LSN 0/5000060, 2026-11-20T13:04:41.120Z; what was written after 2026-11-20T13:05:06.305Z may be lost",
			},
			failures: []apierror.Error{
				conflict("database is running", "force stops it and restores what is archived"), conflict("database is hibernated", "wake it instead"),
				conflict("database is restoring", "a failover is under way"), noArchive, damaged, single,
				{Code: apierror.ERateLimited, Message: "too many failovers", Detail: "each leaves an archive that is kept until nothing of the last 7 days needs it", Fields: map[string]any{"max": 32, "active": 32}},
				{Code: apierror.EUnavailable, Message: "no healthy agent available"}, away,
			},
		}},
		{get, "/v1/databases/:id/archive", workspace, (*API).getDatabaseArchive, operation{
			id: "getDatabaseArchive", tag: "Databases", summary: "Read what a database can be restored from",
			status: 200, answer: exampleArchive, failures: []apierror.Error{damaged, away},
		}},
		{get, "/v1/databases/:id/logs", workspace, (*API).showDatabaseLogs, operation{
			id: "databaseLogs", tag: "Databases", summary: "Read what a database's server has written",
			detail: "Text, or with `follow` server-sent events named `stdout` or `stderr` with a LogLine.",
			query: []parameter{
				{name: "tail", description: "At most so many lines of those that are there.", schema: anInteger(1, math.MaxInt32)},
				toFollow,
			},
			status: 200, answerType: "text/plain", acceptType: typeEvents, events: map[string]any{
				"stdout": api.LogLine{}, "stderr": api.LogLine{}, "error": api.ErrorBody{},
			},
			failures: append(refusals(apierror.EInvalid, "invalid tail", "invalid follow"),
				conflict("database is hibernated", "its log is in its virtual machine: wake it first"),
				apierror.Error{Code: apierror.ENotFound, Message: "sandbox not found or not running"}, manyStreams, away),
		}},
	}
}

var errNoFields = &apierror.Error{Code: apierror.EInvalid, Message: "no updatable fields provided (supported: always_on)"}

// whole completes a database's broker URL with the address by which the client
// reached the API.
func whole(c *gin.Context, d api.Database) api.Database {
	d.BrokerURL = baseURL(c.Request) + d.BrokerURL
	return d
}

func wholeConnection(c *gin.Context, d api.DatabaseConnection) api.DatabaseConnection {
	d.BrokerURL = baseURL(c.Request) + d.BrokerURL
	return d
}

// baseURL returns the address by which a client reached the API, according to
// proxies and the replica that forwarded the request.
func baseURL(r *http.Request) string { return peer.ClientScheme(r) + "://" + r.Host }

func (a *API) createDatabase(c *gin.Context) error {
	in, key, err := bindCreate[api.CreateDatabase](c)
	if err != nil {
		return err
	}
	key.Shown = func(d any) any { return whole(c, d.(api.Database)) }
	d, err := a.cfg.Databases.Create(c.Request.Context(), callerOf(c), in, key)
	if err != nil {
		return err
	}
	return accepted(c, whole(c, d))
}

func (a *API) listDatabases(c *gin.Context) error {
	o, err := listOptions(c)
	if err != nil {
		return err
	}
	rows, next, err := a.cfg.Databases.List(c.Request.Context(), callerOf(c), o)
	if err != nil {
		return err
	}
	return page(c, o, core.Each(rows, func(d api.Database) api.Database { return whole(c, d) }), next)
}

func (a *API) getDatabase(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	d, err := a.cfg.Databases.Get(c.Request.Context(), callerOf(c), id)
	if err != nil {
		return err
	}
	return ok(c, whole(c, d))
}

func (a *API) getDatabaseConnection(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	d, err := a.cfg.Databases.Connection(c.Request.Context(), callerOf(c), id)
	if err != nil {
		return err
	}
	return ok(c, wholeConnection(c, d))
}

// patchDatabase accepts only always_on. It refuses other members, because the client
// would expect them to take effect.
func (a *API) patchDatabase(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	members, _, err := bind[map[string]json.RawMessage](c, maxJSONBody)
	if err != nil {
		return err
	}
	in := api.PatchDatabase{AlwaysOn: string(members["always_on"]) == "true"}
	if len(members) != 1 || !in.AlwaysOn && string(members["always_on"]) != "false" {
		if _, err := a.cfg.Databases.Get(c.Request.Context(), callerOf(c), id); err != nil {
			return err
		}
		return errNoFields
	}
	d, err := a.cfg.Databases.Patch(c.Request.Context(), callerOf(c), id, in)
	if err != nil {
		return err
	}
	return ok(c, whole(c, d))
}

func (a *API) deleteDatabase(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	return removed(c, a.cfg.Databases.Delete(c.Request.Context(), callerOf(c), id))
}

func (a *API) wakeDatabase(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	if _, _, err := bind[api.Empty](c, maxJSONBody); err != nil {
		return err
	}
	w, err := a.cfg.Databases.Wake(c.Request.Context(), callerOf(c), id)
	if err != nil {
		return err
	}
	return accepted(c, w)
}

func (a *API) resetCredentials(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	if _, _, err := bind[api.Empty](c, maxJSONBody); err != nil {
		return err
	}
	d, err := a.cfg.Databases.ResetCredentials(c.Request.Context(), callerOf(c), id)
	if err != nil {
		return err
	}
	return ok(c, wholeConnection(c, d))
}

func (a *API) cloneDatabase(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	in, key, err := bindCreate[api.CloneDatabase](c)
	if err != nil {
		return err
	}
	key.Shown = func(d any) any { return whole(c, d.(api.Database)) }
	d, err := a.cfg.Databases.Clone(c.Request.Context(), callerOf(c), id, in, key)
	if err != nil {
		return err
	}
	return accepted(c, whole(c, d))
}

func (a *API) failOverDatabase(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	in, _, err := bind[api.FailoverDatabase](c, maxJSONBody)
	if err != nil {
		return err
	}
	f, err := a.cfg.Databases.Failover(c.Request.Context(), callerOf(c), id, in)
	if err != nil {
		return err
	}
	return accepted(c, f)
}

func (a *API) getDatabaseArchive(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	info, err := a.cfg.Databases.Archive(c.Request.Context(), callerOf(c), id)
	if err != nil {
		return err
	}
	return ok(c, info)
}

func (a *API) showDatabaseLogs(c *gin.Context) error {
	id, err := pathID(c, "id")
	if err != nil {
		return err
	}
	return showLines(c, a.cfg.Databases, id)
}
