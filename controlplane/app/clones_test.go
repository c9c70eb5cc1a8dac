package app_test

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/controlplane/database"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// withDatabase adds a database that can be cloned, and returns it with its credentials.
func (r *rig) withDatabase() api.Database {
	r.t.Helper()
	h, archives := r.hosts[0], fakehost.NewArchives()
	h.SetArchives(archives)
	h.Change(func(_ *hostapi.Capacity, ts *[]hostapi.TemplateState, _ map[string]hostapi.Box) {
		*ts = append(*ts, hostapi.TemplateState{Name: template.Postgres, BuildID: "of-postgres", Status: "ready", CPU: 8, MemoryMB: 1024, DiskMB: 10240})
	})
	r.await("the template of databases", func() bool {
		tpl, ok := template.Operators(r.Leader().Store.View(), template.Postgres)
		return ok && tpl.BuildID != "" && len(r.LeaderNode().Hosts.Sessions()[h.ID].Heartbeat.Templates) == 3
	})
	d, err := r.LeaderNode().Databases.Create(r.t.Context(), caller, api.CreateDatabase{Label: "orders", AlwaysOn: true}, noKey)
	if err != nil {
		r.t.Fatal(err)
	}
	r.await("the database", func() bool {
		now, err := r.LeaderNode().Databases.Get(r.t.Context(), caller, d.ID)
		if err == nil {
			d = now
		}
		return d.Status == api.DatabaseRunning && d.ConnectionURL != ""
	})
	first, last := time.Now().Add(-time.Hour), time.Now().Add(-3*time.Minute)
	row := r.database(d.ID)
	archives.Fill(row.Archive().Name, first, last, "0/5000060")
	h.ChangeDatabase(row.SandboxID, func(s *hostapi.DatabaseState) {
		s.Archive = hostapi.ArchiveState{LastLSN: "0/5000060", LastAt: last, FirstRestorable: first, LastRestorable: last, BaseBackups: 1}
	})
	r.await("its archive", func() bool { return !r.database(d.ID).Archive().FirstRestorable.IsZero() })
	return d
}

func (r *rig) database(id string) *record.Database {
	r.t.Helper()
	d, ok := raftstore.Get(r.Leader().Store.View(), record.Databases, id)
	if !ok {
		r.t.Fatal("no such database")
	}
	return d
}

// clonesOf are the clones of a database.
func (r *rig) clonesOf(id string) []*record.Database {
	return raftstore.Find(r.Leader().Store.View(), record.Databases, "cloned_from", id)
}

// preview opens the preview of an app for pull request 5.
func (r *rig) preview(parentID string, env ...app.Variable) string {
	r.t.Helper()
	var id string
	r.await("the preview", func() bool {
		var err error
		id, err = r.apps().OpenPreview(r.t.Context(), parentID, 5, "basket", false, env)
		return err == nil
	})
	return id
}

// pull deploys a commit of a pull request.
func (r *rig) pull(id string, commit byte) string {
	r.t.Helper()
	var out api.Deployment
	r.await("the deployment", func() bool {
		var err error
		out, err = r.apps().Pushed(r.t.Context(), "ws", id, app.Push{Trigger: api.TriggerPullRequest, GitRef: "basket", Commit: strings.Repeat(string(commit), 40)})
		return err == nil
	})
	return out.ID
}

// shut closes a preview, and waits until it is gone with what is its own.
func (r *rig) shut(id, databaseID string) {
	r.t.Helper()
	r.await("the close", func() bool { return r.apps().ClosePreview(r.t.Context(), id) == nil })
	r.await("the end of the preview", func() bool {
		_, there := raftstore.Get(r.Leader().Store.View(), record.Apps, id)
		return !there && len(r.clonesOf(databaseID)) == 0
	})
}

// withURL is an app whose variables name a database in every way that they may.
func withURL(d api.Database) func(in *api.CreateApp) {
	return func(in *api.CreateApp) {
		in.Env = map[string]string{
			"DATABASE_URL": d.ConnectionURL + "?sslmode=require",
			"ALCHEMY_URL":  strings.Replace(d.ConnectionURL, "postgres://", "postgresql+psycopg://", 1),
			"JDBC_URL":     "jdbc:postgresql://" + d.Host + ":5432/app?user=app&password=" + d.Password,
			"READER_URL":   "postgres://reader:word@" + strings.ToUpper(d.Host) + "/books",
			"OTHER_URL":    "postgres://app:x@db.example.com/app", "PLAIN": d.ConnectionURL[len("postgres://"):],
		}
	}
}

// A pull request has a clone of its app's database, and the app's own is never reached.
func TestPreviewsHaveClonesOfDatabases(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 3, 1, nil)
	d := r.withDatabase()
	parent := r.create(withURL(d))
	id := r.preview(parent.ID)
	first := r.ends(r.pull(id, '1'), record.DeploymentLive)
	clones := r.clonesOf(d.ID)
	if len(clones) != 1 || clones[0].PreviewID != id || clones[0].Label != "shop (pull request 5)" || clones[0].Size != "1g" {
		t.Fatalf("%+v", clones)
	}
	clone, err := r.LeaderNode().Databases.Get(t.Context(), caller, clones[0].ID)
	if err != nil || clone.Password == d.Password {
		t.Fatalf("%+v: %v", clone, err)
	}
	env := r.guests.at(first.SandboxID).build.Env
	u, err := url.Parse(env["DATABASE_URL"])
	if err != nil || u.Hostname() != clone.ID+".db.test" || u.Port() != "5432" || u.RawQuery != "sslmode=require" || u.Path != "/app" {
		t.Fatalf("DATABASE_URL=%s: %v", env["DATABASE_URL"], err)
	}
	password, _ := u.User.Password()
	if box := clones[0].SandboxID; r.hosts[0].Credentials(box).Password != password {
		t.Errorf("the password is %q", password)
	}
	for key, want := range map[string]string{
		"ALCHEMY_URL": "postgresql+psycopg://app:" + password + "@" + u.Host + "/app",
		"JDBC_URL":    "jdbc:postgresql://" + u.Host + "/app?password=" + password + "&user=app",
		"READER_URL":  "postgres://reader:word@" + u.Hostname() + "/books",
		"OTHER_URL":   "postgres://app:x@db.example.com/app",
	} {
		if env[key] != want {
			t.Errorf("%s=%s, want %s", key, env[key], want)
		}
	}
	vars, err := r.apps().Env(t.Context(), caller, id)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range vars {
		if v.Key == "DATABASE_URL" && v.Value != env["DATABASE_URL"] {
			t.Errorf("shown as %s", v.Value)
		}
	}
	if r.preview(parent.ID) != id || r.row(id).Stale {
		t.Error("the same again is a change")
	}
	// A rotation of the app's database leaves the clone as it is, also at the next commit.
	rotated, err := r.LeaderNode().Databases.ResetCredentials(t.Context(), caller, d.ID)
	if err != nil {
		t.Fatal(err)
	}
	r.preview(parent.ID)
	second := r.ends(r.pull(id, '2'), record.DeploymentLive)
	if again := r.guests.at(second.SandboxID).build.Env; again["DATABASE_URL"] != env["DATABASE_URL"] || len(r.clonesOf(d.ID)) != 1 {
		t.Errorf("the next commit has another database: %s", again["DATABASE_URL"])
	}
	r.shut(id, d.ID)
	if now := r.database(d.ID); now.Status != record.DatabaseReady || r.hosts[0].Credentials(now.SandboxID).Password != rotated.Password {
		t.Errorf("its app's database is %+v", now)
	}
	r.settled(1)
}

// What the user says of previews counts more: a scope, the repository's environment, and
// a variable of the preview itself.
func TestPreviewsWithoutAClone(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil) // where nothing can be cloned
	d := r.withDatabase()
	parent := r.create()
	put := func(id, scope string) {
		t.Helper()
		if _, err := r.apps().PutVariable(t.Context(), caller, id, "DATABASE_URL", api.PutAppVariable{Value: d.ConnectionURL, Secret: new(true), Scope: new(scope)}); err != nil {
			t.Fatal(err)
		}
	}
	put(parent.ID, "production")
	id := r.preview(parent.ID)
	if env := r.guests.at(r.ends(r.pull(id, '1'), record.DeploymentLive).SandboxID).build.Env; env["DATABASE_URL"] != "" {
		t.Errorf("%v", env)
	}
	put(parent.ID, "")
	r.preview(parent.ID, app.Variable{Key: "DATABASE_URL", Value: d.ConnectionURL})
	if env := r.guests.at(r.ends(r.pull(id, '2'), record.DeploymentLive).SandboxID).build.Env; env["DATABASE_URL"] != d.ConnectionURL {
		t.Errorf("%v", env)
	}
	wrong := strings.Replace(d.ConnectionURL, d.Password, "guessed", 1) // whose data it is not
	if _, err := r.apps().PutVariable(t.Context(), caller, parent.ID, "GUESS", api.PutAppVariable{Value: wrong}); err != nil {
		t.Fatal(err)
	}
	if r.preview(parent.ID); slices.ContainsFunc(r.row(id).Env, func(v record.AppVariable) bool { return v.Key == "GUESS" && v.DatabaseID != "" }) {
		t.Error("who knows no password gets a clone")
	}
	failed := r.ends(r.pull(id, '3'), record.DeploymentFailed)
	if want := "no clone of its database " + d.ID + ": not available on a single-node install"; !strings.HasPrefix(failed.Error, want) {
		t.Errorf("error %q, want %q", failed.Error, want)
	}
	if _, err := r.apps().PutVariable(t.Context(), caller, id, "DATABASE_URL", api.PutAppVariable{Value: "postgres://elsewhere/app"}); err != nil {
		t.Fatal(err)
	}
	if env := r.guests.at(r.ends(r.pull(id, '4'), record.DeploymentLive).SandboxID).build.Env; env["DATABASE_URL"] != "postgres://elsewhere/app" {
		t.Errorf("%v", env)
	}
}

// A clone beyond the quota fails the deployment, which says so, and nothing of it stays.
// There is one as soon as there may be.
func TestPreviewsBeyondTheQuotaOfDatabases(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3, 1, nil)
	d := r.withDatabase()
	quota := func(n int) {
		r.Update(func(tx *raftstore.Tx) error {
			w, _ := raftstore.Get(tx, record.Workspaces, "ws")
			w = w.Clone()
			w.Quotas = record.Quotas{Databases: &n}
			raftstore.Put(tx, record.Workspaces, w)
			return nil
		})
	}
	quota(1)
	id := r.preview(r.create(withURL(d)).ID)
	failed := r.ends(r.pull(id, '1'), record.DeploymentFailed)
	if !strings.Contains(failed.Error, "no clone of its database "+d.ID+": max databases reached") || len(r.clonesOf(d.ID)) != 0 {
		t.Errorf("error %q, clones %v", failed.Error, r.clonesOf(d.ID))
	}
	quota(2)
	r.hosts[0].SlowDatabases(true)
	waits := r.pull(id, '2')
	r.at(waits, "cloned")
	r.Update(func(tx *raftstore.Tx) error { // the clone's time is over
		f, ok := flow.Live(tx, database.Subject(r.clonesOf(d.ID)[0].ID))
		if ok {
			f = f.Clone()
			f.Deadline = time.Now().Add(-time.Second)
			raftstore.Put(tx, record.Flows, f)
		}
		return nil
	})
	failed = r.ends(waits, record.DeploymentFailed)
	if !strings.Contains(failed.Error, "it could not be made") {
		t.Errorf("error %q", failed.Error)
	}
	r.hosts[0].SlowDatabases(false)
	r.ends(r.pull(id, '3'), record.DeploymentLive) // in the place of the one that could not be made
	r.shut(id, d.ID)
	r.settled(1)
}

// Whoever leads goes on: at each step of a deployment with a clone, and of their end, a
// leader dies, or every step is cut off at each of its points.
func TestClonesOfPreviewsSurviveTheirLeader(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	kinds := map[string]bool{app.KindDeploy: true, app.KindDelete: true, database.KindCreate: true, database.KindDelete: true}
	var r *rig
	run := func(t *testing.T) {
		t.Helper()
		d := r.withDatabase()
		id := r.preview(r.create(withURL(d)).ID)
		live := r.ends(r.pull(id, '1'), record.DeploymentLive)
		if clones := r.clonesOf(d.ID); len(clones) != 1 || !strings.Contains(r.guests.at(live.SandboxID).build.Env["DATABASE_URL"], clones[0].ID) {
			t.Errorf("%d clones, and %s", len(clones), r.guests.at(live.SandboxID).build.Env["DATABASE_URL"])
		}
		r.shut(id, d.ID)
		r.settled(1)
	}
	t.Run("each step twice", func(t *testing.T) {
		var mu sync.Mutex
		seen := map[string]bool{}
		fault := func(f *record.Flow, at flow.Point) error {
			mu.Lock()
			defer mu.Unlock()
			key := f.ID + "/" + f.Step + "/" + string(at)
			if !kinds[f.Kind] || seen[key] {
				return nil
			}
			seen[key] = true
			return errCrash
		}
		r = newRig(t, 3, 1, fault)
		run(t)
	})
	for kind, step := range map[string]string{app.KindDeploy: "clone", "a wait": "cloned", app.KindDelete: "clear", database.KindDelete: "archives"} {
		t.Run(kind+" "+step, func(t *testing.T) {
			var once sync.Once
			fault := func(f *record.Flow, at flow.Point) error {
				if kinds[f.Kind] && f.Step == step && at == flow.BeforeCommit {
					once.Do(func() { r.Cut(r.Leader()) })
				}
				return nil
			}
			r = newRig(t, 3, 1, fault)
			run(t)
		})
	}
}

// A pull request that is closed while its clone is made leaves nothing, whoever leads.
func TestPreviewIsClosedDuringItsClone(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 3, 1, nil)
	d := r.withDatabase()
	id := r.preview(r.create(withURL(d)).ID)
	r.hosts[0].SlowDatabases(true)
	r.at(r.pull(id, '1'), "cloned")
	if err := r.LeaderNode().Databases.Delete(t.Context(), caller, d.ID); err == nil {
		t.Error("a database goes while it is cloned")
	}
	if err := r.apps().ClosePreview(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	r.Cut(r.Leader())
	r.shut(id, d.ID)
	r.settled(1)
}

// What is built of a fork's code gets nothing that is secret, of the app and of the
// repository's environment, no database in any form, and nothing that the app's builds left.
func TestPreviewsOfForks(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil, withToken(func() error { return nil }))
	r.guests.set(func(g *guests) { g.cache = "caches" })
	d := r.withDatabase()
	parent := r.create(withURL(d), func(in *api.CreateApp) { in.ForkPreviews = true })
	for key, in := range map[string]api.PutAppVariable{
		"PLAIN": {Value: "plain"}, "KEY": {Value: "the app's key", Secret: new(true)}, "LIVE": {Value: "live", Scope: new("production")}, "API_URL": {Value: "https://prod.test"},
		"PGHOST": {Value: strings.ToUpper(d.Host)},
	} {
		if _, err := r.apps().PutVariable(t.Context(), caller, parent.ID, key, in); err != nil {
			t.Fatal(err)
		}
	}
	r.over(r.deploy(parent.ID).ID)
	env := []app.Variable{
		{Key: "API_URL", Value: "https://staging.test?key=hush", Secret: true}, {Key: "TOKEN", Value: "hush", Secret: true}, {Key: "STAGE", Value: "preview"}, {Key: "SHARED_URL", Value: d.ConnectionURL},
	}
	open := func(number int, fork bool) (string, error) {
		return r.apps().OpenPreview(t.Context(), parent.ID, number, fmt.Sprintf("refs/pull/%d/head", number), fork, env)
	}
	id, err := open(9, true)
	if err != nil {
		t.Fatal(err)
	}
	commit := strings.Repeat("9", 40)
	out, err := r.apps().Pushed(t.Context(), "ws", id, app.Push{Trigger: api.TriggerPullRequest, GitRef: "refs/pull/9/head", Commit: commit})
	if err != nil {
		t.Fatal(err)
	}
	g := r.guests.at(r.ends(out.ID, record.DeploymentLive).SandboxID)
	want := map[string]string{"PLAIN": "plain", "STAGE": "preview", "OTHER_URL": "postgres://app:x@db.example.com/app"}
	for name, got := range map[string]map[string]string{"build": g.build.Env, "run": g.run.Env} {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("its %s: %s", name, diff)
		}
	}
	if git := g.build.Git; git.URL != repo || git.Ref != commit || git.Within != "refs/pull/9/head" {
		t.Errorf("it is cloned as %+v", git)
	}
	if len(g.cache) > 0 || len(r.clonesOf(d.ID)) > 0 {
		t.Errorf("it was given the caches %q, and %d clones", g.cache, len(r.clonesOf(d.ID)))
	}
	// One does not become the other: what it has built and cloned stays with it.
	_, err = open(9, false)
	hasText(t, err, apierror.EConflict, "another repository")
	// A variable that becomes secret is not there the next time.
	if _, err := r.apps().PutVariable(t.Context(), caller, parent.ID, "PLAIN", api.PutAppVariable{Value: "plain", Secret: new(true)}); err != nil {
		t.Fatal(err)
	}
	if again, err := open(9, true); err != nil || again != id || slices.ContainsFunc(r.row(id).Env, func(v record.AppVariable) bool { return v.Key == "PLAIN" }) {
		t.Errorf("%s, %v: %+v", again, err, r.row(id).Env)
	}
	r.shut(id, d.ID)
}
