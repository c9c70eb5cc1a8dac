package app_test

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/controlplane/app/code"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

var hello = map[string]string{"handler.py": "def handler(request):\n    return 'hello'\n"}

// functions are the use cases of the replica that leads.
func (r *rig) functions() *app.Functions { return r.apps().Functions() }

// function makes a function.
func (r *rig) function(name string) api.Function {
	r.t.Helper()
	f, err := r.functions().Create(r.t.Context(), caller, api.CreateFunction{Name: name, Runtime: api.RuntimePython, Env: api.StringMap{"A": "1"}}, noKey)
	if err != nil {
		r.t.Fatal(err)
	}
	return f
}

// deployed makes a function and waits until its code is live.
func (r *rig) deployed(name string) (api.Function, *record.Deployment) {
	r.t.Helper()
	f := r.function(name)
	d, err := r.functions().DeployFiles(r.t.Context(), caller, f.ID, hello, noKey)
	if err != nil {
		r.t.Fatal(err)
	}
	return f, r.ends(d.ID, record.DeploymentLive)
}

// awake keeps functions from sleeping.
func awake(cfg *app.Config) { cfg.FunctionIdle = new(time.Hour) }

func TestFunctionsAreCreated(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 0, nil)
	for name, tc := range map[string]struct {
		in   api.CreateFunction
		text string
	}{
		"no name":      {api.CreateFunction{Runtime: api.RuntimeNode}, "name is required"},
		"blank":        {api.CreateFunction{Name: " ", Runtime: api.RuntimeNode}, "name is required"},
		"long name":    {api.CreateFunction{Name: strings.Repeat("x", 101), Runtime: api.RuntimeNode}, "invalid name"},
		"no runtime":   {api.CreateFunction{Name: "f"}, "invalid runtime"},
		"ruby":         {api.CreateFunction{Name: "f", Runtime: "ruby"}, "invalid runtime"},
		"no time":      {api.CreateFunction{Name: "f", Runtime: api.RuntimeNode, TimeoutSeconds: new(0)}, "invalid timeout_seconds"},
		"too much":     {api.CreateFunction{Name: "f", Runtime: api.RuntimeNode, TimeoutSeconds: new(241)}, "invalid timeout_seconds"},
		"env":          {api.CreateFunction{Name: "f", Runtime: api.RuntimeNode, Env: api.StringMap{"PORT": "1"}}, "env must be a string map"},
		"environments": {api.CreateFunction{Name: "f", Runtime: api.RuntimeNode, Env: bigEnv()}, "env must be a string map"},
	} {
		_, err := r.functions().Create(t.Context(), caller, tc.in, noKey)
		if apierror.CodeOf(err) != apierror.EInvalid || !strings.HasPrefix(apierror.As(err).Message, tc.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	f := r.function("thumbs")
	if !strings.HasPrefix(f.ID, "fn-") || f.Status != api.AppCreated || f.TimeoutSeconds != 30 || f.Env["A"] != "1" || f.DeploymentID != "" || f.LastInvokedAt != nil {
		t.Errorf("%+v", f)
	}
	_, err := r.functions().Create(t.Context(), caller, api.CreateFunction{Name: "thumbs", Runtime: api.RuntimeNode}, noKey)
	if e := want(t, err, apierror.EConflict, "function already exists"); e.Detail != "its id is "+f.ID {
		t.Errorf("%+v", e)
	}
	key := testplane.Key("k", "body")
	once, err := r.functions().Create(t.Context(), caller, api.CreateFunction{Name: "once", Runtime: api.RuntimeNode}, key)
	again, err2 := r.functions().Create(t.Context(), caller, api.CreateFunction{Name: "once", Runtime: api.RuntimeNode}, key)
	if err != nil || err2 != nil || once.ID != again.ID {
		t.Errorf("%v, %v: %s and %s", err, err2, once.ID, again.ID)
	}
	// An app may have the name, and another workspace's function.
	r.create(func(in *api.CreateApp) { in.Name = "thumbs" })
	if _, err := r.functions().Create(t.Context(), stranger, api.CreateFunction{Name: "thumbs", Runtime: api.RuntimeNode}, noKey); err != nil {
		t.Error(err)
	}
	page, next, err := r.functions().List(t.Context(), caller, core.ListOptions{Limit: 1})
	if err != nil || len(page) != 1 || page[0].ID != once.ID || next == "" {
		t.Errorf("list: %+v, %q, %v", page, next, err)
	}
}

func TestFunctionsArePatched(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 0, nil)
	f, other := r.function("one"), r.function("two")
	r.edit(f.ID, func(a *record.App) { a.DeploymentID = "dep-x" })
	for name, tc := range map[string]struct {
		in   api.PatchFunction
		code apierror.Code
		text string
	}{
		"nothing":  {api.PatchFunction{}, apierror.EInvalid, "no updatable fields provided (supported: name, env, timeout_seconds)"},
		"no name":  {api.PatchFunction{Name: api.SetNull[string]()}, apierror.EInvalid, "name is required"},
		"taken":    {api.PatchFunction{Name: api.SetTo("two")}, apierror.EConflict, "function already exists"},
		"time":     {api.PatchFunction{TimeoutSeconds: api.SetTo(1000)}, apierror.EInvalid, "invalid timeout_seconds"},
		"variable": {api.PatchFunction{Env: api.SetTo(api.StringMap{"A-B": ""})}, apierror.EInvalid, "env must be a string map"},
	} {
		if _, err := r.functions().Patch(t.Context(), caller, f.ID, tc.in); apierror.CodeOf(err) != tc.code || apierror.As(err).Message != tc.text {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, in := range map[string]api.PatchFunction{"nothing": {}, "a variable": {Env: api.SetTo(api.StringMap{"A-B": ""})}} {
		if _, err := r.functions().Patch(t.Context(), caller, "fn-none", in); apierror.CodeOf(err) != apierror.ENotFound {
			t.Errorf("%s, no such function: %v", name, err)
		}
	}
	out, err := r.functions().Patch(t.Context(), caller, f.ID, api.PatchFunction{Name: api.SetTo("three")})
	if err != nil || out.Name != "three" || r.row(f.ID).Stale {
		t.Errorf("%+v, %v", out, err)
	}
	out, err = r.functions().Patch(t.Context(), caller, f.ID, api.PatchFunction{TimeoutSeconds: api.SetTo(60)})
	if err != nil || out.TimeoutSeconds != 60 || !r.row(f.ID).Stale || !strings.HasSuffix(r.row(f.ID).StartCommand, "function.py --timeout 60 2>&1") {
		t.Errorf("%+v, %v", out, err)
	}
	if out, err = r.functions().Patch(t.Context(), caller, other.ID, api.PatchFunction{Env: api.SetNull[api.StringMap]()}); err != nil || len(out.Env) > 0 {
		t.Errorf("%+v, %v", out, err)
	}
}

// Neither kind is seen by the routes of the other, nor by strangers.
func TestFunctionsAreNoApps(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil, awake)
	f, d := r.deployed("thumbs")
	a := r.create()
	apps, functions, ctx := r.apps(), r.functions(), t.Context()
	fails := func(what string, err error) {
		t.Helper()
		if apierror.CodeOf(err) != apierror.ENotFound || apierror.As(err).Message != "not found" {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := apps.Get(ctx, caller, f.ID)
	fails("get", err)
	_, err = apps.Patch(ctx, caller, f.ID, api.PatchApp{Name: api.SetTo("x")})
	fails("patch", err)
	_, err = apps.Deploy(ctx, caller, f.ID, api.CreateDeployment{}, noKey)
	fails("deploy", err)
	_, err = apps.RollBack(ctx, caller, f.ID, api.RollBackApp{}, core.Idempotency{})
	fails("roll back", err)
	_, err = apps.Deployment(ctx, caller, f.ID, d.ID)
	fails("deployment", err)
	_, err = apps.CancelDeployment(ctx, caller, f.ID, d.ID)
	fails("cancel", err)
	_, err = apps.DeploymentLogs(ctx, caller, f.ID, d.ID)
	fails("logs", err)
	_, err = apps.Env(ctx, caller, f.ID)
	fails("env", err)
	_, err = apps.PutVariable(ctx, caller, f.ID, "A", api.PutAppVariable{})
	fails("put variable", err)
	_, err = apps.PutSource(ctx, caller, f.ID, strings.NewReader("x"))
	fails("put source", err)
	fails("delete", apps.Delete(ctx, caller, f.ID))
	if page, _, err := apps.List(ctx, caller, core.ListOptions{}); err != nil || len(page) != 1 || page[0].ID != a.ID {
		t.Errorf("apps: %+v, %v", page, err)
	}
	for _, c := range []struct {
		caller core.Caller
		id     string
	}{{caller, a.ID}, {stranger, f.ID}, {core.Caller{WorkspaceID: "none"}, f.ID}, {caller, "fn-none"}} {
		_, err = functions.Get(ctx, c.caller, c.id)
		fails("get", err)
		_, err = functions.Patch(ctx, c.caller, c.id, api.PatchFunction{Name: api.SetTo("x")})
		fails("patch", err)
		_, err = functions.DeployFiles(ctx, c.caller, c.id, hello, noKey)
		fails("deploy", err)
		_, err = functions.DeployArchive(ctx, c.caller, c.id, strings.NewReader("x"), noKey)
		fails("deploy an archive", err)
		_, err = functions.Logs(ctx, c.caller, c.id, 0)
		fails("logs", err)
		fails("invoke", functions.Invocable(ctx, c.caller, c.id))
		fails("delete", functions.Delete(ctx, c.caller, c.id))
	}
	if page, _, err := functions.List(ctx, stranger, core.ListOptions{}); err != nil || len(page) > 0 {
		t.Errorf("a stranger's functions: %+v, %v", page, err)
	}
}

func TestAFunctionIsDeployed(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, nil, awake)
	f := r.function("thumbs")
	e := want(t, r.functions().Invocable(t.Context(), caller, f.ID), apierror.ENotFound, "no code deployed yet")
	if !strings.Contains(e.Detail, "deploy") {
		t.Errorf("%+v", e)
	}
	r.guests.set(func(g *guests) { g.hold = true })
	first, err := r.functions().DeployFiles(t.Context(), caller, f.ID, hello, noKey)
	if err != nil || first.Status != api.DeploymentQueued || first.Source != api.AppFromUpload || first.AppID != f.ID {
		t.Fatalf("%+v, %v", first, err)
	}
	r.at(first.ID, "poll")
	if e = want(t, r.functions().Invocable(t.Context(), caller, f.ID), apierror.ENotFound, "no code deployed yet"); e.Detail != "its first deployment is building" {
		t.Errorf("%+v", e)
	}
	r.guests.set(func(g *guests) { g.hold = false })
	d := r.ends(first.ID, record.DeploymentLive)
	g := r.guests.at(d.SandboxID)
	if b := g.build; !b.Upload || b.Runtime != "python" || b.Framework != "" || !strings.Contains(b.StartCommand, "/usr/lib/berth/function.py --timeout 30") || b.Env["A"] != "1" {
		t.Errorf("built with %+v", b)
	}
	if _, err := io.ReadAll(code.Check("python", bytes.NewReader(g.source))); err != nil {
		t.Errorf("its source: %v", err)
	}
	if err := r.functions().Invocable(t.Context(), caller, f.ID); err != nil {
		t.Error(err)
	}
	out, err := r.functions().Get(t.Context(), caller, f.ID)
	if err != nil || out.Status != api.AppRunning || out.Instances != 1 || out.DeploymentID != d.ID {
		t.Errorf("%+v, %v", out, err)
	}

	// What fails leaves what is live as it is.
	r.guests.set(func(g *guests) { g.plan.State = appapi.StateFailed })
	second, err := r.functions().DeployFiles(t.Context(), caller, f.ID, map[string]string{"handler.py": "("}, noKey)
	if err != nil {
		t.Fatal(err)
	}
	r.ends(second.ID, record.DeploymentFailed)
	if row := r.row(f.ID); row.DeploymentID != d.ID || row.Status != record.AppRunning || row.Instances[0].SandboxID != d.SandboxID {
		t.Errorf("after a failure: %+v", row)
	}
	// Nor is it built again, when the one that is live has to be.
	r.guests.set(func(g *guests) { g.plan.State = appapi.StateSucceeded })
	r.edit(f.ID, func(a *record.App) { a.Stale = true })
	r.Update(func(tx *raftstore.Tx) error {
		a, _ := raftstore.Get(tx, record.Apps, f.ID)
		a = a.Clone()
		a.Draining, a.Instances, a.Status = append(a.Draining, a.Instances...), nil, record.AppHibernated
		raftstore.Put(tx, record.Apps, a)
		return nil
	})
	if err := r.apps().Awake(t.Context(), f.ID); err != nil {
		t.Fatal(err)
	}
	if woken := r.deployment(r.row(f.ID).DeploymentID); woken.Trigger != "wake" || woken.SourceID != first.SourceID {
		t.Errorf("woken as %+v", woken)
	}
	if err := r.functions().Delete(t.Context(), caller, f.ID); err != nil {
		t.Fatal(err)
	}
	r.await("its end", func() bool { return len(raftstore.All(r.Leader().Store.View(), record.Apps)) == 0 })
	r.settled(0)
	for _, h := range r.hosts {
		if blobs := h.Blobs(); len(blobs) > 0 {
			t.Errorf("blobs %q are left", blobs)
		}
	}
}

// Who calls a function whose only deployment has failed is told which and why.
func TestACallTellsOfAFailedDeployment(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil, awake)
	f := r.function("thumbs")
	r.guests.set(func(g *guests) {
		g.plan = appapi.BuildStatus{State: appapi.StateFailed, Phase: appapi.PhaseBuild, Error: "pip exited with 1\nno such package"}
	})
	d, err := r.functions().DeployFiles(t.Context(), caller, f.ID, hello, noKey)
	if err != nil {
		t.Fatal(err)
	}
	r.ends(d.ID, record.DeploymentFailed)
	e := want(t, r.functions().Invocable(t.Context(), caller, f.ID), apierror.ENotFound, "no code deployed yet")
	if !strings.HasPrefix(e.Detail, "its deployment "+d.ID+" has failed: pip exited with 1; GET /v1/functions/"+f.ID+"/deploys/"+d.ID+"/logs ") {
		t.Errorf("detail %q", e.Detail)
	}
}

// A handler that will never be loaded is not loaded again and again.
func TestAHandlerThatCannotBeLoadedIsTriedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil, awake)
	f := r.function("thumbs")
	r.guests.set(func(g *guests) {
		g.port, g.status = 1, func(st *appapi.RunStatus) {
			st.State, st.Starts, st.ExitCode, st.Listening = appapi.StateExited, 1, new(78), nil
			st.LastLines = []string{"    def handler(:", "SyntaxError: invalid syntax"}
		}
	})
	d, err := r.functions().DeployFiles(t.Context(), caller, f.ID, hello, noKey)
	if err != nil {
		t.Fatal(err)
	}
	if d := r.ends(d.ID, record.DeploymentFailed); d.Error != "the handler of the function cannot be loaded; it wrote last:\n    def handler(:\nSyntaxError: invalid syntax" {
		t.Errorf("%q", d.Error)
	}
}

func TestCodeIsDeployedOnceForAKey(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil, awake)
	f := r.function("thumbs")
	tarball, err := code.Pack("python", hello)
	if err != nil {
		t.Fatal(err)
	}
	other, err := code.Pack("python", map[string]string{"handler.py": "handler = print"})
	if err != nil {
		t.Fatal(err)
	}
	key := func(name string) core.Idempotency { return core.Idempotency{Key: name, BodySHA256: []byte("body")} }
	archive := func(raw []byte) (api.Deployment, error) {
		return r.functions().DeployArchive(t.Context(), caller, f.ID, bytes.NewReader(raw), key("archive"))
	}
	files := func(i core.Idempotency) (api.Deployment, error) {
		return r.functions().DeployFiles(t.Context(), caller, f.ID, hello, i)
	}
	first, err := archive(tarball)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := archive(tarball); err != nil || again.ID != first.ID {
		t.Errorf("again: %+v, %v", again, err)
	}
	r.ends(first.ID, record.DeploymentLive)
	if again, err := archive(tarball); err != nil || again.Status != api.DeploymentQueued { // the first answer, whatever is since
		t.Errorf("after its end: %+v, %v", again, err)
	}
	_, err = archive(other)
	want(t, err, apierror.EConflict, "idempotency key reused")
	second, err := files(key("files"))
	if err != nil || second.ID == first.ID {
		t.Fatalf("%+v, %v", second, err)
	}
	if again, err := files(key("files")); err != nil || again.ID != second.ID {
		t.Errorf("again: %+v, %v", again, err)
	}
	_, err = files(core.Idempotency{Key: "files", BodySHA256: []byte("another")})
	want(t, err, apierror.EConflict, "idempotency key reused")
	r.ends(second.ID, record.DeploymentLive)
}

func TestAnArchiveIsDeployed(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil, awake)
	f := r.function("thumbs")
	tarball, err := code.Pack("python", hello)
	if err != nil {
		t.Fatal(err)
	}
	d, err := r.functions().DeployArchive(t.Context(), caller, f.ID, iotest.OneByteReader(bytes.NewReader(tarball)), noKey)
	if err != nil {
		t.Fatal(err)
	}
	if live := r.ends(d.ID, record.DeploymentLive); !bytes.Equal(r.guests.at(live.SandboxID).source, tarball) {
		t.Error("it is another one")
	}
	node, err := code.Pack("node", map[string]string{"handler.mjs": ""})
	if err != nil {
		t.Fatal(err)
	}
	blobs := len(r.hosts[0].Blobs())
	for name, tc := range map[string]struct {
		r    io.Reader
		code apierror.Code
		text string
	}{
		"nothing":         {strings.NewReader(""), apierror.EInvalid, "invalid code: want a tar.gz"},
		"text":            {strings.NewReader("def handler(request): pass"), apierror.EInvalid, "invalid code: want a tar.gz"},
		"half":            {bytes.NewReader(tarball[:len(tarball)-20]), apierror.EInvalid, "invalid code: want a tar.gz"},
		"another's":       {bytes.NewReader(node), apierror.EInvalid, "there is no handler.py at its top"},
		"too large":       {io.MultiReader(bytes.NewReader(tarball), io.LimitReader(zeros{}, code.MaxPacked)), apierror.ETooLarge, "code too large"},
		"the client's":    {io.MultiReader(bytes.NewReader(tarball[:20]), iotest.ErrReader(apierror.Invalid("incomplete body", "it ended"))), apierror.EInvalid, "incomplete body"},
		"a broken client": {io.MultiReader(bytes.NewReader(tarball[:20]), iotest.ErrReader(errors.New("reset"))), apierror.EInvalid, "invalid source"},
	} {
		_, err := r.functions().DeployArchive(t.Context(), caller, f.ID, tc.r, noKey)
		if e := apierror.As(err); e == nil || e.Code != tc.code || !strings.Contains(e.Message+": "+e.Detail, tc.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, files := range map[string]map[string]string{"none": nil, "no handler": {"main.py": ""}, "up": {"handler.py": "", "../x": ""}} {
		if _, err := r.functions().DeployFiles(t.Context(), caller, f.ID, files, noKey); apierror.CodeOf(err) != apierror.EInvalid || apierror.As(err).Message != "invalid code" {
			t.Errorf("%s: %v", name, err)
		}
	}
	kept := slices.DeleteFunc(slices.Clone(r.row(f.ID).Uploads), func(u record.AppUpload) bool { return u.Dropped })
	if n := len(r.hosts[0].Blobs()); n != blobs || len(kept) != 1 {
		t.Errorf("%d blobs and not %d, uploads %+v", n, blobs, kept)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// A function sleeps when the operator's time is over, and each invocation wakes it.
func TestAFunctionSleeps(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil, func(cfg *app.Config) { cfg.FunctionIdle = new(time.Second) })
	f, d := r.deployed("thumbs")
	r.becomes(f.ID, record.AppHibernated)
	r.settled(0)
	if err := r.apps().Awake(t.Context(), f.ID); err != nil {
		t.Fatal(err)
	}
	if row := r.row(f.ID); row.DeploymentID != d.ID || len(row.Instances) != 1 || row.Instances[0].SandboxID == d.SandboxID {
		t.Errorf("awake: %+v", row)
	}
	r.becomes(f.ID, record.AppHibernated)
	r.settled(0)
}

// What a function has written outlives its sandboxes.
func TestLogsOfAFunction(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 2, nil, func(cfg *app.Config) { cfg.FunctionIdle = new(time.Second) })
	f, _ := r.deployed("thumbs")
	logs := func(tail int) string {
		t.Helper()
		body, err := r.functions().Logs(t.Context(), caller, f.ID, tail)
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
		raw, _ := io.ReadAll(body)
		return string(raw)
	}
	r.becomes(f.ID, record.AppHibernated)
	if got := logs(0); got != "the app writes\n" {
		t.Errorf("asleep: %q", got)
	}
	r.settled(0)
	// What wakes starts with a log of its own.
	r.guests.set(func(g *guests) { g.wrote = "called\nagain\n" })
	if err := r.apps().Awake(t.Context(), f.ID); err != nil {
		t.Fatal(err)
	}
	r.becomes(f.ID, record.AppHibernated)
	r.settled(0)
	if got := logs(0); got != "the app writes\ncalled\nagain\n" {
		t.Errorf("asleep again: %q", got)
	}
	for tail, want := range map[int]string{1: "again\n", 2: "called\nagain\n", 9: "the app writes\ncalled\nagain\n"} {
		if got := logs(tail); got != want {
			t.Errorf("the last %d: %q", tail, got)
		}
	}
	// Who follows hears of what comes with the next wake.
	follow, err := r.functions().FollowLogs(t.Context(), caller, f.ID, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer follow.Close()
	if l, err := follow.Next(); err != nil || l.Line != "again" {
		t.Errorf("%+v, %v", l, err)
	}
	r.guests.set(func(g *guests) { g.wrote = "once more\n" })
	if err := r.apps().Awake(t.Context(), f.ID); err != nil {
		t.Fatal(err)
	}
	if l, err := follow.Next(); err != nil || l.Line != "once more" {
		t.Errorf("%+v, %v", l, err)
	}
	if err := r.functions().Delete(t.Context(), caller, f.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := follow.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("%v", err)
	}
	r.await("its end", func() bool { return len(raftstore.All(r.Leader().Store.View(), record.Apps)) == 0 })
	for _, h := range r.hosts {
		if blobs := h.Blobs(); len(blobs) > 0 {
			t.Errorf("blobs %q are left", blobs)
		}
	}
}

// The leader's death in each step of a deploy, a wake and a delete is not seen.
func TestEachStepOfAFunctionTwice(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, twice(), func(cfg *app.Config) { cfg.FunctionIdle = new(time.Second) })
	f, d := r.deployed("thumbs")
	if n := r.guests.at(d.SandboxID).builds; n != 1 {
		t.Errorf("%d builds", n)
	}
	r.becomes(f.ID, record.AppHibernated)
	if err := r.apps().Awake(t.Context(), f.ID); err != nil {
		t.Fatal(err)
	}
	if err := r.functions().Delete(t.Context(), caller, f.ID); err != nil {
		t.Fatal(err)
	}
	r.await("its end", func() bool { return len(raftstore.All(r.Leader().Store.View(), record.Apps)) == 0 })
	r.settled(0)
}

// TestLeaderDiesInADeployOfAFunction: the next one ends it.
func TestLeaderDiesInADeployOfAFunction(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 3, 1, nil, awake)
	f := r.function("thumbs")
	r.guests.set(func(g *guests) { g.hold = true })
	d, err := r.functions().DeployFiles(t.Context(), caller, f.ID, hello, noKey)
	if err != nil {
		t.Fatal(err)
	}
	r.at(d.ID, "poll")
	if err := r.Leader().Store.TransferLeadership(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	r.guests.set(func(g *guests) { g.hold = false })
	if row := r.ends(d.ID, record.DeploymentLive); r.guests.at(row.SandboxID).builds != 1 {
		t.Errorf("%+v", row)
	}
	if err := r.functions().Invocable(t.Context(), caller, f.ID); err != nil {
		t.Error(err)
	}
	r.settled(1)
}

// What a function's owner reads speaks of a function.
func TestAFunctionThatDoesNotAnswerIsAFunction(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	f := r.function("thumbs")
	r.guests.set(func(g *guests) {
		g.port, g.status = 1, func(r *appapi.RunStatus) { r.Listening = nil }
	})
	d, err := r.functions().DeployFiles(t.Context(), caller, f.ID, hello, noKey)
	if err != nil {
		t.Fatal(err)
	}
	if row := r.ends(d.ID, record.DeploymentFailed); !strings.HasPrefix(row.Error, "the function does not answer on port ") {
		t.Errorf("error %q", row.Error)
	}
}

func TestTooManyFunctions(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 0, nil, func(cfg *app.Config) { cfg.MaxPerWorkspace = new(1) })
	r.create() // which does not count
	r.function("one")
	_, err := r.functions().Create(t.Context(), caller, api.CreateFunction{Name: "two", Runtime: api.RuntimeNode}, noKey)
	if e := want(t, err, apierror.ERateLimited, "max functions reached"); e.Fields["max"] != 1 {
		t.Errorf("%+v", e)
	}
}
