package hostapi

import (
	"context"
	"net/http"

	"github.com/berth-cloud/berth/guest/pgapi"
)

// PutDatabase makes a box a database's. The same again changes nothing.
func (c *Client) PutDatabase(ctx context.Context, id string, spec DatabaseSpec) (DatabaseState, error) {
	var out DatabaseState
	return out, c.do(ctx, http.MethodPut, databasePath(id, ""), spec, &out)
}

// GetDatabase returns what the guest answers now.
func (c *Client) GetDatabase(ctx context.Context, id string) (DatabaseState, error) {
	var out DatabaseState
	return out, c.do(ctx, http.MethodGet, databasePath(id, ""), nil, &out)
}

// SetCredentials sets the tenant's credentials and proves them by a log-in. After
// CodeNotVerified the old ones are in force.
func (c *Client) SetCredentials(ctx context.Context, id string, creds pgapi.Credentials) (pgapi.CredentialsApplied, error) {
	var out pgapi.CredentialsApplied
	return out, c.do(ctx, http.MethodPut, databasePath(id, "/credentials"), creds, &out)
}

// StartBackup begins a base backup, unless one is under way.
func (c *Client) StartBackup(ctx context.Context, id string) error {
	return c.do(ctx, http.MethodPost, databasePath(id, "/backup"), struct{}{}, nil)
}

// SwitchWAL returns once all that was written before is archived.
func (c *Client) SwitchWAL(ctx context.Context, id string) (DatabaseState, error) {
	var out DatabaseState
	return out, c.do(ctx, http.MethodPost, databasePath(id, "/switch"), struct{}{}, &out)
}

// SleepDatabase hibernates a database that has been idle for so long, once all its
// WAL is archived. One that is not idle is CodeDatabaseBusy.
func (c *Client) SleepDatabase(ctx context.Context, id string, s DatabaseSleep) (Box, error) {
	var out Box
	return out, c.do(ctx, http.MethodPost, databasePath(id, "/sleep"), s, &out)
}

// RestartBox boots a box that has failed from its disk. One that runs is left as it is.
func (c *Client) RestartBox(ctx context.Context, id string) (Box, error) {
	var out Box
	return out, c.do(ctx, http.MethodPost, PathBoxes+"/"+id+"/restart", struct{}{}, &out)
}

// ArchiveInfo returns what the bucket has of an archive.
func (c *Client) ArchiveInfo(ctx context.Context, a Archive) (ArchiveInfo, error) {
	var out ArchiveInfo
	return out, c.do(ctx, http.MethodPost, PathArchives+"/info", a, &out)
}

// PruneArchive removes what no restore to a moment after p.Before needs.
func (c *Client) PruneArchive(ctx context.Context, p ArchivePrune) (ArchiveInfo, error) {
	var out ArchiveInfo
	return out, c.do(ctx, http.MethodPost, PathArchives+"/prune", p, &out)
}

// FenceArchive has nothing be written to an archive from now on.
func (c *Client) FenceArchive(ctx context.Context, a Archive) error {
	return c.do(ctx, http.MethodPost, PathArchives+"/fence", a, nil)
}

// DeleteArchive removes an archive; one that is gone is no error.
func (c *Client) DeleteArchive(ctx context.Context, a Archive) error {
	return gone(c.do(ctx, http.MethodPost, PathArchives+"/delete", a, nil), CodeNoArchive)
}

func databasePath(id, rest string) string { return PathBoxes + "/" + id + "/database" + rest }
