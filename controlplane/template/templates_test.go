package template_test

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// built builds a template and waits until it can be used.
func built(t *testing.T, r *testplane.Rig, in api.BuildTemplate) api.Build {
	t.Helper()
	b, err := r.Node.Templates.Build(t.Context(), testplane.Caller, in, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	b = buildEnded(t, r, b.ID)
	testcluster.Await(t, "the heartbeat", func() bool {
		for _, s := range r.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Templates {
			if s.Name == template.Key("ws", in.Name) {
				return true
			}
		}
		return b.Status != "ready"
	})
	return b
}

func buildEnded(t *testing.T, r *testplane.Rig, id string) api.Build {
	t.Helper()
	var b api.Build
	testcluster.Await(t, "the build's end", func() bool {
		var err error
		if b, err = r.Node.Templates.GetBuild(t.Context(), testplane.Caller, id); err != nil {
			t.Fatal(err)
		}
		return b.FinishedAt != nil
	})
	return b
}

func TestTemplateFromItsBuildToItsEnd(t *testing.T) {
	r := testplane.NewRig(t, 1)
	s := r.Node.Templates
	other := core.Caller{WorkspaceID: "other"}
	b := built(t, r, api.BuildTemplate{Name: "web", From: "base", Run: []string{"true"}})
	if b.Status != "ready" || b.Template != "web" || b.Error != nil {
		t.Fatalf("%+v", b)
	}
	got, err := s.Get(t.Context(), testplane.Caller, "web")
	if err != nil || got.Status != "ready" || got.BuildID != b.ID || got.MemoryMB != 768 || got.CPU != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	list, _, err := s.List(t.Context(), testplane.Caller, core.ListOptions{})
	if err != nil || len(list) != 2 || list[0].Name != "web" || list[1].Name != "base" {
		t.Errorf("%+v, %v", list, err)
	}
	page, next, err := s.List(t.Context(), testplane.Caller, core.ListOptions{Limit: 1})
	if err != nil || len(page) != 1 || page[0].Name != "web" || next == "" {
		t.Errorf("the first page: %+v, %q, %v", page, next, err)
	}
	if list, _, err := s.List(t.Context(), other, core.ListOptions{}); err != nil || len(list) != 1 || list[0].Name != "base" {
		t.Errorf("another workspace sees %+v, %v", list, err)
	}
	builds, _, err := s.ListBuilds(t.Context(), testplane.Caller, "web", core.ListOptions{})
	if err != nil || len(builds) != 1 || builds[0].ID != b.ID {
		t.Errorf("%+v, %v", builds, err)
	}

	// Only this workspace can use it, and only by its name.
	sb := r.Must(t, api.CreateSandbox{Template: "web"})
	if sb.Template != "web" || sb.MemoryMB != 768 {
		t.Errorf("%+v", sb)
	}
	_, err = r.Create(t.Context(), other, api.CreateSandbox{Template: "web"}, core.Idempotency{})
	if e := testplane.Want(t, err, apierror.EInvalid, "unknown template"); strings.Contains(e.Detail, "t-") {
		t.Errorf("it tells of another workspace's: %s", e.Detail)
	}
	_, err = r.Create(t.Context(), other, api.CreateSandbox{Template: template.Key("ws", "web")}, core.Idempotency{})
	testplane.Want(t, err, apierror.EInvalid, "unknown template")
	_, err = s.Get(t.Context(), other, template.Key("ws", "web"))
	testplane.Want(t, err, apierror.ENotFound, "not found")
	_, err = s.GetBuild(t.Context(), other, b.ID)
	testplane.Want(t, err, apierror.ENotFound, "not found")
	testplane.Want(t, s.Delete(t.Context(), other, "web"), apierror.ENotFound, "not found")

	testplane.Want(t, s.Delete(t.Context(), testplane.Caller, "base"), apierror.EForbidden, "template is not yours")
	testplane.Want(t, s.Delete(t.Context(), testplane.Caller, "none"), apierror.ENotFound, "not found")
	testplane.Want(t, s.Delete(t.Context(), testplane.Caller, "web"), apierror.EConflict, "template in use")
	if err := r.Delete(t.Context(), testplane.Caller, sb.ID); err != nil {
		t.Fatal(err)
	}
	r.Update(func(tx *raftstore.Tx) error {
		testcluster.PutSnapshot(tx, &record.Snapshot{Meta: record.Meta{ID: "snap-1"}, Status: record.ResourceReady, WorkspaceID: "ws", Template: "web", TemplateKey: template.Key("ws", "web")})
		return nil
	})
	testplane.Want(t, s.Delete(t.Context(), testplane.Caller, "web"), apierror.EConflict, "template in use")
	r.Update(func(tx *raftstore.Tx) error { raftstore.Delete(tx, record.Snapshots, "snap-1"); return nil })
	if err := s.Delete(t.Context(), testplane.Caller, "web"); err != nil {
		t.Fatal(err)
	}
	// A cursor stays valid when the row it points at is gone.
	page, next, err = s.List(t.Context(), testplane.Caller, core.ListOptions{Limit: 1, Cursor: next})
	if err != nil || len(page) != 1 || page[0].Name != "base" || next != "" {
		t.Errorf("the second page: %+v, %q, %v", page, next, err)
	}
	_, err = s.GetBuild(t.Context(), testplane.Caller, b.ID)
	testplane.Want(t, err, apierror.ENotFound, "not found")
	_, err = r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "web"}, core.Idempotency{})
	testplane.Want(t, err, apierror.EInvalid, "unknown template")
}

// Whoever misspells a name is told the nearest, of an own template too.
func TestAMisspelledTemplateIsGuessed(t *testing.T) {
	r := testplane.NewRig(t, 1)
	built(t, r, api.BuildTemplate{Name: "webshop", From: "base"})
	for name, ask := range map[string]func() error{
		"a sandbox": func() error {
			_, err := r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "webshpo"}, core.Idempotency{})
			return err
		},
		"a build": func() error {
			_, err := r.Node.Templates.Build(t.Context(), testplane.Caller, api.BuildTemplate{Name: "mine", From: "webshpo"}, core.Idempotency{})
			return err
		},
		"a key": func() error {
			row := &record.Sandbox{Template: "webshpo", TemplateKey: "gone", WorkspaceID: testplane.Caller.WorkspaceID}
			return template.Resolve(r.Leader().Store.View(), row)
		},
	} {
		if e := testplane.Want(t, ask(), apierror.EInvalid, "unknown template"); !strings.HasPrefix(e.Detail, `no template "webshpo"; did you mean "webshop"?; available: base, webshop`) {
			t.Errorf("%s: %s", name, e.Detail)
		}
	}
}

func TestOneBuildOfATemplateAtATime(t *testing.T) {
	r := testplane.NewRig(t, 1)
	s := r.Node.Templates
	built(t, r, api.BuildTemplate{Name: "below", From: "base"})
	r.H1.SetBuild(func(id string, _ hostapi.BuildSpec) hostapi.Build {
		return hostapi.Build{ID: id, Status: hostapi.BuildBuilding}
	})
	in, key := api.BuildTemplate{Name: "web", From: "below"}, testplane.Key("k", "body")
	b, err := s.Build(t.Context(), testplane.Caller, in, key)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.Build(t.Context(), testplane.Caller, in, key); err != nil || again.ID != b.ID {
		t.Errorf("the same key: %+v, %v", again, err)
	}
	_, err = s.Build(t.Context(), testplane.Caller, api.BuildTemplate{Name: "web", From: "base"}, core.Idempotency{})
	testplane.Want(t, err, apierror.EConflict, "template is being built")
	_, err = r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "web"}, core.Idempotency{})
	testplane.Want(t, err, apierror.EInvalid, "template is not ready")
	_, err = s.Build(t.Context(), testplane.Caller, api.BuildTemplate{Name: "above", From: "web"}, core.Idempotency{})
	testplane.Want(t, err, apierror.EInvalid, "template is not ready")
	for _, name := range []string{"web", "below"} {
		testplane.Want(t, s.Delete(t.Context(), testplane.Caller, name), apierror.EConflict, "template in use")
	}
	for _, name := range []string{"w2", "w3", "w4"} {
		if _, err := s.Build(t.Context(), testplane.Caller, api.BuildTemplate{Name: name, From: "base"}, core.Idempotency{}); err != nil {
			t.Fatal(err)
		}
	}
	_, err = s.Build(t.Context(), testplane.Caller, api.BuildTemplate{Name: "w5", From: "base"}, core.Idempotency{})
	testplane.Want(t, err, apierror.ERateLimited, "too many builds at once")
	r.H1.SetBuild(nil)
	buildEnded(t, r, b.ID)
}

// The builds of a deleted template cannot be found, though their rows stay until their
// products are removed from the snapshot store. A repeated request gets the first answer.
func TestARepeatedRequestAnswersTheBuildOfADeletedTemplate(t *testing.T) {
	r := testplane.NewRig(t, 1)
	s := r.Node.Templates
	in, key := api.BuildTemplate{Name: "web", From: "base"}, testplane.Key("k", "body")
	b, err := s.Build(t.Context(), testplane.Caller, in, key)
	if err != nil {
		t.Fatal(err)
	}
	buildEnded(t, r, b.ID)
	r.Update(func(tx *raftstore.Tx) error {
		for _, row := range raftstore.Find(tx, record.Templates, "name", "ws/web") {
			template.Drop(tx, row)
		}
		row, _ := raftstore.Get(tx, record.Builds, b.ID)
		row = row.Clone()
		row.FinishedAt = time.Time{} // it would be removed at any moment
		raftstore.Put(tx, record.Builds, row)
		return nil
	})
	_, err = s.GetBuild(t.Context(), testplane.Caller, b.ID)
	testplane.Want(t, err, apierror.ENotFound, "not found")
	if again, err := s.Build(t.Context(), testplane.Caller, in, key); err != nil || again.ID != b.ID || again.Status != b.Status {
		t.Errorf("%+v, %v; the first was %+v", again, err, b)
	}
}

func TestBuildsThatAreRefused(t *testing.T) {
	r := testplane.NewRig(t, 1)
	s := r.Node.Templates
	for name, c := range map[string]struct {
		in      api.BuildTemplate
		code    apierror.Code
		message string
	}{
		"no name":            {api.BuildTemplate{From: "base"}, apierror.EInvalid, "name is required"},
		"no from":            {api.BuildTemplate{Name: "a"}, apierror.EInvalid, "from is required"},
		"a path":             {api.BuildTemplate{Name: "../a", From: "base"}, apierror.EInvalid, "invalid name"},
		"a route":            {api.BuildTemplate{Name: "build", From: "base"}, apierror.EInvalid, "invalid name"},
		"a long name":        {api.BuildTemplate{Name: strings.Repeat("a", 51), From: "base"}, apierror.EInvalid, "invalid name"},
		"a name like a key":  {api.BuildTemplate{Name: "t-0123456789.a", From: "base"}, apierror.EInvalid, "invalid name"},
		"everybody's name":   {api.BuildTemplate{Name: "base", From: "docker.io/library/debian:12"}, apierror.EConflict, "template name is taken"},
		"everybody's itself": {api.BuildTemplate{Name: "base", From: "base"}, apierror.EConflict, "template name is taken"},
		"from itself":        {api.BuildTemplate{Name: "a", From: "a"}, apierror.EInvalid, "invalid from"},
		"from nothing known": {api.BuildTemplate{Name: "a", From: "debian"}, apierror.EInvalid, "unknown template"},
		"from a key":         {api.BuildTemplate{Name: "a", From: template.Key("other", "web")}, apierror.EInvalid, "unknown template"},
		"from in capitals":   {api.BuildTemplate{Name: "a", From: "Base"}, apierror.EInvalid, "unknown template"},
		"a long image":       {api.BuildTemplate{Name: "a", From: "a/" + strings.Repeat("b", 600)}, apierror.EInvalid, "invalid from"},
		"an image with NUL":  {api.BuildTemplate{Name: "a", From: "a/b\x00"}, apierror.EInvalid, "invalid from"},
		"an empty step":      {api.BuildTemplate{Name: "a", From: "base", Run: []string{" "}}, apierror.EInvalid, "invalid run"},
		"many steps":         {api.BuildTemplate{Name: "a", From: "base", Run: make([]string, 101)}, apierror.EInvalid, "invalid run"},
		"a long step":        {api.BuildTemplate{Name: "a", From: "base", Run: []string{"true", strings.Repeat("x", 128<<10)}}, apierror.EInvalid, "invalid run"},
		"a long start":       {api.BuildTemplate{Name: "a", From: "base", Start: strings.Repeat("x", 128<<10)}, apierror.EInvalid, "invalid start"},
		"a relative file":    {api.BuildTemplate{Name: "a", From: "base", Files: map[string]string{"a": ""}}, apierror.EInvalid, "invalid files"},
		"a file with dots":   {api.BuildTemplate{Name: "a", From: "base", Files: map[string]string{"/a/../b": ""}}, apierror.EInvalid, "invalid files"},
		"large files":        {api.BuildTemplate{Name: "a", From: "base", Files: map[string]string{"/a": strings.Repeat("x", 300<<10)}}, apierror.ETooLarge, "request too large"},
		"a start with NUL":   {api.BuildTemplate{Name: "a", From: "base", Start: "x\x00"}, apierror.EInvalid, "invalid start"},
		"a bad variable":     {api.BuildTemplate{Name: "a", From: "base", Env: map[string]string{"A-B": ""}}, apierror.EInvalid, "invalid env"},
		"ready for nothing":  {api.BuildTemplate{Name: "a", From: "base", Ready: &api.TemplateCheck{}}, apierror.EInvalid, "invalid ready"},
		"port 70000":         {api.BuildTemplate{Name: "a", From: "base", Ready: &api.TemplateCheck{Port: new(70000)}}, apierror.EInvalid, "invalid ready"},
		"a long wait":        {api.BuildTemplate{Name: "a", From: "base", Ready: &api.TemplateCheck{Port: new(1), TimeoutSeconds: new(9999)}}, apierror.EInvalid, "invalid ready"},
		"port 0":             {api.BuildTemplate{Name: "a", From: "base", Ready: &api.TemplateCheck{Port: new(0), Cmd: "true"}}, apierror.EInvalid, "invalid ready"},
		"no wait":            {api.BuildTemplate{Name: "a", From: "base", Ready: &api.TemplateCheck{Port: new(1), TimeoutSeconds: new(0)}}, apierror.EInvalid, "invalid ready"},
		"no cpu":             {api.BuildTemplate{Name: "a", From: "base", CPU: new(0)}, apierror.EInvalid, "invalid cpu"},
		"no memory":          {api.BuildTemplate{Name: "a", From: "base", MemoryMB: new(0)}, apierror.EInvalid, "invalid memory_mb"},
		"no disk":            {api.BuildTemplate{Name: "a", From: "base", DiskMB: new(0)}, apierror.EInvalid, "invalid disk_mb"},
		"negative cpu":       {api.BuildTemplate{Name: "a", From: "base", CPU: new(-1)}, apierror.EInvalid, "invalid cpu"},
		"little memory":      {api.BuildTemplate{Name: "a", From: "base", MemoryMB: new(8)}, apierror.EInvalid, "invalid memory_mb"},
		"a large disk":       {api.BuildTemplate{Name: "a", From: "base", DiskMB: new(1 << 30)}, apierror.EInvalid, "invalid disk_mb"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Build(t.Context(), testplane.Caller, c.in, core.Idempotency{})
			testplane.Want(t, err, c.code, c.message)
		})
	}
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}, Suspended: true})
		return nil
	})
	_, err := s.Build(t.Context(), testplane.Caller, api.BuildTemplate{Name: "a", From: "base"}, core.Idempotency{})
	testplane.Want(t, err, apierror.EForbidden, "account suspended")
}

// The error about an environment that is too large names the variable and the limit.
func TestALargeEnvironmentOfABuildIsNamed(t *testing.T) {
	r := testplane.NewRig(t, 1)
	for _, env := range []map[string]string{
		{"SMALL": "x", "LARGE": strings.Repeat("x", hostapi.MaxBuildEnv)}, {"SMALL": strings.Repeat("x", hostapi.MaxBuildEnv/2-100), "LARGE": strings.Repeat("x", hostapi.MaxBuildEnv/2+100)},
	} {
		_, err := r.Node.Templates.Build(t.Context(), testplane.Caller, api.BuildTemplate{Name: "web", From: "base", Env: env}, core.Idempotency{})
		e := testplane.Want(t, err, apierror.EInvalid, "invalid env")
		if !strings.Contains(e.Detail, "LARGE") || !strings.Contains(e.Detail, strconv.Itoa(hostapi.MaxBuildEnv)) {
			t.Errorf("detail %q", e.Detail)
		}
	}
}

// JSON needs more bytes for some characters than a build's limit counts.
func TestABuildIsAsLargeAsItMayBe(t *testing.T) {
	r := testplane.NewRig(t, 1)
	with := func(quotes int) api.BuildTemplate {
		const path, most = "/a", 256 << 10
		return api.BuildTemplate{Name: "web", From: "base", Files: map[string]string{
			path: strings.Repeat(`"`, quotes) + strings.Repeat("<", most-len(path)-quotes),
		}}
	}
	for _, quotes := range []int{0, 103 << 10} {
		if b := built(t, r, with(quotes)); b.Status != "ready" {
			t.Errorf("with %d quotes: %+v", quotes, b)
		}
	}
	_, err := r.Node.Templates.Build(t.Context(), testplane.Caller, with(105<<10), core.Idempotency{})
	if e := testplane.Want(t, err, apierror.ETooLarge, "request too large"); !strings.Contains(e.Detail, "360 KiB") {
		t.Errorf("detail %q", e.Detail)
	}
}

func TestBuildLogIsFollowedToItsEnd(t *testing.T) {
	tier.Slow(t)
	r := testplane.NewRig(t, 1)
	s := r.Node.Templates
	proceed := make(chan struct{})
	r.H1.SetBuild(func(id string, _ hostapi.BuildSpec) hostapi.Build {
		select {
		case <-proceed:
			return hostapi.Build{ID: id, Status: hostapi.BuildFailed, Error: "no"}
		default:
			return hostapi.Build{ID: id, Status: hostapi.BuildBuilding}
		}
	})
	b, err := s.Build(t.Context(), testplane.Caller, api.BuildTemplate{Name: "web", From: "base"}, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	log, err := s.FollowBuildLogs(t.Context(), testplane.Caller, b.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if line, err := log.Next(); err != nil || !strings.HasPrefix(line, "==> build bld-") {
		t.Errorf("%q, %v", line, err)
	}
	text, err := s.BuildLogs(t.Context(), testplane.Caller, b.ID)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(text)
	if text.Close(); err != nil || !strings.HasPrefix(string(raw), "==> build bld-") {
		t.Errorf("%q, %v", raw, err)
	}
	close(proceed)
	if line, err := log.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("%q, %v", line, err)
	}
	if got := buildEnded(t, r, b.ID); got.Status != "failed" || core.OrZero(got.Error) != "no" {
		t.Errorf("%+v", got)
	}
	_, err = s.FollowBuildLogs(t.Context(), core.Caller{WorkspaceID: "other"}, b.ID)
	testplane.Want(t, err, apierror.ENotFound, "not found")
	t.Run("by so many at once", func(t *testing.T) {
		for range 99 { // beside the one above
			log, err := s.FollowBuildLogs(t.Context(), testplane.Caller, b.ID)
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
		}
		_, err := s.FollowBuildLogs(t.Context(), testplane.Caller, b.ID)
		testplane.Want(t, err, apierror.ERateLimited, "too many streams at once")
	})
	t.Run("and closed while it waits", func(t *testing.T) {
		r.H1.SetBuild(func(id string, _ hostapi.BuildSpec) hostapi.Build {
			return hostapi.Build{ID: id, Status: hostapi.BuildBuilding}
		})
		b, err := s.Build(t.Context(), testplane.Caller, api.BuildTemplate{Name: "web", From: "base"}, core.Idempotency{})
		if err != nil {
			t.Fatal(err)
		}
		log, err := s.FollowBuildLogs(t.Context(), testplane.Caller, b.ID)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			for {
				if _, err := log.Next(); err != nil {
					ended <- err
					return
				}
			}
		}()
		log.Close()
		if err := <-ended; err == nil {
			t.Error("no error")
		}
		r.H1.SetBuild(nil)
		buildEnded(t, r, b.ID)
	})
}

// pythonSource is a definition that is built only on demand.
var pythonSource = hostapi.TemplateSource{Name: "python", From: "base", Recipe: "r1", CPU: 1, MemoryMB: 512, DiskMB: 1024}

func TestACreateBuildsTheTemplateThatItNames(t *testing.T) {
	r := testplane.NewRig(t, 1)
	s := r.Node.Templates
	r.H1.SetSources(pythonSource)
	testcluster.Await(t, "the template", func() bool { _, err := s.Get(t.Context(), testplane.Caller, "python"); return err == nil })
	if got, err := s.Get(t.Context(), testplane.Caller, "python"); err != nil || got.Status != "unbuilt" || got.BuildID != "" {
		t.Errorf("%+v, %v", got, err)
	}
	// Two concurrent creates share one build, across workspaces.
	other := core.Caller{WorkspaceID: "other", RequestID: "req"}
	made := make(chan error, 1)
	go func() {
		_, err := r.Create(t.Context(), other, api.CreateSandbox{Template: "python"}, core.Idempotency{})
		made <- err
	}()
	sb := r.Must(t, api.CreateSandbox{Template: "python"})
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	got, err := s.Get(t.Context(), testplane.Caller, "python")
	if err != nil || got.Status != "ready" || got.BuildID == "" {
		t.Errorf("%+v, %v", got, err)
	}
	// Every workspace can see its builds.
	for _, c := range []core.Caller{testplane.Caller, other} {
		builds, _, err := s.ListBuilds(t.Context(), c, "python", core.ListOptions{})
		if err != nil || len(builds) != 1 || builds[0].ID != got.BuildID {
			t.Errorf("%+v, %v", builds, err)
		}
		if b, err := s.GetBuild(t.Context(), c, got.BuildID); err != nil || b.Status != "ready" || b.Template != "python" {
			t.Errorf("%+v, %v", b, err)
		}
		log, err := s.BuildLogs(t.Context(), c, got.BuildID)
		if err != nil {
			t.Fatal(err)
		}
		raw, _ := io.ReadAll(log)
		_ = log.Close()
		if !strings.Contains(string(raw), "==> build "+got.BuildID) {
			t.Errorf("its log is %q", raw)
		}
	}
	// The sandbox's record names the build.
	if row, _ := r.Sandbox(sb.ID); row.BuildID != got.BuildID {
		t.Errorf("the sandbox is of build %q", row.BuildID)
	}
	// No workspace may delete it; this one is told first that it uses it.
	testplane.Want(t, s.Delete(t.Context(), testplane.Caller, "python"), apierror.EConflict, "template in use")
	if err := r.Delete(t.Context(), testplane.Caller, sb.ID); err != nil {
		t.Fatal(err)
	}
	testplane.Want(t, s.Delete(t.Context(), testplane.Caller, "python"), apierror.EForbidden, "template is not yours")
}

func TestATemplateThatCannotBeBuilt(t *testing.T) {
	tier.Slow(t)
	r := testplane.NewRig(t, 1)
	r.H1.SetSources(pythonSource)
	r.H1.SetBuild(func(id string, _ hostapi.BuildSpec) hostapi.Build {
		return hostapi.Build{ID: id, Status: hostapi.BuildFailed, Error: "run[0]: exit code 1"}
	})
	testcluster.Await(t, "the template", func() bool {
		_, err := r.Node.Templates.Get(t.Context(), testplane.Caller, "python")
		return err == nil
	})
	_, err := r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "python"}, core.Idempotency{})
	if e := testplane.Want(t, err, apierror.EUnprocessable, "template could not be built"); !strings.Contains(e.Detail, "exit code 1") {
		t.Errorf("detail %q", e.Detail)
	}
	// The next create tries again.
	r.H1.SetBuild(nil)
	r.Must(t, api.CreateSandbox{Template: "python"})
	// The client of a create leaves while the template is built.
	r.H1.SetSources(hostapi.TemplateSource{Name: "node", Recipe: "r2"})
	testcluster.Await(t, "node", func() bool { _, err := r.Node.Templates.Get(t.Context(), testplane.Caller, "node"); return err == nil })
	r.H1.SetBuild(func(id string, _ hostapi.BuildSpec) hostapi.Build {
		return hostapi.Build{ID: id, Status: hostapi.BuildBuilding}
	})
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := r.Create(ctx, testplane.Caller, api.CreateSandbox{Template: "node"}, core.Idempotency{})
		gone <- err
	}()
	testcluster.Await(t, "its build", func() bool {
		got, err := r.Node.Templates.Get(t.Context(), testplane.Caller, "node")
		return err == nil && got.Status == "building"
	})
	leave()
	if err := <-gone; err == nil {
		t.Error("a create that was given up is answered")
	}
	r.H1.SetBuild(nil) // the build goes on without it
	testcluster.Await(t, "the build's end", func() bool {
		got, err := r.Node.Templates.Get(t.Context(), testplane.Caller, "node")
		return err == nil && got.Status == "ready"
	})
}

// After a rebuild no host starts the old build, even one that still has it under the
// same name.
func TestPlacementIsByBuild(t *testing.T) {
	r := testplane.NewRig(t, 1)
	h2 := r.Host("h2", 64<<10) // with more room, and base as it was
	store := fakehost.NewStore()
	r.H1.SetStore(store)
	h2.SetStore(store)
	r.H1.Change(func(_ *hostapi.Capacity, templates *[]hostapi.TemplateState, _ map[string]hostapi.Box) {
		*templates = []hostapi.TemplateState{{Name: "base", BuildID: "b2", Status: "ready", CPU: 1, MemoryMB: 512, CreatedAt: time.Now()}}
	})
	testcluster.Await(t, "the rebuilt one", func() bool {
		view := r.Leader().Store.View()
		tpl, ok := template.Operators(view, "base")
		b, there := raftstore.Get(view, record.Builds, tpl.BuildID)
		return ok && there && len(b.Products) == 1 && b.Products[0].Digest == "b2"
	})
	for range 3 {
		if sb := r.Must(t, api.CreateSandbox{}); sb.AgentID != "h1" {
			t.Errorf("started on %s, which has the old build", sb.AgentID)
		}
	}
	// The other host fetches the build and takes sandboxes again.
	r.H1.StoreTemplates()
	testcluster.Await(t, "the other host's copy", func() bool { return h2.Heartbeat().Templates[0].BuildID == "b2" })
	testcluster.Await(t, "its heartbeat", func() bool {
		return r.LeaderNode().Hosts.Sessions()["h2"].Heartbeat.Templates[0].BuildID == "b2"
	})
	if sb := r.Must(t, api.CreateSandbox{}); sb.AgentID != "h2" {
		t.Errorf("started on %s", sb.AgentID)
	}
}
