package app

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// A build's caches of packages and compilers are kept as a blob and given to the app's next
// build. The blob comes from a guest, so only guests look into it.

// cacheSlack is how much larger than the limit of the caches their archive may be, in
// bytes.
const cacheSlack = 16 << 20

var errCacheTooLarge = errors.New("it has become too large")

// cacheFor returns the cache for a deployment's build: the one kept by the app's latest
// build, or for a preview without a cache its parent's. A preview never writes its parent's
// cache, and never reads one that may contain values for production alone; one with the code
// of a fork reads none of its parent's.
func cacheFor(r raftstore.Reader, a *record.App, d *record.Deployment) (record.AppUpload, bool) {
	if d.NoCache {
		return record.AppUpload{}, false
	}
	if a.Cache == nil && a.ParentID != "" && !a.Fork {
		parent, ok := raftstore.Get(r, record.Apps, a.ParentID)
		if ok && parent.WorkspaceID == a.WorkspaceID && parent.GitURL == a.GitURL && parent.Cache != nil && !parent.Cache.Private {
			a = parent
		}
	}
	if a.Cache == nil {
		return record.AppUpload{}, false
	}
	return *a.Cache, true
}

// dropCache marks an app's cache for deletion.
func dropCache(r raftstore.Reader, a *record.App) {
	if a.Cache == nil {
		return
	}
	old := *a.Cache
	old.Dropped = true
	a.Uploads, a.Cache = append(a.Uploads, old), nil
	boundDropped(r, a)
}

// handOverCache gives a guest the cache of an earlier build. Without it, a build only takes
// longer.
func (f *Flows) handOverCache(ctx context.Context, requestID string, box *record.Sandbox, d *record.Deployment, a *record.App) {
	u, ok := cacheFor(f.Store.View(), a, d)
	if !ok || *f.cfg.CacheMB == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.CacheTime)
	defer cancel()
	err := func() error {
		cache, _, err := f.getBlob(hosts.WithRequestID(ctx, requestID), placeOf(u), u.ID)
		if err != nil {
			return err
		}
		defer cache.Close()
		return f.onGuest(ctx, requestID, box, 0, func(ctx context.Context, g *appapi.Client) error { return g.PutCache(ctx, cache) })
	}()
	if err != nil {
		f.Logger.InfoContext(ctx, "app is built without its caches", "app_id", a.ID, "deployment_id", d.ID, "error", err)
	}
}

// saveCache keeps the caches of a build. The deployment is live already and stays live,
// whatever the outcome.
func (f *Flows) saveCache(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data deploy
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	d, a, ok := subject(run.View, run.Flow)
	if !ok {
		return resource.Finish, nil
	}
	u := record.AppUpload{ID: cachePrefix + d.ID, Private: data.Private}
	var err error = errBoxGone
	if box, there := raftstore.Get(run.View, record.Sandboxes, data.SandboxID); there && box.Status == record.SandboxRunning && mayCache(run.View, a, d) {
		var at blobPlace
		at, u.SizeBytes, err = f.fetchCache(ctx, data.RequestID, box, u.ID)
		u.HostID, u.Local = at.host, at.local
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		f.Logger.InfoContext(ctx, "caches of an app are not kept", "app_id", a.ID, "deployment_id", d.ID, "error", err)
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		d, a, ok := subject(tx, run.Flow)
		if !ok {
			return flow.Done(), nil
		}
		a = a.Clone()
		u.CreatedAt = tx.Now()
		if err == nil && mayCache(tx, a, d) {
			dropCache(tx, a)
			a.Cache = &u
		} else { // an earlier attempt may have stored it
			u.Dropped = true
			a.Uploads = append(a.Uploads, u)
			boundDropped(tx, a)
		}
		raftstore.Put(tx, record.Apps, a)
		return flow.Done(), nil
	}, nil
}

// forgetCache ends a deployment that has expired after it went live. An earlier attempt of
// the step before may have stored the caches, and no row names them yet.
func (f *Flows) forgetCache(run flow.Run, data deploy) flow.Commit {
	return func(tx *raftstore.Tx) (flow.Next, error) {
		d, a, ok := subject(tx, run.Flow)
		if !ok || d.Status != record.DeploymentLive {
			return flow.Done(), nil
		}
		a = a.Clone()
		a.Uploads = append(a.Uploads, record.AppUpload{ID: cachePrefix + d.ID, CreatedAt: tx.Now(), Private: data.Private, Dropped: true})
		boundDropped(tx, a)
		raftstore.Put(tx, record.Apps, a)
		return flow.Done(), nil
	}
}

// mayCache reports whether the next build may get the caches of a deployment: the app
// serves this deployment, and no later deployment clears the caches.
func mayCache(r raftstore.Reader, a *record.App, d *record.Deployment) bool {
	if a.Status == record.AppDeleting || a.DeploymentID != d.ID {
		return false
	}
	rows := deploymentsOf(r, a.ID)
	later := rows[slices.IndexFunc(rows, func(row *record.Deployment) bool { return row.ID == d.ID })+1:]
	return !slices.ContainsFunc(later, func(row *record.Deployment) bool { return row.NoCache })
}

// fetchCache streams the caches of a build from its guest to a host that keeps blobs.
func (f *Flows) fetchCache(ctx context.Context, requestID string, box *record.Sandbox, name string) (at blobPlace, size int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.CacheTime)
	defer cancel()
	err = f.onGuest(ctx, requestID, box, 0, func(ctx context.Context, g *appapi.Client) error {
		body, err := g.Cache(ctx)
		if err != nil {
			return err
		}
		defer body.Close()
		limited := &limitedReader{r: body, left: int64(*f.cfg.CacheMB)<<20 + cacheSlack}
		if at, size, err = f.putBlob(hosts.WithRequestID(ctx, requestID), name, limited); limited.left < 0 {
			return errCacheTooLarge
		}
		return err
	})
	return at, size, err
}

// cacheTime is the default limit for moving caches to or from a guest.
const cacheTime = 2 * time.Minute
