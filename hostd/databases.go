package hostd

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/berth-cloud/berth/hostd/bucket"
	"github.com/berth-cloud/berth/hostd/database"
	"github.com/berth-cloud/berth/hostd/pgarchive"
)

// openArchiveBucket opens where the archives of databases are; nil where there is no
// such place.
func openArchiveBucket(ctx context.Context, cfg Config) (bucket.Bucket, error) {
	if cfg.ArchiveStore == "" {
		return nil, nil
	}
	u, err := url.Parse(cfg.ArchiveStore)
	if err != nil {
		return nil, fmt.Errorf("BERTH_ARCHIVE_STORE: %w", err)
	}
	b, err := bucket.Open(ctx, u)
	if err != nil {
		return nil, fmt.Errorf("BERTH_ARCHIVE_STORE: %s: %w", u.Redacted(), err)
	}
	return b, nil
}

// openDatabases opens what keeps this host's databases, where they can be archived.
func (d *Daemon) openDatabases(ctx context.Context) error {
	b, err := openArchiveBucket(ctx, d.cfg)
	if err != nil || b == nil {
		return err
	}
	d.archives = pgarchive.New(b)
	return nil
}

// assembleDatabases puts them beside the boxes.
func (d *Daemon) assembleDatabases() {
	if d.archives == nil {
		return
	}
	guests := d.boxes.Guests()
	d.databases = database.New(database.Config{
		Boxes: d.boxes, Store: d.archives, Quota: database.Quota{Disks: d.cfg.ArchiveQuota, Objects: database.MaxObjects}, Metrics: database.NewMetrics(d.registry), Log: d.log,
		Dial: func(ctx context.Context, id string, port int) (net.Conn, error) {
			conn, err := guests.DialOwn(ctx, id, port)
			if err != nil {
				return nil, err // a nil *Conn in the interface would not be nil
			}
			return conn, nil
		},
	})
	d.registry.MustRegister(d.databases.Collect())
}

// archiveProbes is below what the archives do not use.
const archiveProbes = "probes/"

func (p *preflight) archives() (string, error) {
	if p.cfg.ArchiveStore == "" {
		return "none: there are no databases on this host (BERTH_ARCHIVE_STORE, BERTH_SNAPSHOT_STORE)", nil
	}
	where, _, _ := strings.Cut(p.cfg.ArchiveStore, "?")
	if p.cfg.ArchiveStore == p.cfg.SnapshotStore {
		return where + ", the snapshot store's place", nil
	}
	ctx, cancel := context.WithTimeout(p.ctx, storeCheckTimeout)
	defer cancel()
	b, err := openArchiveBucket(ctx, p.cfg)
	if err != nil {
		return "", err
	}
	if err := bucket.Check(ctx, b, archiveProbes); err != nil {
		return "", fmt.Errorf("BERTH_ARCHIVE_STORE: %w", err)
	}
	return where + ", written to and read from", nil
}
