package service_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/flows/template"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/service"
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
	if e := want(t, err, service.EInvalid, "unknown template"); strings.Contains(e.Detail, "t-") {
		t.Errorf("it tells of another workspace's: %s", e.Detail)
	}
	_, err = r.Create(t.Context(), other, service.CreateSandbox{Template: template.Key("ws", "web")})
	want(t, err, service.EInvalid, "unknown template")
	_, err = s.GetTemplate(t.Context(), other, template.Key("ws", "web"))
	want(t, err, service.ENotFound, "not found")
	_, err = s.GetBuild(t.Context(), other, b.ID)
	want(t, err, service.ENotFound, "not found")
	want(t, s.DeleteTemplate(t.Context(), other, "web"), service.ENotFound, "not found")

	want(t, s.DeleteTemplate(t.Context(), caller, "base"), service.EForbidden, "template is not yours")
	want(t, s.DeleteTemplate(t.Context(), caller, "none"), service.ENotFound, "not found")
	want(t, s.DeleteTemplate(t.Context(), caller, "web"), service.EConflict, "template in use")
	if err := r.Delete(t.Context(), caller, sb.ID); err != nil {
		t.Fatal(err)
	}
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Snapshots, &record.Snapshot{Meta: record.Meta{ID: "snap-1"}, WorkspaceID: "ws", Template: "web", TemplateKey: template.Key("ws", "web")})
		return nil
	})
	want(t, s.DeleteTemplate(t.Context(), caller, "web"), service.EConflict, "template in use")
	r.Update(func(tx *raftstore.Tx) error { raftstore.Delete(tx, record.Snapshots, "snap-1"); return nil })
	if err := s.DeleteTemplate(t.Context(), caller, "web"); err != nil {
		t.Fatal(err)
	}
	_, err = s.GetBuild(t.Context(), caller, b.ID)
	want(t, err, service.ENotFound, "not found")
	_, err = r.Create(t.Context(), caller, service.CreateSandbox{Template: "web"})
	want(t, err, service.EInvalid, "unknown template")
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
	want(t, err, service.EConflict, "template is being built")
	_, err = r.Create(t.Context(), caller, service.CreateSandbox{Template: "web"})
	want(t, err, service.EInvalid, "template is not ready")
	_, err = s.BuildTemplate(t.Context(), caller, service.BuildTemplate{Name: "above", From: "web"})
	want(t, err, service.EInvalid, "template is not ready")
	for _, name := range []string{"web", "below"} {
		want(t, s.DeleteTemplate(t.Context(), caller, name), service.EConflict, "template in use")
	}
	for _, name := range []string{"w2", "w3", "w4"} {
		if _, err := s.BuildTemplate(t.Context(), caller, service.BuildTemplate{Name: name, From: "base"}); err != nil {
			t.Fatal(err)
		}
	}
	_, err = s.BuildTemplate(t.Context(), caller, service.BuildTemplate{Name: "w5", From: "base"})
	want(t, err, service.ERateLimited, "too many builds at once")
	r.host.SetBuild(nil)
	r.buildEnded(t, b.ID)
}

func TestBuildsThatAreRefused(t *testing.T) {
	r := newRig(t)
	s := r.templates()
	for name, c := range map[string]struct {
		in      service.BuildTemplate
		code    service.Code
		message string
	}{
		"no name":            {service.BuildTemplate{From: "base"}, service.EInvalid, "name is required"},
		"no from":            {service.BuildTemplate{Name: "a"}, service.EInvalid, "from is required"},
		"a path":             {service.BuildTemplate{Name: "../a", From: "base"}, service.EInvalid, "invalid name"},
		"a route":            {service.BuildTemplate{Name: "build", From: "base"}, service.EInvalid, "invalid name"},
		"a long name":        {service.BuildTemplate{Name: strings.Repeat("a", 51), From: "base"}, service.EInvalid, "invalid name"},
		"a name like a key":  {service.BuildTemplate{Name: "t-0123456789.a", From: "base"}, service.EInvalid, "invalid name"},
		"everybody's name":   {service.BuildTemplate{Name: "base", From: "docker.io/library/debian:12"}, service.EConflict, "template name is taken"},
		"everybody's itself": {service.BuildTemplate{Name: "base", From: "base"}, service.EConflict, "template name is taken"},
		"from itself":        {service.BuildTemplate{Name: "a", From: "a"}, service.EInvalid, "invalid from"},
		"from nothing known": {service.BuildTemplate{Name: "a", From: "debian"}, service.EInvalid, "unknown template"},
		"from a key":         {service.BuildTemplate{Name: "a", From: template.Key("other", "web")}, service.EInvalid, "unknown template"},
		"from in capitals":   {service.BuildTemplate{Name: "a", From: "Base"}, service.EInvalid, "unknown template"},
		"a long image":       {service.BuildTemplate{Name: "a", From: "a/" + strings.Repeat("b", 600)}, service.EInvalid, "invalid from"},
		"an image with NUL":  {service.BuildTemplate{Name: "a", From: "a/b\x00"}, service.EInvalid, "invalid from"},
		"an empty step":      {service.BuildTemplate{Name: "a", From: "base", Run: []string{" "}}, service.EInvalid, "invalid run"},
		"many steps":         {service.BuildTemplate{Name: "a", From: "base", Run: make([]string, 101)}, service.EInvalid, "invalid run"},
		"a relative file":    {service.BuildTemplate{Name: "a", From: "base", Files: map[string]string{"a": ""}}, service.EInvalid, "invalid files"},
		"a file with dots":   {service.BuildTemplate{Name: "a", From: "base", Files: map[string]string{"/a/../b": ""}}, service.EInvalid, "invalid files"},
		"large files":        {service.BuildTemplate{Name: "a", From: "base", Files: map[string]string{"/a": strings.Repeat("x", 300<<10)}}, service.ETooLarge, "request too large"},
		"a start with NUL":   {service.BuildTemplate{Name: "a", From: "base", Start: "x\x00"}, service.EInvalid, "invalid start"},
		"a bad variable":     {service.BuildTemplate{Name: "a", From: "base", Env: map[string]string{"A-B": ""}}, service.EInvalid, "invalid env"},
		"ready for nothing":  {service.BuildTemplate{Name: "a", From: "base", Ready: &service.TemplateCheck{}}, service.EInvalid, "invalid ready"},
		"port 70000":         {service.BuildTemplate{Name: "a", From: "base", Ready: &service.TemplateCheck{Port: new(70000)}}, service.EInvalid, "invalid ready"},
		"a long wait":        {service.BuildTemplate{Name: "a", From: "base", Ready: &service.TemplateCheck{Port: new(1), TimeoutSeconds: new(9999)}}, service.EInvalid, "invalid ready"},
		"port 0":             {service.BuildTemplate{Name: "a", From: "base", Ready: &service.TemplateCheck{Port: new(0), Cmd: "true"}}, service.EInvalid, "invalid ready"},
		"no wait":            {service.BuildTemplate{Name: "a", From: "base", Ready: &service.TemplateCheck{Port: new(1), TimeoutSeconds: new(0)}}, service.EInvalid, "invalid ready"},
		"no cpu":             {service.BuildTemplate{Name: "a", From: "base", CPU: new(0)}, service.EInvalid, "invalid cpu"},
		"no memory":          {service.BuildTemplate{Name: "a", From: "base", MemoryMB: new(0)}, service.EInvalid, "invalid memory_mb"},
		"no disk":            {service.BuildTemplate{Name: "a", From: "base", DiskMB: new(0)}, service.EInvalid, "invalid disk_mb"},
		"negative cpu":       {service.BuildTemplate{Name: "a", From: "base", CPU: new(-1)}, service.EInvalid, "invalid cpu"},
		"little memory":      {service.BuildTemplate{Name: "a", From: "base", MemoryMB: new(8)}, service.EInvalid, "invalid memory_mb"},
		"a large disk":       {service.BuildTemplate{Name: "a", From: "base", DiskMB: new(1 << 30)}, service.EInvalid, "invalid disk_mb"},
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
	want(t, err, service.EForbidden, "account suspended")
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
	want(t, err, service.ENotFound, "not found")
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
