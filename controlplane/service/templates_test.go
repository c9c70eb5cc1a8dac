package service_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/service"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

func (r *rig) templates() *service.Templates {
	return service.NewTemplates(r.Sandboxes, r.LeaderNode().Templates)
}

// built builds a template and waits until it can be used.
func (r *rig) built(t *testing.T, in service.BuildTemplate) service.Build {
	t.Helper()
	b, err := r.templates().BuildTemplate(t.Context(), caller, in)
	if err != nil {
		t.Fatal(err)
	}
	b = r.buildEnded(t, b.ID)
	testcluster.Await(t, 5*time.Second, "the heartbeat", func() bool {
		for _, s := range r.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Templates {
			if s.Name == template.Key("ws", in.Name) {
				return true
			}
		}
		return b.Status != "ready"
	})
	return b
}

func (r *rig) buildEnded(t *testing.T, id string) service.Build {
	t.Helper()
	var b service.Build
	testcluster.Await(t, 10*time.Second, "the build's end", func() bool {
		var err error
		if b, err = r.templates().GetBuild(t.Context(), caller, id); err != nil {
			t.Fatal(err)
		}
		return !b.FinishedAt.IsZero()
	})
	return b
}

func TestTemplateFromItsBuildToItsEnd(t *testing.T) {
	r := newRig(t)
	s := r.templates()
	other := service.Caller{WorkspaceID: "other"}
	b := r.built(t, service.BuildTemplate{Name: "web", From: "base", Run: []string{"true"}})
	if b.Status != "ready" || b.Template != "web" || b.Error != "" {
		t.Fatalf("%+v", b)
	}
	got, err := s.GetTemplate(t.Context(), caller, "web")
	if err != nil || got.Status != "ready" || got.BuildID != b.ID || got.MemoryMB != 768 || got.CPU != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	list, _, err := s.ListTemplates(t.Context(), caller, service.ListOptions{})
	if err != nil || len(list) != 2 || list[0].Name != "web" || list[1].Name != "base" {
		t.Errorf("%+v, %v", list, err)
	}
	page, next, err := s.ListTemplates(t.Context(), caller, service.ListOptions{Limit: 1})
	if err != nil || len(page) != 1 || page[0].Name != "web" || next == "" {
		t.Errorf("the first page: %+v, %q, %v", page, next, err)
	}
	if list, _, err := s.ListTemplates(t.Context(), other, service.ListOptions{}); err != nil || len(list) != 1 || list[0].Name != "base" {
		t.Errorf("another workspace sees %+v, %v", list, err)
	}
	builds, _, err := s.ListBuilds(t.Context(), caller, "web", service.ListOptions{})
	if err != nil || len(builds) != 1 || builds[0].ID != b.ID {
		t.Errorf("%+v, %v", builds, err)
	}

	// It is this workspace's own, by its name and by no other.
	sb := r.must(t, service.CreateSandbox{Template: "web"})
	if sb.Template != "web" || sb.MemoryMB != 768 {
		t.Errorf("%+v", sb)
	}
	_, err = r.Create(t.Context(), other, service.CreateSandbox{Template: "web"})
	if e := want(t, err, apierror.EInvalid, "unknown template"); strings.Contains(e.Detail, "t-") {
		t.Errorf("it tells of another workspace's: %s", e.Detail)
	}
	_, err = r.Create(t.Context(), other, service.CreateSandbox{Template: template.Key("ws", "web")})
	want(t, err, apierror.EInvalid, "unknown template")
	_, err = s.GetTemplate(t.Context(), other, template.Key("ws", "web"))
	want(t, err, apierror.ENotFound, "not found")
	_, err = s.GetBuild(t.Context(), other, b.ID)
	want(t, err, apierror.ENotFound, "not found")
	want(t, s.DeleteTemplate(t.Context(), other, "web"), apierror.ENotFound, "not found")

	want(t, s.DeleteTemplate(t.Context(), caller, "base"), apierror.EForbidden, "template is not yours")
	want(t, s.DeleteTemplate(t.Context(), caller, "none"), apierror.ENotFound, "not found")
	want(t, s.DeleteTemplate(t.Context(), caller, "web"), apierror.EConflict, "template in use")
	if err := r.Delete(t.Context(), caller, sb.ID); err != nil {
		t.Fatal(err)
	}
	r.Update(func(tx *raftstore.Tx) error {
		testcluster.PutSnapshot(tx, &record.Snapshot{Meta: record.Meta{ID: "snap-1"}, Status: record.ResourceReady, WorkspaceID: "ws", Template: "web", TemplateKey: template.Key("ws", "web")})
		return nil
	})
	want(t, s.DeleteTemplate(t.Context(), caller, "web"), apierror.EConflict, "template in use")
	r.Update(func(tx *raftstore.Tx) error { raftstore.Delete(tx, record.Snapshots, "snap-1"); return nil })
	if err := s.DeleteTemplate(t.Context(), caller, "web"); err != nil {
		t.Fatal(err)
	}
	// The place in the list holds when what was there is gone.
	page, next, err = s.ListTemplates(t.Context(), caller, service.ListOptions{Limit: 1, Cursor: next})
	if err != nil || len(page) != 1 || page[0].Name != "base" || next != "" {
		t.Errorf("the second page: %+v, %q, %v", page, next, err)
	}
	_, err = s.GetBuild(t.Context(), caller, b.ID)
	want(t, err, apierror.ENotFound, "not found")
	_, err = r.Create(t.Context(), caller, service.CreateSandbox{Template: "web"})
	want(t, err, apierror.EInvalid, "unknown template")
}

func TestOneBuildOfATemplateAtATime(t *testing.T) {
	r := newRig(t)
	s := r.templates()
	r.built(t, service.BuildTemplate{Name: "below", From: "base"})
	r.host.SetBuild(func(id string, _ hostapi.BuildSpec) hostapi.Build {
		return hostapi.Build{ID: id, Status: hostapi.BuildBuilding}
	})
	in := service.BuildTemplate{Name: "web", From: "below", Idempotency: service.Idempotency{Key: "k", BodySHA256: []byte{1}}}
	b, err := s.BuildTemplate(t.Context(), caller, in)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.BuildTemplate(t.Context(), caller, in); err != nil || again.ID != b.ID {
		t.Errorf("the same key: %+v, %v", again, err)
	}
	_, err = s.BuildTemplate(t.Context(), caller, service.BuildTemplate{Name: "web", From: "base"})
	want(t, err, apierror.EConflict, "template is being built")
	_, err = r.Create(t.Context(), caller, service.CreateSandbox{Template: "web"})
	want(t, err, apierror.EInvalid, "template is not ready")
	_, err = s.BuildTemplate(t.Context(), caller, service.BuildTemplate{Name: "above", From: "web"})
	want(t, err, apierror.EInvalid, "template is not ready")
	for _, name := range []string{"web", "below"} {
		want(t, s.DeleteTemplate(t.Context(), caller, name), apierror.EConflict, "template in use")
	}
	for _, name := range []string{"w2", "w3", "w4"} {
		if _, err := s.BuildTemplate(t.Context(), caller, service.BuildTemplate{Name: name, From: "base"}); err != nil {
			t.Fatal(err)
		}
	}
	_, err = s.BuildTemplate(t.Context(), caller, service.BuildTemplate{Name: "w5", From: "base"})
	want(t, err, apierror.ERateLimited, "too many builds at once")
	r.host.SetBuild(nil)
	r.buildEnded(t, b.ID)
}

func TestBuildsThatAreRefused(t *testing.T) {
	r := newRig(t)
	s := r.templates()
	for name, c := range map[string]struct {
		in      service.BuildTemplate
		code    apierror.Code
		message string
	}{
		"no name":            {service.BuildTemplate{From: "base"}, apierror.EInvalid, "name is required"},
		"no from":            {service.BuildTemplate{Name: "a"}, apierror.EInvalid, "from is required"},
		"a path":             {service.BuildTemplate{Name: "../a", From: "base"}, apierror.EInvalid, "invalid name"},
		"a route":            {service.BuildTemplate{Name: "build", From: "base"}, apierror.EInvalid, "invalid name"},
		"a long name":        {service.BuildTemplate{Name: strings.Repeat("a", 51), From: "base"}, apierror.EInvalid, "invalid name"},
		"a name like a key":  {service.BuildTemplate{Name: "t-0123456789.a", From: "base"}, apierror.EInvalid, "invalid name"},
		"everybody's name":   {service.BuildTemplate{Name: "base", From: "docker.io/library/debian:12"}, apierror.EConflict, "template name is taken"},
		"everybody's itself": {service.BuildTemplate{Name: "base", From: "base"}, apierror.EConflict, "template name is taken"},
		"from itself":        {service.BuildTemplate{Name: "a", From: "a"}, apierror.EInvalid, "invalid from"},
		"from nothing known": {service.BuildTemplate{Name: "a", From: "debian"}, apierror.EInvalid, "unknown template"},
		"from a key":         {service.BuildTemplate{Name: "a", From: template.Key("other", "web")}, apierror.EInvalid, "unknown template"},
		"from in capitals":   {service.BuildTemplate{Name: "a", From: "Base"}, apierror.EInvalid, "unknown template"},
		"a long image":       {service.BuildTemplate{Name: "a", From: "a/" + strings.Repeat("b", 600)}, apierror.EInvalid, "invalid from"},
		"an image with NUL":  {service.BuildTemplate{Name: "a", From: "a/b\x00"}, apierror.EInvalid, "invalid from"},
		"an empty step":      {service.BuildTemplate{Name: "a", From: "base", Run: []string{" "}}, apierror.EInvalid, "invalid run"},
		"many steps":         {service.BuildTemplate{Name: "a", From: "base", Run: make([]string, 101)}, apierror.EInvalid, "invalid run"},
		"a relative file":    {service.BuildTemplate{Name: "a", From: "base", Files: map[string]string{"a": ""}}, apierror.EInvalid, "invalid files"},
		"a file with dots":   {service.BuildTemplate{Name: "a", From: "base", Files: map[string]string{"/a/../b": ""}}, apierror.EInvalid, "invalid files"},
		"large files":        {service.BuildTemplate{Name: "a", From: "base", Files: map[string]string{"/a": strings.Repeat("x", 300<<10)}}, apierror.ETooLarge, "request too large"},
		"a start with NUL":   {service.BuildTemplate{Name: "a", From: "base", Start: "x\x00"}, apierror.EInvalid, "invalid start"},
		"a bad variable":     {service.BuildTemplate{Name: "a", From: "base", Env: map[string]string{"A-B": ""}}, apierror.EInvalid, "invalid env"},
		"ready for nothing":  {service.BuildTemplate{Name: "a", From: "base", Ready: &service.TemplateCheck{}}, apierror.EInvalid, "invalid ready"},
		"port 70000":         {service.BuildTemplate{Name: "a", From: "base", Ready: &service.TemplateCheck{Port: new(70000)}}, apierror.EInvalid, "invalid ready"},
		"a long wait":        {service.BuildTemplate{Name: "a", From: "base", Ready: &service.TemplateCheck{Port: new(1), TimeoutSeconds: new(9999)}}, apierror.EInvalid, "invalid ready"},
		"port 0":             {service.BuildTemplate{Name: "a", From: "base", Ready: &service.TemplateCheck{Port: new(0), Cmd: "true"}}, apierror.EInvalid, "invalid ready"},
		"no wait":            {service.BuildTemplate{Name: "a", From: "base", Ready: &service.TemplateCheck{Port: new(1), TimeoutSeconds: new(0)}}, apierror.EInvalid, "invalid ready"},
		"no cpu":             {service.BuildTemplate{Name: "a", From: "base", CPU: new(0)}, apierror.EInvalid, "invalid cpu"},
		"no memory":          {service.BuildTemplate{Name: "a", From: "base", MemoryMB: new(0)}, apierror.EInvalid, "invalid memory_mb"},
		"no disk":            {service.BuildTemplate{Name: "a", From: "base", DiskMB: new(0)}, apierror.EInvalid, "invalid disk_mb"},
		"negative cpu":       {service.BuildTemplate{Name: "a", From: "base", CPU: new(-1)}, apierror.EInvalid, "invalid cpu"},
		"little memory":      {service.BuildTemplate{Name: "a", From: "base", MemoryMB: new(8)}, apierror.EInvalid, "invalid memory_mb"},
		"a large disk":       {service.BuildTemplate{Name: "a", From: "base", DiskMB: new(1 << 30)}, apierror.EInvalid, "invalid disk_mb"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.BuildTemplate(t.Context(), caller, c.in)
			want(t, err, c.code, c.message)
		})
	}
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}, Suspended: true})
		return nil
	})
	_, err := s.BuildTemplate(t.Context(), caller, service.BuildTemplate{Name: "a", From: "base"})
	want(t, err, apierror.EForbidden, "account suspended")
}

func TestBuildLogIsFollowedToItsEnd(t *testing.T) {
	r := newRig(t)
	s := r.templates()
	proceed := make(chan struct{})
	r.host.SetBuild(func(id string, _ hostapi.BuildSpec) hostapi.Build {
		select {
		case <-proceed:
			return hostapi.Build{ID: id, Status: hostapi.BuildFailed, Error: "no"}
		default:
			return hostapi.Build{ID: id, Status: hostapi.BuildBuilding}
		}
	})
	b, err := s.BuildTemplate(t.Context(), caller, service.BuildTemplate{Name: "web", From: "base"})
	if err != nil {
		t.Fatal(err)
	}
	log, err := s.FollowBuildLogs(t.Context(), caller, b.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if line, err := log.Next(); err != nil || !strings.HasPrefix(line, "==> build bld-") {
		t.Errorf("%q, %v", line, err)
	}
	text, err := s.BuildLogs(t.Context(), caller, b.ID)
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
	if got := r.buildEnded(t, b.ID); got.Status != "failed" || got.Error != "no" {
		t.Errorf("%+v", got)
	}
	_, err = s.FollowBuildLogs(t.Context(), service.Caller{WorkspaceID: "other"}, b.ID)
	want(t, err, apierror.ENotFound, "not found")
	t.Run("and closed while it waits", func(t *testing.T) {
		r.host.SetBuild(func(id string, _ hostapi.BuildSpec) hostapi.Build {
			return hostapi.Build{ID: id, Status: hostapi.BuildBuilding}
		})
		b, err := s.BuildTemplate(t.Context(), caller, service.BuildTemplate{Name: "web", From: "base"})
		if err != nil {
			t.Fatal(err)
		}
		log, err := s.FollowBuildLogs(t.Context(), caller, b.ID)
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
		r.host.SetBuild(nil)
		r.buildEnded(t, b.ID)
	})
}

// python is a definition of which nothing is built until it is asked for.
var python = hostapi.TemplateSource{Name: "python", From: "base", Recipe: "r1", CPU: 1, MemoryMB: 512, DiskMB: 1024}

func TestACreateBuildsTheTemplateThatItNames(t *testing.T) {
	r := newRig(t)
	s := r.templates()
	r.host.SetSources(python)
	testcluster.Await(t, 10*time.Second, "the template", func() bool { _, err := s.GetTemplate(t.Context(), caller, "python"); return err == nil })
	if got, err := s.GetTemplate(t.Context(), caller, "python"); err != nil || got.Status != "unbuilt" || got.BuildID != "" {
		t.Errorf("%+v, %v", got, err)
	}
	// Two at once join one build, whoever asks.
	other := service.Caller{WorkspaceID: "other", RequestID: "req"}
	made := make(chan error, 1)
	go func() {
		_, err := r.Create(t.Context(), other, service.CreateSandbox{Template: "python"})
		made <- err
	}()
	sb := r.must(t, service.CreateSandbox{Template: "python"})
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	got, err := s.GetTemplate(t.Context(), caller, "python")
	if err != nil || got.Status != "ready" || got.BuildID == "" {
		t.Errorf("%+v, %v", got, err)
	}
	// It has builds as any other, which everybody sees.
	for _, c := range []service.Caller{caller, other} {
		builds, _, err := s.ListBuilds(t.Context(), c, "python", service.ListOptions{})
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
	// It is in use by this workspace, and nobody's to delete.
	want(t, s.DeleteTemplate(t.Context(), caller, "python"), apierror.EConflict, "template in use")
	if err := r.Delete(t.Context(), caller, sb.ID); err != nil {
		t.Fatal(err)
	}
	want(t, s.DeleteTemplate(t.Context(), caller, "python"), apierror.EForbidden, "template is not yours")
}

func TestATemplateThatCannotBeBuilt(t *testing.T) {
	r := newRig(t)
	r.host.SetSources(python)
	r.host.SetBuild(func(id string, _ hostapi.BuildSpec) hostapi.Build {
		return hostapi.Build{ID: id, Status: hostapi.BuildFailed, Error: "run[0]: exit code 1"}
	})
	testcluster.Await(t, 10*time.Second, "the template", func() bool { _, err := r.templates().GetTemplate(t.Context(), caller, "python"); return err == nil })
	_, err := r.Create(t.Context(), caller, service.CreateSandbox{Template: "python"})
	if e := want(t, err, apierror.EUnprocessable, "template could not be built"); !strings.Contains(e.Detail, "exit code 1") {
		t.Errorf("detail %q", e.Detail)
	}
	// It is tried again for the next one.
	r.host.SetBuild(nil)
	r.must(t, service.CreateSandbox{Template: "python"})
	// Nobody can build it once its definition is gone.
	r.host.SetSources(hostapi.TemplateSource{Name: "node", Recipe: "r2"})
	testcluster.Await(t, 10*time.Second, "node", func() bool { _, err := r.templates().GetTemplate(t.Context(), caller, "node"); return err == nil })
	r.host.SetBuild(func(id string, _ hostapi.BuildSpec) hostapi.Build {
		return hostapi.Build{ID: id, Status: hostapi.BuildBuilding}
	})
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := r.Create(ctx, caller, service.CreateSandbox{Template: "node"})
		gone <- err
	}()
	testcluster.Await(t, 10*time.Second, "its build", func() bool {
		got, err := r.templates().GetTemplate(t.Context(), caller, "node")
		return err == nil && got.Status == "building"
	})
	leave()
	if err := <-gone; err == nil {
		t.Error("a create that was given up is answered")
	}
	r.host.SetBuild(nil) // the build goes on without it
	testcluster.Await(t, 20*time.Second, "the build's end", func() bool {
		got, err := r.templates().GetTemplate(t.Context(), caller, "node")
		return err == nil && got.Status == "ready"
	})
}

// After a rebuild no host starts the old one, whatever the name means there.
func TestPlacementIsByBuild(t *testing.T) {
	r := newRig(t)
	h2 := r.Host("h2", 64<<10) // with more room, and base as it was
	store := fakehost.NewStore()
	r.host.SetStore(store)
	h2.SetStore(store)
	r.host.Change(func(_ *hostapi.Capacity, templates *[]hostapi.TemplateState, _ map[string]hostapi.Box) {
		*templates = []hostapi.TemplateState{{Name: "base", BuildID: "b2", Status: "ready", CPU: 1, MemoryMB: 512, CreatedAt: time.Now()}}
	})
	testcluster.Await(t, 10*time.Second, "the rebuilt one", func() bool {
		view := r.Leader().Store.View()
		tpl, ok := template.Operators(view, "base")
		b, there := raftstore.Get(view, record.Builds, tpl.BuildID)
		return ok && there && len(b.Products) == 1 && b.Products[0].Digest == "b2"
	})
	for range 3 {
		if sb := r.must(t, service.CreateSandbox{}); sb.AgentID != "h1" {
			t.Errorf("started on %s, which has the old build", sb.AgentID)
		}
	}
	// The other host fetches it, and takes sandboxes again.
	r.host.StoreTemplates()
	testcluster.Await(t, 10*time.Second, "the other host's copy", func() bool { return h2.Heartbeat().Templates[0].BuildID == "b2" })
	testcluster.Await(t, 10*time.Second, "its heartbeat", func() bool {
		return r.LeaderNode().Hosts.Sessions()["h2"].Heartbeat.Templates[0].BuildID == "b2"
	})
	if sb := r.must(t, service.CreateSandbox{}); sb.AgentID != "h2" {
		t.Errorf("started on %s", sb.AgentID)
	}
}
