package app_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

func TestCreateRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 0, nil)
	many := map[string]string{}
	for i := range 201 {
		many[fmt.Sprint("V", i)] = ""
	}
	for name, tc := range map[string]struct {
		change func(in *api.CreateApp)
		text   string
	}{
		"no name":         {func(in *api.CreateApp) { in.Name = " " }, "name is required"},
		"long name":       {func(in *api.CreateApp) { in.Name = strings.Repeat("x", 101) }, "invalid name"},
		"line in name":    {func(in *api.CreateApp) { in.Name = "a\nb" }, "invalid name"},
		"no url":          {func(in *api.CreateApp) { in.GitURL = "" }, "git_url is required"},
		"upload and url":  {func(in *api.CreateApp) { in.Source = new(api.AppFromUpload) }, "invalid git_url"},
		"unknown source":  {func(in *api.CreateApp) { in.Source = new(api.AppSource("tape")) }, "invalid source"},
		"idle":            {func(in *api.CreateApp) { in.IdleTimeoutSeconds = new(0) }, "idle_timeout_seconds must be >= 1"},
		"long idle":       {func(in *api.CreateApp) { in.IdleTimeoutSeconds = new(604801) }, "invalid idle_timeout_seconds"},
		"port":            {func(in *api.CreateApp) { in.Port = new(65536) }, "invalid port"},
		"port zero":       {func(in *api.CreateApp) { in.Port = new(0) }, "invalid port"},
		"guestapp's port": {func(in *api.CreateApp) { in.Port = new(appapi.Port) }, "invalid port"},
		"guestd's port":   {func(in *api.CreateApp) { in.Port = new(guestapi.Port) }, "invalid port"},
		"instances":       {func(in *api.CreateApp) { in.MaxInstances = new(4) }, "invalid max_instances"},
		"cpu":             {func(in *api.CreateApp) { in.CPU = new(-1) }, "invalid cpu"},
		"branch":          {func(in *api.CreateApp) { in.GitBranch = "--upload-pack=x" }, "invalid git_branch"},
		"root":            {func(in *api.CreateApp) { in.RootDirectory = "a/../../b" }, "invalid root_directory"},
		"command":         {func(in *api.CreateApp) { in.BuildCommand = "a\x00b" }, "invalid build_command"},
		"framework":       {func(in *api.CreateApp) { in.Framework = "a\x1b" }, "invalid framework"},
		"env name":        {func(in *api.CreateApp) { in.Env = map[string]string{"A-B": "1"} }, "env must be a string map"},
		"env port":        {func(in *api.CreateApp) { in.Env = map[string]string{"PORT": "1"} }, "env must be a string map"},
		"env NUL":         {func(in *api.CreateApp) { in.Env = map[string]string{"A": "\x00"} }, "env must be a string map"},
		"long value":      {func(in *api.CreateApp) { in.Env = map[string]string{"A": strings.Repeat("x", 64<<10+1)} }, "env must be a string map"},
		"many variables":  {func(in *api.CreateApp) { in.Env = many }, "env must be a string map"},
		"environment big": {func(in *api.CreateApp) { in.Env = bigEnv() }, "env must be a string map"},
	} {
		in := api.CreateApp{Name: "shop", GitURL: repo}
		tc.change(&in)
		_, err := r.apps().Create(t.Context(), caller, in, noKey)
		if apierror.CodeOf(err) != apierror.EInvalid || !strings.HasPrefix(apierror.As(err).Message, tc.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(raftstore.All(r.Leader().Store.View(), record.Apps)); n > 0 {
		t.Errorf("%d apps", n)
	}
}

// bigEnv has a byte more than an environment may have.
func bigEnv() map[string]string {
	env := map[string]string{}
	for i := range 4 {
		env[fmt.Sprint("V", i)] = strings.Repeat("x", 64<<10-2)
	}
	env["W"] = ""
	return env
}

func TestTheIdleTimeOfAnAppIsASetting(t *testing.T) {
	t.Parallel()
	for set, want := range map[time.Duration]int{20 * time.Minute: 1200, 10 * time.Second: 60} {
		r := newRig(t, 1, 0, nil, func(c *app.Config) { c.Idle, c.MinIdle = &set, new(time.Minute) })
		if a := r.create(); a.IdleTimeoutSeconds != want {
			t.Errorf("with %s it is %d, want %d", set, a.IdleTimeoutSeconds, want)
		}
	}
}

func TestCreate(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 0, nil)
	a := r.create()
	if a.Port != 3000 || a.IdleTimeoutSeconds != 900 || a.MaxInstances != 1 || a.AutoDeploy || a.Status != api.AppCreated || a.LastRequestAt != nil {
		t.Errorf("defaults: %+v", a)
	}
	if !strings.HasPrefix(a.ID, "app-") || len(a.ID) != 20 || strings.ToLower(a.ID) != a.ID {
		t.Errorf("id %q", a.ID)
	}
	full := map[string]string{}
	for i := range 4 {
		full[fmt.Sprint("V", i)] = strings.Repeat("x", 64<<10-2)
	}
	b := r.create(func(in *api.CreateApp) {
		in.Env, in.RootDirectory, in.AutoHibernate, in.MaxInstances = full, "apps/./web/", nil, new(3)
	})
	if b.RootDirectory != "apps/web" || !b.AutoHibernate || b.MaxInstances != 3 || !maps.Equal(b.Env, full) {
		t.Errorf("got %+v", b)
	}
	key := testplane.Key("k", "body")
	in := api.CreateApp{Name: "once", GitURL: repo}
	once, err := r.apps().Create(t.Context(), caller, in, key)
	again, err2 := r.apps().Create(t.Context(), caller, in, key)
	if err != nil || err2 != nil || once.ID != again.ID {
		t.Errorf("%v, %v: %s and %s", err, err2, once.ID, again.ID)
	}
	page, next, err := r.apps().List(t.Context(), caller, core.ListOptions{Limit: 2})
	if err != nil || len(page) != 2 || page[0].ID != once.ID || next == "" {
		t.Errorf("list: %d, %q, %v", len(page), next, err)
	}
	if page, _, err = r.apps().List(t.Context(), caller, core.ListOptions{Cursor: next}); err != nil || len(page) != 1 || page[0].ID != a.ID {
		t.Errorf("second page: %d, %v", len(page), err)
	}
}

// With its variables, an app takes most of a transaction.
func TestCreateWithAKeyAndManyVariables(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 0, nil)
	full := map[string]string{}
	for i := range 4 {
		random := make([]byte, (64<<10-2)/2)
		_, _ = rand.NewChaCha8([32]byte{byte(i)}).Read(random)
		full[fmt.Sprint("V", i)] = hex.EncodeToString(random)
	}
	first, again := testplane.Key("k", "body"), testplane.Key("k", "body")
	first.Body, again.Body = new([]byte), new([]byte)
	in := api.CreateApp{Name: "full", GitURL: repo, Env: full}
	once, err := r.apps().Create(t.Context(), caller, in, first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.apps().Patch(t.Context(), caller, once.ID, api.PatchApp{Name: api.SetTo("later")}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.apps().Create(t.Context(), caller, in, again); err != nil || len(*first.Body) == 0 || !bytes.Equal(*first.Body, *again.Body) {
		t.Errorf("%d bytes, and once more %d, %v", len(*first.Body), len(*again.Body), err)
	}
}

func TestTooManyApps(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 0, nil)
	r.Update(func(tx *raftstore.Tx) error {
		for i := range 100 {
			raftstore.Put(tx, record.Apps, &record.App{Meta: record.Meta{ID: fmt.Sprint("app-", i)}, WorkspaceID: "ws", Status: record.AppCreated})
		}
		return nil
	})
	_, err := r.apps().Create(t.Context(), caller, api.CreateApp{Name: "shop", GitURL: repo}, noKey)
	e := want(t, err, apierror.ERateLimited, "max apps reached")
	if e.Fields["max"] != 100 || e.Fields["active"] != 100 {
		t.Errorf("fields %v", e.Fields)
	}
}

// TestStrangers: what another workspace has is not there.
func TestStrangers(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, d := r.live()
	s, ctx := r.apps(), t.Context()
	for _, c := range []core.Caller{stranger, {WorkspaceID: "none"}} {
		for _, id := range []string{a.ID, "app-none", ""} {
			calls := map[string]func() error{
				"get":        func() error { _, err := s.Get(ctx, c, id); return err },
				"patch":      func() error { _, err := s.Patch(ctx, c, id, api.PatchApp{Name: api.SetTo("x")}); return err },
				"delete":     func() error { return s.Delete(ctx, c, id) },
				"deploy":     func() error { _, err := s.Deploy(ctx, c, id, api.CreateDeployment{}, noKey); return err },
				"deploys":    func() error { _, _, err := s.Deployments(ctx, c, id, core.ListOptions{}); return err },
				"deployment": func() error { _, err := s.Deployment(ctx, c, id, d.ID); return err },
				"cancel":     func() error { _, err := s.CancelDeployment(ctx, c, id, d.ID); return err },
				"rollback":   func() error { _, err := s.RollBack(ctx, c, id, api.RollBackApp{}, noKey); return err },
				"build log":  func() error { _, err := s.DeploymentLogs(ctx, c, id, d.ID); return err },
				"logs":       func() error { _, err := s.Logs(ctx, c, id, 1); return err },
				"follow":     func() error { _, err := s.FollowLogs(ctx, c, id, 1); return err },
				"env":        func() error { _, err := s.Env(ctx, c, id); return err },
				"put":        func() error { _, err := s.PutVariable(ctx, c, id, "A", api.PutAppVariable{}); return err },
				"unset":      func() error { return s.DeleteVariable(ctx, c, id, "A") },
				"import":     func() error { _, err := s.ImportEnv(ctx, c, id, api.ImportAppEnv{Dotenv: "A=1"}); return err },
				"source":     func() error { _, err := s.PutSource(ctx, c, id, strings.NewReader("x")); return err },
			}
			for name, call := range calls {
				if err := call(); apierror.CodeOf(err) != apierror.ENotFound {
					t.Errorf("%s %q as %s: %v", name, id, c.WorkspaceID, err)
				}
				if err := call(); apierror.CodeOf(err) != apierror.ENotFound {
					t.Errorf("%s %q as %s: %v", name, id, c.WorkspaceID, err)
				}
			}
		}
	}
	mine := r.create()
	if _, err := s.Deployment(ctx, caller, mine.ID, d.ID); apierror.CodeOf(err) != apierror.ENotFound {
		t.Errorf("another app's deployment: %v", err)
	}
	_, err := s.RollBack(ctx, caller, mine.ID, api.RollBackApp{DeploymentID: d.ID}, noKey)
	want(t, err, apierror.ENotFound, "not found")
	if page, _, err := s.List(ctx, stranger, core.ListOptions{}); err != nil || len(page) != 0 {
		t.Errorf("a stranger's list: %v, %v", page, err)
	}
	if _, err := s.Get(ctx, core.Caller{}, a.ID); apierror.CodeOf(err) != apierror.EUnauthorized {
		t.Errorf("without a workspace: %v", err)
	}
}

// An app has previews if it says so, and as it deploys by itself if it says nothing.
func TestWhichAppsHavePreviews(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 0, nil)
	for _, c := range []struct {
		deploys, want bool
		previews      *bool
	}{{false, false, nil}, {true, true, nil}, {false, true, new(true)}, {true, false, new(false)}} {
		a := r.create(func(in *api.CreateApp) { in.AutoDeploy, in.Previews = c.deploys, c.previews })
		if a.Previews != c.want || r.row(a.ID).HasPreviews() != c.want {
			t.Errorf("%+v: %v", c, a.Previews)
		}
		a, err := r.apps().Patch(t.Context(), caller, a.ID, api.PatchApp{Previews: api.SetTo(!c.want)})
		if err != nil || a.Previews != !c.want {
			t.Errorf("%+v, the other way round: %v, %v", c, a.Previews, err)
		}
		a, err = r.apps().Patch(t.Context(), caller, a.ID, api.PatchApp{Previews: api.SetNull[bool]()})
		if err != nil || a.Previews != c.deploys {
			t.Errorf("%+v, by default: %v, %v", c, a.Previews, err)
		}
		if a.ForkPreviews {
			t.Error("forks have previews without a word")
		}
		for _, want := range []api.Patch[bool]{api.SetTo(true), api.SetNull[bool]()} {
			if a, err = r.apps().Patch(t.Context(), caller, a.ID, api.PatchApp{ForkPreviews: want}); err != nil || a.ForkPreviews != (want.Value != nil) {
				t.Errorf("fork_previews is %v, %v", a.ForkPreviews, err)
			}
		}
	}
}

// TestPatch: exactly some settings make the artifact stale.
func TestPatch(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 0, nil)
	a := r.create(func(in *api.CreateApp) { in.Env = map[string]string{"A": "1"} })
	r.edit(a.ID, func(a *record.App) { a.DeploymentID = "dep-x" })
	for name, tc := range map[string]struct {
		in    api.PatchApp
		stale bool
	}{
		"name":        {api.PatchApp{Name: api.SetTo("other")}, false},
		"branch":      {api.PatchApp{GitBranch: api.SetTo("next")}, false},
		"url":         {api.PatchApp{GitURL: api.SetTo(repo + "2")}, false},
		"hibernate":   {api.PatchApp{AutoHibernate: api.SetTo(true)}, false},
		"idle":        {api.PatchApp{IdleTimeoutSeconds: api.SetTo(70)}, false},
		"instances":   {api.PatchApp{MaxInstances: api.SetTo(2)}, false},
		"runtime":     {api.PatchApp{Runtime: api.SetTo("node")}, false},
		"previews":    {api.PatchApp{Previews: api.SetTo(true)}, false},
		"auto deploy": {api.PatchApp{AutoDeploy: api.SetTo(true)}, false},
		"start":       {api.PatchApp{StartCommand: api.SetTo("x")}, true},
		"port":        {api.PatchApp{Port: api.SetTo(1234)}, true},
		"root":        {api.PatchApp{RootDirectory: api.SetTo("web")}, true},
		"framework":   {api.PatchApp{Framework: api.SetTo("next")}, true},
		"install":     {api.PatchApp{InstallCommand: api.SetTo("npm ci")}, true},
		"build":       {api.PatchApp{BuildCommand: api.SetTo("make")}, true},
		"env":         {api.PatchApp{Env: api.SetTo(api.StringMap{"A": "2"})}, true},
		"env gone":    {api.PatchApp{Env: api.SetNull[api.StringMap]()}, true},
	} {
		r.edit(a.ID, func(row *record.App) { row.Stale = false })
		if _, err := r.apps().Patch(t.Context(), caller, a.ID, tc.in); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if r.row(a.ID).Stale != tc.stale {
			t.Errorf("%s: stale is %v", name, !tc.stale)
		}
		r.edit(a.ID, func(row *record.App) { row.Stale = false })
		if _, err := r.apps().Patch(t.Context(), caller, a.ID, tc.in); err != nil || r.row(a.ID).Stale {
			t.Errorf("%s once more: %v, stale %v", name, err, r.row(a.ID).Stale)
		}
	}
	one := caller
	one.Scopes = []string{core.ScopeApp + a.ID}
	if _, err := r.apps().Patch(t.Context(), one, a.ID, api.PatchApp{GitURL: api.SetTo("https://github.com/acme/secrets.git")}); apierror.CodeOf(err) != apierror.EForbidden {
		t.Errorf("a key of one app clones another repository: %v", err)
	}
	if _, err := r.apps().Patch(t.Context(), one, a.ID, api.PatchApp{Name: api.SetTo("mine")}); err != nil {
		t.Errorf("a key of one app: %v", err)
	}
	for text, in := range map[string]api.PatchApp{
		"no updatable fields":  {},
		"name is required":     {Name: api.SetNull[string]()},
		"git_url is required":  {GitURL: api.SetTo("")},
		"invalid git_url":      {GitURL: api.SetTo("file:///etc")},
		"idle_timeout_seconds": {IdleTimeoutSeconds: api.SetTo(0)},
		"env must be":          {Env: api.SetTo(api.StringMap{"HOST": "x"})},
	} {
		_, err := r.apps().Patch(t.Context(), caller, a.ID, in)
		hasText(t, err, apierror.EInvalid, text)
	}
	// Whose app it is comes before what is wrong with the fields.
	for name, in := range map[string]api.PatchApp{"nothing": {}, "a variable": {Env: api.SetTo(api.StringMap{"HOST": "x"})}} {
		for _, id := range []string{"app-none", r.function("f-" + name[:1]).ID} {
			_, err := r.apps().Patch(t.Context(), caller, id, in)
			want(t, err, apierror.ENotFound, "not found")
		}
		_, err := r.apps().Patch(t.Context(), core.Caller{WorkspaceID: "other", KeyID: "k2"}, a.ID, in)
		want(t, err, apierror.ENotFound, "not found")
	}
	out, err := r.apps().Patch(t.Context(), caller, a.ID, api.PatchApp{Port: api.SetNull[int](), IdleTimeoutSeconds: api.SetNull[int](), MaxInstances: api.SetNull[int]()})
	if err != nil || out.Port != 3000 || out.IdleTimeoutSeconds != 900 || out.MaxInstances != 1 {
		t.Errorf("defaults: %+v, %v", out, err)
	}
}

// TestSecretsThatStayCount: a mask in place of a secret value stands for the value, also where
// an environment's size is limited. A larger row could not be written any more: nobody could
// put the app to sleep or delete it.
func TestSecretsThatStayCount(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 0, nil)
	s, ctx := r.apps(), t.Context()
	a := r.create()
	f, err := r.functions().Create(ctx, caller, api.CreateFunction{Name: "f", Runtime: "node"}, noKey)
	if err != nil {
		t.Fatal(err)
	}
	env, dotenv := map[string]string{}, ""
	for i := range 5 {
		env[fmt.Sprint("S", i)] = masked
		dotenv += fmt.Sprintf("S%d=%[1]d\n", i)
	}
	for _, of := range []struct {
		id    string
		apps  *app.Apps
		patch func() error
	}{
		{a.ID, s, func() error {
			_, err := s.Patch(ctx, caller, a.ID, api.PatchApp{Env: api.SetTo(api.StringMap(env))})
			return err
		}},
		{f.ID, r.functions().Apps, func() error {
			_, err := r.functions().Patch(ctx, caller, f.ID, api.PatchFunction{Env: api.SetTo(api.StringMap(env))})
			return err
		}},
	} {
		if _, err := of.apps.ImportEnv(ctx, caller, of.id, api.ImportAppEnv{Dotenv: dotenv, Secret: new(true)}); err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			name := fmt.Sprint("S", i)
			env[name] = strings.Repeat("x", 60<<10)
			err := of.patch()
			env[name] = masked
			if i < 4 && err != nil {
				t.Fatal(err)
			}
			if i == 4 && apierror.CodeOf(err) != apierror.EInvalid {
				t.Errorf("%s has 300 KiB of variables: %v", of.id, err)
			}
		}
	}
}

const masked = "********"

func TestEnv(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 0, nil)
	s, ctx := r.apps(), t.Context()
	a := r.create(func(in *api.CreateApp) { in.Env = map[string]string{"B": "2"} })
	r.edit(a.ID, func(a *record.App) { a.DeploymentID = "dep-x" })
	var revision uint64
	// changed checks that the next wake starts the app anew, and from the artifact unless
	// stale is true.
	changed := func(stale bool) {
		t.Helper()
		row := r.row(a.ID)
		if row.Stale != stale || row.EnvRevision <= revision {
			t.Errorf("stale %v, revision %d after %d", row.Stale, row.EnvRevision, revision)
		}
		revision = row.EnvRevision
		r.edit(a.ID, func(a *record.App) { a.Stale = false })
	}
	v, err := s.PutVariable(ctx, caller, a.ID, "A", api.PutAppVariable{Value: "hush", Secret: new(true), Scope: new("production")})
	if err != nil || v.Value != "********" || !v.Secret || v.Scope != "production" || v.UpdatedAt.IsZero() {
		t.Errorf("put: %+v, %v", v, err)
	}
	changed(false)
	if _, err := s.PutVariable(ctx, caller, a.ID, "A", api.PutAppVariable{Value: "hush", Secret: new(true), Scope: new("production")}); err != nil || r.row(a.ID).EnvRevision != revision {
		t.Errorf("the same again: %v, revision %d", err, r.row(a.ID).EnvRevision)
	}
	for _, secret := range []bool{false, true} { // whose value its log shows
		if _, err := s.PutVariable(ctx, caller, a.ID, "A", api.PutAppVariable{Value: "hush", Secret: new(secret), Scope: new("production")}); err != nil {
			t.Error(err)
		}
		changed(false)
	}
	// Who exchanges its value does not show the new one, nor give it to previews.
	for name, set := range map[string]func() error{
		"put": func() error {
			_, err := s.PutVariable(ctx, caller, a.ID, "A", api.PutAppVariable{Value: "new"})
			return err
		},
		"import": func() error {
			_, err := s.ImportEnv(ctx, caller, a.ID, api.ImportAppEnv{Dotenv: "A=hush"})
			return err
		},
	} {
		if err := set(); err != nil {
			t.Fatal(err)
		}
		if v := r.row(a.ID).Env[0]; v.Key != "A" || !v.Secret || v.Scope != "production" {
			t.Errorf("after a %s of the value alone: %+v", name, v)
		}
	}
	if _, err := s.PutVariable(ctx, caller, a.ID, "A", api.PutAppVariable{Value: "hush"}); err != nil {
		t.Fatal(err)
	}
	changed(false)
	for _, stored := range r.row(a.ID).Env {
		if bytes.HasPrefix(stored.ValueSealed, []byte("hush")) {
			t.Error("the row has the value")
		}
	}
	vars, err := s.ImportEnv(ctx, caller, a.ID, api.ImportAppEnv{Dotenv: "# some\nC=\"3\n4\"\nexport D=${C}!\nB=9\n"})
	if err != nil || len(vars) != 4 || vars[1].Value != "9" || vars[3].Value != "3\n4!" || vars[0].Value != "********" {
		t.Errorf("import: %+v, %v", vars, err)
	}
	changed(false)
	// What was read is written back, with one change.
	env, err := s.Get(ctx, caller, a.ID)
	if err != nil {
		t.Fatal(err)
	}
	env.Env["B"] = "10"
	delete(env.Env, "C")
	if _, err := s.Patch(ctx, caller, a.ID, api.PatchApp{Env: api.SetTo(api.StringMap(env.Env))}); err != nil {
		t.Fatal(err)
	}
	changed(true) // as the specification says of this route alone
	row := r.row(a.ID)
	var keys []string
	for _, v := range row.Env {
		keys = append(keys, v.Key)
	}
	if !slices.Equal(keys, []string{"A", "B", "D"}) || !bytes.HasSuffix(row.Env[0].ValueSealed, []byte("hush")) || !row.Env[0].Secret {
		t.Errorf("after a patch: %q", keys)
	}
	if err := s.DeleteVariable(ctx, caller, a.ID, "A"); err != nil {
		t.Fatal(err)
	}
	changed(false)
	want(t, s.DeleteVariable(ctx, caller, a.ID, "A"), apierror.ENotFound, "not found")
	for _, tc := range []struct {
		name, message, detail string
		call                  func() error
	}{
		{"key", "invalid key", "no name of a variable", func() error { _, err := s.PutVariable(ctx, caller, a.ID, "1A", api.PutAppVariable{}); return err }},
		{"platform's key", "invalid key", "set by the platform", func() error { _, err := s.PutVariable(ctx, caller, a.ID, "PORT", api.PutAppVariable{}); return err }},
		{"value", "invalid value", "it is longer than 65536 bytes", func() error {
			_, err := s.PutVariable(ctx, caller, a.ID, "A", api.PutAppVariable{Value: strings.Repeat("x", 65<<10)})
			return err
		}},
		{"scope", "invalid scope", "at most 64 letters", func() error {
			_, err := s.PutVariable(ctx, caller, a.ID, "A", api.PutAppVariable{Scope: new("A B")})
			return err
		}},
		{"line", "invalid dotenv", "line 2: want =", func() error {
			_, err := s.ImportEnv(ctx, caller, a.ID, api.ImportAppEnv{Dotenv: "A=1\nB"})
			return err
		}},
		{"imported key", "invalid dotenv", "HOST is set by the platform", func() error {
			_, err := s.ImportEnv(ctx, caller, a.ID, api.ImportAppEnv{Dotenv: "A=1\nHOST=x"})
			return err
		}},
		{"imported value", "invalid dotenv", "the value of A is longer than", func() error {
			_, err := s.ImportEnv(ctx, caller, a.ID, api.ImportAppEnv{Dotenv: "A=" + strings.Repeat("x", 65<<10)})
			return err
		}},
		{"many variables", "too many variables", "at most 200", func() error {
			text := ""
			for i := range 200 {
				text += fmt.Sprintf("V%d=\n", i)
			}
			_, err := s.ImportEnv(ctx, caller, a.ID, api.ImportAppEnv{Dotenv: text})
			return err
		}},
	} {
		before := r.row(a.ID).ModifyIndex
		err := tc.call()
		if e := apierror.As(err); err == nil || e.Code != apierror.EInvalid || e.Message != tc.message || !strings.Contains(e.Detail, tc.detail) {
			t.Errorf("%s: %v, want %q %q", tc.name, err, tc.message, tc.detail)
		}
		if r.row(a.ID).ModifyIndex != before {
			t.Errorf("%s: something was written", tc.name)
		}
	}
	// Many small imports may not add up to too much.
	for i := range 4 {
		_, err = s.PutVariable(ctx, caller, a.ID, fmt.Sprint("BIG", i), api.PutAppVariable{Value: strings.Repeat("x", 64<<10)})
	}
	if e := apierror.As(err); err == nil || e.Message != "variables too large" || !strings.Contains(e.Detail, "together") {
		t.Errorf("%v", err)
	}
}

func TestSources(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 2, nil)
	s, ctx := r.apps(), t.Context()
	a := r.create(func(in *api.CreateApp) { in.GitURL, in.Source = "", new(api.AppFromUpload) })
	_, err := s.Deploy(ctx, caller, a.ID, api.CreateDeployment{}, noKey)
	want(t, err, apierror.EConflict, "no source uploaded yet")
	_, err = s.Deploy(ctx, caller, a.ID, api.CreateDeployment{SourceID: "src-none"}, noKey)
	want(t, err, apierror.ENotFound, "not found")
	_, err = s.Deploy(ctx, caller, a.ID, api.CreateDeployment{GitRef: "main"}, noKey)
	want(t, err, apierror.EInvalid, "invalid git_ref")
	_, err = s.PutSource(ctx, caller, a.ID, strings.NewReader(""))
	want(t, err, apierror.EInvalid, "invalid source")
	_, err = s.PutSource(ctx, caller, a.ID, io.MultiReader(strings.NewReader("half"), failing{}))
	want(t, err, apierror.EInvalid, "invalid source")

	var ids []string
	for i := range 8 {
		up, err := s.PutSource(ctx, caller, a.ID, strings.NewReader(fmt.Sprint("tarball ", i)))
		if err != nil || up.SizeBytes != 9 {
			t.Fatalf("%+v, %v", up, err)
		}
		ids = append(ids, up.SourceID)
		if i == 0 {
			d := r.ends(r.deploy(a.ID).ID, record.DeploymentLive)
			if got := r.guests.at(d.SandboxID); string(got.source) != "tarball 0" || !got.build.Upload || got.build.Git != nil {
				t.Errorf("built from %q, %+v", got.source, got.build)
			}
		}
	}
	r.await("that old uploads go", func() bool {
		n := 0
		for _, h := range r.hosts {
			for _, name := range h.Blobs() {
				if strings.HasPrefix(name, "src-") {
					n++
				}
			}
		}
		return n == 6 && len(r.row(a.ID).Uploads) == 6
	})
	d, err := s.Deploy(ctx, caller, a.ID, api.CreateDeployment{SourceID: ids[0]}, noKey) // the live one's
	if err != nil {
		t.Fatal(err)
	}
	r.ends(d.ID, record.DeploymentLive)
	_, err = s.Deploy(ctx, caller, a.ID, api.CreateDeployment{SourceID: ids[1]}, noKey)
	want(t, err, apierror.ENotFound, "not found")
	last := r.ends(r.deploy(a.ID).ID, record.DeploymentLive)
	if last.SourceID != ids[7] {
		t.Errorf("deployed %s, not the last upload", last.SourceID)
	}
	git := r.create()
	up, err := s.PutSource(ctx, caller, git.ID, strings.NewReader("local"))
	if err != nil {
		t.Fatal(err)
	}
	d, err = s.Deploy(ctx, caller, git.ID, api.CreateDeployment{SourceID: up.SourceID}, noKey)
	if err != nil || d.Source != api.AppFromUpload {
		t.Errorf("an upload for an app from git: %+v, %v", d, err)
	}
	_, err = s.Deploy(ctx, caller, a.ID, api.CreateDeployment{SourceID: up.SourceID}, noKey)
	want(t, err, apierror.ENotFound, "not found")
	r.ends(d.ID, record.DeploymentLive)
	r.settled(2)
}

// failing ends with an error, as the body of a client that is gone does.
type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("connection reset") }

func TestSuspended(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, _ := r.live()
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}, Suspended: true})
		return nil
	})
	s, ctx := r.apps(), t.Context()
	for name, err := range map[string]error{
		"create": second(s.Create(ctx, caller, api.CreateApp{Name: "x", GitURL: repo}, noKey)),
		"deploy": second(s.Deploy(ctx, caller, a.ID, api.CreateDeployment{}, noKey)),
		"source": second(s.PutSource(ctx, caller, a.ID, strings.NewReader("x"))),
	} {
		if e := apierror.As(err); e == nil || e.Code != apierror.EForbidden || e.Message != "account suspended" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestDomainsGoWithTheirApp: from the moment it is deleted nothing leads to it, and its
// names are free.
func TestDomainsGoWithTheirApp(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 0, nil)
	gone, kept := r.create(), r.create(func(in *api.CreateApp) { in.Name = "kept" })
	r.Update(func(tx *raftstore.Tx) error {
		for name, id := range map[string]string{"a.example.com": gone.ID, "b.example.com": gone.ID, "c.example.com": kept.ID} {
			raftstore.Put(tx, record.Domains, &record.Domain{Meta: record.Meta{ID: name}, WorkspaceID: "ws", AppID: id, Name: name, Status: record.DomainPending})
		}
		return nil
	})
	if err := r.apps().Delete(t.Context(), caller, gone.ID); err != nil {
		t.Fatal(err)
	}
	if left := raftstore.All(r.Leader().Store.View(), record.Domains); len(left) != 1 || left[0].AppID != kept.ID {
		t.Errorf("%d domains are left", len(left))
	}
}

// TestArtifactsAreTheAppsOwn: a workspace sees nothing of its apps' snapshots.
func TestArtifactsAreTheAppsOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, d := r.live()
	n, ctx := r.LeaderNode(), t.Context()
	id := r.deployment(d.ID).SnapshotID
	if s, ok := raftstore.Get(n.Store.View(), record.Snapshots, id); !ok || s.Owner == nil || s.Owner.ID != a.ID {
		t.Fatalf("its artifact: %+v", s)
	}
	if page, _, err := n.Snapshots.List(ctx, caller, "", core.ListOptions{}); err != nil || len(page) != 0 {
		t.Errorf("list: %v, %v", page, err)
	}
	_, err := n.Snapshots.Get(ctx, caller, id)
	want(t, err, apierror.ENotFound, "not found")
	want(t, n.Snapshots.Delete(ctx, caller, id), apierror.ENotFound, "not found")
	_, err = n.Sandboxes.Create(ctx, caller, api.CreateSandbox{Template: "app", FromSnapshot: id}, noKey)
	if code := apierror.CodeOf(err); code != apierror.ENotFound && code != apierror.EInvalid {
		t.Errorf("a sandbox from it: %v", err)
	}
	_, err = n.Snapshots.Create(ctx, caller, a.SandboxID, api.CreateSnapshot{}, noKey)
	want(t, err, apierror.EConflict, "managed sandbox: delete it from the feature that owns it (Databases or Apps)")
	want(t, n.Sandboxes.Delete(ctx, caller, a.SandboxID), apierror.EConflict, "managed sandbox: delete it from the feature that owns it (Databases or Apps)")
	if _, ok := raftstore.Get(n.Store.View(), record.Snapshots, id); !ok {
		t.Error("its artifact is gone")
	}
}
