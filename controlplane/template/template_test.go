package template_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	templateID = "tpl-1"
	buildID    = "bld-1"
)

var key = template.Key("ws", "web")

// begin starts the build of "web" from base, or from an image.
func begin(t *testing.T, p *testplane.Plane, from string) string {
	t.Helper()
	image := strings.Contains(from, ":")
	sealed, err := p.Nodes[0].Templates.Flows.Seal(buildID, hostapi.BuildSpec{Template: key, From: from, FromOCI: image, Run: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	flowID := flow.NewID()
	p.Update(func(tx *raftstore.Tx) error {
		if _, there := raftstore.Get(tx, record.Builds, buildID); there {
			return nil
		}
		return template.Begin(tx, flowID, &record.Template{
			Meta: record.Meta{ID: templateID}, WorkspaceID: "ws", Name: "web", Key: key, Status: record.TemplateBuilding,
		}, &record.Build{
			Meta: record.Meta{ID: buildID}, WorkspaceID: "ws", Template: "web", Key: key, From: from, Status: record.TemplateQueued, SpecSealed: sealed,
		}, "req")
	})
	return flowID
}

// ended waits for the end of the build.
func ended(t *testing.T, p *testplane.Plane) (*record.Build, *record.Template) {
	t.Helper()
	var b *record.Build
	testcluster.Await(t, "the build's end", func() bool {
		var ok bool
		b, ok = raftstore.Get(p.Leader().Store.View(), record.Builds, buildID)
		return ok && !b.FinishedAt.IsZero()
	})
	tpl, _ := raftstore.Get(p.Leader().Store.View(), record.Templates, templateID)
	return b, tpl
}

func has(h *fakehost.Host, name string) bool {
	return slices.ContainsFunc(h.Heartbeat().Templates, func(t hostapi.TemplateState) bool { return t.Name == name })
}

func TestOneHostBuildsAndTheOthersFollow(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h1, h2 := p.Host("h1", 8192), p.Host("h2", 4096)
	begin(t, p, "base")
	b, tpl := ended(t, p)
	if b.Status != record.TemplateReady || b.HostID != "h1" || tpl.Status != record.TemplateReady || tpl.BuildID != buildID || tpl.MemoryMB != 768 {
		t.Errorf("%+v\n%+v", b, tpl)
	}
	testcluster.Await(t, "the other host's build", func() bool { _, ok := h2.Builds()[buildID]; return ok })
	if !has(h1, key) {
		t.Error("the host that has built it lacks it")
	}
	p.Update(func(tx *raftstore.Tx) error {
		raftstore.Delete(tx, record.Templates, templateID)
		raftstore.Delete(tx, record.Builds, buildID)
		return nil
	})
	testcluster.Await(t, "that it is forgotten", func() bool { return !has(h1, key) })
	if !has(h1, "base") {
		t.Error("the operator's template is gone")
	}
}

// A template is ready when its host has built it and has reported it in a heartbeat,
// so that a sandbox can be created from it.
func TestReadyIsWhatCanBePlaced(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 8192)
	h.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "getbuild" && !c.Done {
			h.Silence(true)
			time.AfterFunc(500*time.Millisecond, func() { h.Silence(false) })
		}
		return nil
	})
	begin(t, p, "base")
	if b, _ := ended(t, p); b.Status != record.TemplateReady {
		t.Fatalf("%+v", b)
	}
	if said := p.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Templates; !slices.ContainsFunc(said, func(t hostapi.TemplateState) bool { return t.Name == key }) {
		t.Errorf("it is ready, and its host has said no more than %+v", said)
	}
}

func TestImageIsPinned(t *testing.T) {
	const pinned = "registry.example.com/app@sha256:0000000000000000000000000000000000000000000000000000000000000000"
	p := testplane.New(t, 1, nil)
	h1, h2 := p.Host("h1", 8192), p.Host("h2", 4096)
	h1.SetBuild(func(id string, _ hostapi.BuildSpec) hostapi.Build {
		return hostapi.Build{ID: id, Status: hostapi.BuildSucceeded, From: pinned, CPU: 1, MemoryMB: 512}
	})
	begin(t, p, "registry.example.com/app:v1")
	if b, _ := ended(t, p); b.Status != record.TemplateReady {
		t.Fatalf("%+v", b)
	}
	testcluster.Await(t, "the other host's build", func() bool { return h2.Builds()[buildID].From == pinned })
}

func TestAnotherHostIsTried(t *testing.T) {
	tier.Slow(t)
	on := func(ops ...string) func(err error) fakehost.Fault {
		return func(err error) fakehost.Fault {
			return func(_ context.Context, c fakehost.Call) error {
				if slices.Contains(ops, c.Op) && !c.Done {
					return err
				}
				return nil
			}
		}
	}
	for name, fault := range map[string]fakehost.Fault{
		"no memory":       on("build")(&hostapi.Error{Code: hostapi.CodeNoMemory, Message: "full"}),
		"draining":        on("build")(&hostapi.Error{Code: hostapi.CodeDraining, Message: "stops"}),
		"does not answer": on("build", "getbuild")(fakehost.ErrDrop),
		"has forgotten":   on("getbuild")(&hostapi.Error{Code: hostapi.CodeNotFound, Message: "no such build"}),
	} {
		t.Run(name, func(t *testing.T) {
			p := testplane.New(t, 1, nil)
			h1, _ := p.Host("h1", 8192), p.Host("h2", 4096)
			h1.SetFault(fault)
			begin(t, p, "base")
			if b, _ := ended(t, p); b.Status != record.TemplateReady || b.HostID != "h2" {
				t.Errorf("%+v", b)
			}
		})
	}
}

// A search that a former leader began long ago does not end before the hosts could be heard.
func TestANewLeaderLooksForAHostBeforeItGivesUp(t *testing.T) {
	tier.Slow(t)
	var p *testplane.Plane
	var h *fakehost.Host
	var began, searched atomic.Int32
	long := make(chan struct{})
	release := sync.OnceFunc(func() { close(long) })
	defer release()
	p = testplane.New(t, 1, func(f *record.Flow, at flow.Point) error {
		if f.Kind != template.KindBuild || f.Step != "place" {
			return nil
		}
		switch {
		case at == flow.BeforeAct && began.Add(1) == 1:
			h.Silence(true)
			<-long
			return errors.New("the leader dies")
		case at == flow.BeforeAct && began.Load() == 2:
			n := p.LeaderNode()
			for len(n.Hosts.Sessions()) > 0 { // a heartbeat may be on its way
				n.Hosts.Resign()
				n.Hosts.Lead(n.Store.Term())
				<-time.After(20 * time.Millisecond)
			}
		case at == flow.AfterCommit && searched.Add(1) == 1:
			h.Silence(false)
		}
		return nil
	})
	h = p.Host("h1", 8192)
	begin(t, p, "base")
	p.Update(func(tx *raftstore.Tx) error {
		fl, ok := flow.Live(tx, template.Subject(templateID))
		if !ok {
			return errors.New("no flow")
		}
		fl = fl.Clone()
		var data map[string]any
		if err := json.Unmarshal(fl.Data, &data); err != nil {
			return err
		}
		data["since"] = time.Now().Add(-time.Hour)
		var err error
		fl.Data, err = json.Marshal(data)
		raftstore.Put(tx, record.Flows, fl)
		return err
	})
	release()
	if b, _ := ended(t, p); b.Status != record.TemplateReady || searched.Load() < 2 {
		t.Errorf("after %d searches: %+v", searched.Load(), b)
	}
}

// A host that did not answer is told to end its build when it answers again, at the
// latest when the build has ended elsewhere.
func TestABuildThatWasGivenUpIsEnded(t *testing.T) {
	tier.Slow(t)
	for name, c := range map[string]struct {
		fault error // of the host that is tried next
		ends  record.TemplateStatus
	}{
		"built elsewhere":   {nil, record.TemplateReady},
		"refused elsewhere": {&hostapi.Error{Code: hostapi.CodeInvalid, Message: "no such thing"}, record.TemplateFailed},
	} {
		t.Run(name, func(t *testing.T) {
			p := testplane.New(t, 1, nil)
			h1, h2 := p.Host("h1", 8192), p.Host("h2", 4096)
			var told atomic.Int32
			h1.SetFault(func(_ context.Context, c fakehost.Call) error {
				switch {
				case c.Op == "getbuild" && told.Load() < 2, c.Op == "unbuild" && !c.Done && told.Add(1) == 1:
					return fakehost.ErrDrop
				}
				return nil
			})
			h2.SetFault(func(_ context.Context, call fakehost.Call) error {
				if call.Op == "build" {
					return c.fault
				}
				return nil
			})
			begin(t, p, "base")
			b, _ := ended(t, p)
			if b.Status != c.ends || b.HostID != "h2" {
				t.Errorf("%+v", b)
			}
			if n := told.Load(); n < 2 {
				t.Errorf("the other host was told to end it %d times, and has not heard it", n)
			}
		})
	}
}

// A build that has taken too long is ended.
func TestABuildPastItsDeadlineIsEnded(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 8192)
	var status atomic.Value
	status.Store(hostapi.BuildBuilding)
	h.SetBuild(func(id string, _ hostapi.BuildSpec) hostapi.Build {
		return hostapi.Build{ID: id, Status: status.Load().(hostapi.BuildStatus)}
	})
	var told atomic.Int32
	h.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "unbuild" && c.Done {
			told.Add(1)
		}
		return nil
	})
	begin(t, p, "base")
	testcluster.Await(t, "the build", func() bool {
		b, ok := raftstore.Get(p.Leader().Store.View(), record.Builds, buildID)
		return ok && b.Status == record.TemplateBuilding
	})
	p.Update(func(tx *raftstore.Tx) error {
		fl, _ := flow.Live(tx, template.Subject(templateID))
		fl = fl.Clone()
		fl.Deadline = tx.Now().Add(-time.Second)
		raftstore.Put(tx, record.Flows, fl)
		return nil
	})
	status.Store(hostapi.BuildQueued) // the step that looks at it ends
	if b, _ := ended(t, p); b.Status != record.TemplateFailed || told.Load() == 0 {
		t.Errorf("%+v; its host was told %d times", b, told.Load())
	}
}

func TestBuildsThatFail(t *testing.T) {
	tier.Slow(t)
	failed := func(why string, interrupted bool) func(string, hostapi.BuildSpec) hostapi.Build {
		return func(id string, _ hostapi.BuildSpec) hostapi.Build {
			return hostapi.Build{ID: id, Status: hostapi.BuildFailed, Error: why, Interrupted: interrupted}
		}
	}
	t.Run("a step fails", func(t *testing.T) {
		p := testplane.New(t, 1, nil)
		p.Host("h1", 4096).SetBuild(failed("run[0]: exit code 7", false))
		begin(t, p, "base")
		b, tpl := ended(t, p)
		if b.Status != record.TemplateFailed || b.Error != "run[0]: exit code 7" || tpl.Status != record.TemplateFailed || tpl.Error != b.Error {
			t.Errorf("%+v\n%+v", b, tpl)
		}
	})
	t.Run("the old build stays", func(t *testing.T) {
		p := testplane.New(t, 1, nil)
		p.Host("h1", 4096).SetBuild(failed("no", false))
		begin(t, p, "base")
		p.Update(func(tx *raftstore.Tx) error {
			if tpl, ok := raftstore.Get(tx, record.Templates, templateID); ok && tpl.BuildID == "" {
				c := tpl.Clone()
				c.Status, c.BuildID = record.TemplateReady, "bld-0"
				raftstore.Put(tx, record.Templates, c)
			}
			return nil
		})
		if _, tpl := ended(t, p); tpl.BuildID != "bld-0" || tpl.Status != record.TemplateReady {
			t.Errorf("%+v", tpl)
		}
	})
	t.Run("the daemon's end is not the build's", func(t *testing.T) {
		p := testplane.New(t, 1, nil)
		h := p.Host("h1", 4096)
		var looks atomic.Int32
		h.SetBuild(func(id string, _ hostapi.BuildSpec) hostapi.Build {
			if looks.Add(1) == 1 {
				return hostapi.Build{ID: id, Status: hostapi.BuildFailed, Interrupted: true}
			}
			return hostapi.Build{ID: id, Status: hostapi.BuildSucceeded, MemoryMB: 512}
		})
		begin(t, p, "base")
		if b, _ := ended(t, p); b.Status != record.TemplateReady {
			t.Errorf("%+v", b)
		}
	})
	t.Run("but not for ever", func(t *testing.T) {
		p := testplane.New(t, 1, nil)
		p.Host("h1", 4096).SetBuild(failed("the host's daemon ended", true))
		begin(t, p, "base")
		if b, _ := ended(t, p); b.Status != record.TemplateFailed || b.Error != "the host's daemon ended" {
			t.Errorf("%+v", b)
		}
	})
	t.Run("the host says that it is wrong", func(t *testing.T) {
		p := testplane.New(t, 1, nil)
		p.Host("h1", 4096).SetFault(func(_ context.Context, c fakehost.Call) error {
			if c.Op == "build" {
				return &hostapi.Error{Code: hostapi.CodeInvalid, Message: "invalid request"}
			}
			return nil
		})
		begin(t, p, "base")
		if b, _ := ended(t, p); b.Status != record.TemplateFailed || !strings.Contains(b.Error, "invalid request") {
			t.Errorf("%+v", b)
		}
	})
}

// TestCrashAtEachPoint drops the flow once at every point of every step, as a
// leader's death would, and expects exactly one build.
func TestCrashAtEachPoint(t *testing.T) {
	var mu sync.Mutex
	dropped := map[string]bool{}
	p := testplane.New(t, 1, func(f *record.Flow, at flow.Point) error {
		mu.Lock()
		defer mu.Unlock()
		if point := f.Step + " " + string(at); f.Kind == template.KindBuild && !dropped[point] {
			dropped[point] = true
			return errors.New("crash")
		}
		return nil
	})
	h := p.Host("h1", 4096)
	begin(t, p, "base")
	if b, tpl := ended(t, p); b.Status != record.TemplateReady || tpl.BuildID != buildID {
		t.Errorf("%+v\n%+v", b, tpl)
	}
	mu.Lock()
	defer mu.Unlock()
	if n := len(dropped); n < 6 {
		t.Errorf("only %d points were met: %v", n, dropped)
	}
	if n := len(h.Builds()); n != 1 {
		t.Errorf("%d builds", n)
	}
}

func TestKeys(t *testing.T) {
	if a, b := template.Key("ws1", "web"), template.Key("ws2", "web"); a == b || !template.IsKey(a) || len(template.Key("ws", strings.Repeat("n", 50))) > 63 {
		t.Errorf("%s, %s", a, b)
	}
	for _, name := range []string{"base", "t-1.web", "t-0123456789", "t-0123456789x.web"} {
		if template.IsKey(name) {
			t.Errorf("%s is taken for a key", name)
		}
	}
}
