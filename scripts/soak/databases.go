package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
	"github.com/berth-cloud/berth/timescale"
)

// How often databases sleep and are archived here. The guests' processors are
// emulated: a base backup takes seconds.
const (
	dbIdle            = 3 * time.Second
	dbArchiveInterval = 5 * time.Second
	dbFirstBackup     = 5 * time.Second
	// writersEach is how many clients commit into each database.
	writersEach = 2
)

// createTime covers a host that is busy with other databases.
var createTime = timescale.Limit(10 * time.Minute)

var dbEnv = []string{
	"BERTH_DB_IDLE=" + dbIdle.String(), "BERTH_DB_ARCHIVE_INTERVAL=" + dbArchiveInterval.String(), "BERTH_DB_FIRST_BACKUP=" + dbFirstBackup.String(),
}

// managed is one database, its workspace and its writers.
type managed struct {
	*worker
	id      string
	config  *pgx.ConnConfig
	commits *commits
	gate    sync.RWMutex // held by writers for each commit; by who looks, for all
	writers []*writer

	failoverBegan time.Time // zero: there was none
}

// runDatabases has clients commit into databases while steps put them to sleep, kill
// what they run on, and fail them over. After each step every acknowledged row must be
// there.
func (k *soak) runDatabases(ctx context.Context) error {
	dbs, err := k.makeDatabases(ctx)
	if err != nil {
		return err
	}
	for _, d := range dbs {
		defer d.client.Close()
	}
	work, stop := context.WithCancel(ctx)
	defer stop()
	var background sync.WaitGroup
	for _, d := range dbs {
		for _, w := range d.writers {
			background.Go(func() { w.work(work) })
		}
	}
	background.Go(func() { k.watch(work) })
	err = k.doSteps(ctx, dbs)
	stop()
	background.Wait()
	if err == nil {
		err = k.settleDatabases(ctx, dbs)
	}
	k.printDatabases(dbs)
	return k.outcome(err)
}

func (k *soak) makeDatabases(ctx context.Context) ([]*managed, error) {
	pem, err := os.ReadFile(k.stack.DBCA())
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, errors.New("the authority of databases has no certificate")
	}
	dbs := make([]*managed, k.options.clients)
	group, ctx := errgroup.WithContext(ctx)
	for i := range dbs {
		group.Go(func() error {
			var err error
			dbs[i], err = k.makeDatabase(ctx, i, roots)
			return err
		})
	}
	return dbs, group.Wait()
}

func (k *soak) makeDatabase(ctx context.Context, i int, roots *x509.CertPool) (*managed, error) {
	w, err := k.newWorker(ctx, i)
	if err != nil {
		return nil, err
	}
	d := &managed{worker: w, commits: newCommits()}
	var made *api.Database
	err = w.settled(ctx, "create", func(ctx context.Context) error {
		var err error
		made, err = w.client.CreateDatabase(ctx, api.CreateDatabase{Label: w.name}, w.mark())
		return err
	})
	if err != nil {
		return nil, err
	}
	d.id = made.ID
	now, err := d.becomes(ctx, createTime, api.DatabaseRunning)
	if err != nil {
		return nil, err
	}
	if d.config, err = clientConfig(now.ConnectionURL, now.Host, roots); err != nil {
		return nil, err
	}
	conn, err := d.connect(ctx, w.random)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, "CREATE TABLE soak (n bigint PRIMARY KEY)"); err != nil {
		return nil, fmt.Errorf("database %s: %w", d.id, err)
	}
	for range writersEach {
		d.writers = append(d.writers, &writer{db: d, random: k.options.random(uint64(100 + i*writersEach + len(d.writers)))})
	}
	return d, nil
}

// becomes waits until the API shows a status.
func (d *managed) becomes(ctx context.Context, most time.Duration, want api.DatabaseStatus) (*api.Database, error) {
	var now *api.Database
	err := stack.Await(ctx, most, 250*time.Millisecond, "database "+d.id+" is "+string(want), func(ctx context.Context) error {
		err := d.once(ctx, "get", func(ctx context.Context) error {
			var err error
			now, err = d.client.GetDatabase(ctx, d.id)
			return err
		})
		if err == nil && now.Status != want {
			return fmt.Errorf("it is %s: %s", now.Status, now.Error)
		}
		return err
	})
	return now, err
}

// doSteps does the planned steps one by one, each at a database of its own choice.
func (k *soak) doSteps(ctx context.Context, dbs []*managed) error {
	r := k.options.random(0)
	plan := k.plan(r)
	for i, name := range plan {
		if ctx.Err() != nil || k.options.time > 0 && time.Since(k.began) > k.options.time {
			break
		}
		d := pick(r, dbs)
		say("step %d of %d: %s, database %s", i+1, len(plan), name, d.id)
		began := time.Now()
		k.history.breaks()
		err := stepNamed(name).do(ctx, k, d, r)
		k.history.mends()
		if errors.Is(err, errNothing) {
			continue
		}
		if err == nil {
			err = k.recovered(ctx, dbs, r)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			k.history.violate("%s of database %s: %v", name, d.id, err)
			return fmt.Errorf("%s of database %s: %w", name, d.id, err)
		}
		k.history.fault(name)
		k.history.call(name, "", time.Since(began))
	}
	return ctx.Err()
}

// plan is the order of the steps: every round has each once, and the losses of a host
// are spread over the whole run.
func (k *soak) plan(r *rand.Rand) []string {
	var plan []string
	for len(plan) < k.options.ops {
		round := dbStepNames()
		r.Shuffle(len(round), func(i, j int) { round[i], round[j] = round[j], round[i] })
		plan = append(plan, round...)
	}
	plan = plan[:k.options.ops]
	for range k.options.hostKills {
		at := r.IntN(len(plan) + 1)
		plan = append(plan[:at], append([]string{stepLoseHost}, plan[at:]...)...)
	}
	return plan
}

// recovered waits until every database serves again, and compares its rows.
func (k *soak) recovered(ctx context.Context, dbs []*managed, r *rand.Rand) error {
	if err := k.stack.WaitHealthy(ctx); err != nil {
		return err
	}
	for _, d := range dbs {
		if err := d.verifyRows(ctx, r, nil); err != nil {
			return err
		}
	}
	return nil
}

// verifyRows compares the rows that are there with those that were acknowledged. What
// a failover may have lost is given by its caller.
func (d *managed) verifyRows(ctx context.Context, r *rand.Rand, l *loss) error {
	d.gate.Lock()
	defer d.gate.Unlock()
	var found []int64
	err := stack.Await(ctx, settleTime, time.Second, "the rows of database "+d.id+" are read", func(ctx context.Context) error {
		var err error
		found, err = d.rowsThere(ctx, r)
		return err
	})
	if err != nil {
		return err
	}
	wrong, lost := d.commits.judge(found, l)
	for _, text := range wrong {
		d.history.violate("database %s: %s", d.id, text)
	}
	if l != nil {
		say("database %s: %d rows, %d lost by the failover", d.id, len(found), lost)
	}
	return nil
}

// settleDatabases checks at the end that API, hosts and kernel agree, deletes the
// databases, and checks that nothing of them is left.
func (k *soak) settleDatabases(ctx context.Context, dbs []*managed) error {
	say("done; deleting the databases")
	clients := make([]*api.Client, len(dbs))
	for i, d := range dbs {
		clients[i] = d.client
	}
	if err := k.agree(ctx, clients); err != nil && ctx.Err() == nil {
		k.history.violate("API, hosts and kernel do not agree: %v", err)
	}
	for _, d := range dbs {
		_ = d.settled(ctx, "delete", func(ctx context.Context) error { return d.client.DeleteDatabase(ctx, d.id) })
	}
	if err := k.agree(ctx, clients); err != nil && ctx.Err() == nil {
		k.history.violate("after everything was deleted: %v", err)
	}
	for _, d := range dbs {
		err := stack.Await(ctx, settleTime, time.Second, "the archive of database "+d.id+" is gone", func(context.Context) error {
			return k.archiveIsGone(d.id)
		})
		if err != nil && ctx.Err() == nil {
			k.history.violate("%v", err)
		}
	}
	return ctx.Err()
}

// archiveIsGone looks for objects of a database in the bucket. The fences of its
// incarnations, and the list of them below pg-removed, stay for a while: a host that
// returns must not write there.
func (k *soak) archiveIsGone(id string) error {
	return filepath.WalkDir(k.stack.Archives(), func(path string, f fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case f.IsDir() && f.Name() == "pg-removed":
			return fs.SkipDir
		case !f.IsDir() && strings.Contains(path, id) && f.Name() != "fenced":
			return fmt.Errorf("there is %s", path)
		}
		return nil
	})
}

// printDatabases prints what was committed.
func (k *soak) printDatabases(dbs []*managed) {
	fmt.Printf("\n%-38s %12s %12s %10s\n", "database", "acknowledged", "lost", "timeline")
	for _, d := range dbs {
		timeline, _ := d.commits.timeline()
		fmt.Printf("%-38s %12d %12d %10d\n", d.id, d.commits.acknowledged(), d.commits.lost, timeline)
	}
}
