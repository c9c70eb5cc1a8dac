package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/fork"
	"github.com/berth-cloud/berth/controlplane/snapshot"
	"github.com/berth-cloud/berth/controlplane/volume"
)

var (
	_ Forks     = (*fork.Forks)(nil)
	_ Snapshots = (*snapshot.Snapshots)(nil)
	_ Volumes   = (*volume.Volumes)(nil)
)

type fakeForks struct {
	createSnapshot func(string, api.CreateSnapshot) (api.Snapshot, error)
	getSnapshot    func(string) (api.Snapshot, error)
	listSnapshots  func(string, core.ListOptions) ([]api.Snapshot, string, error)
	deleteSnapshot func(string) error
	fork           func(string, api.Fork) (api.Forked, error)
	forkTree       func(string, api.ForkTree) (api.ForkedTree, error)
	promote        func(string, api.Promote) (api.Promoted, error)
	key            core.Idempotency // of the last create
}

func (f *fakeForks) Create(_ context.Context, _ core.Caller, id string, in api.CreateSnapshot, i core.Idempotency) (api.Snapshot, error) {
	f.key = i
	if f.createSnapshot == nil {
		return api.Snapshot{}, errUnexpected
	}
	return f.createSnapshot(id, in)
}

func (f *fakeForks) Get(_ context.Context, _ core.Caller, id string) (api.Snapshot, error) {
	if f.getSnapshot == nil {
		return api.Snapshot{}, errUnexpected
	}
	return f.getSnapshot(id)
}

func (f *fakeForks) List(_ context.Context, _ core.Caller, id string, o core.ListOptions) ([]api.Snapshot, string, error) {
	if f.listSnapshots == nil {
		return nil, "", errUnexpected
	}
	return f.listSnapshots(id, o)
}

func (f *fakeForks) Delete(_ context.Context, _ core.Caller, id string) error {
	if f.deleteSnapshot == nil {
		return errUnexpected
	}
	return f.deleteSnapshot(id)
}

func (f *fakeForks) Fork(_ context.Context, _ core.Caller, id string, in api.Fork, i core.Idempotency) (api.Forked, error) {
	f.key = i
	if f.fork == nil {
		return api.Forked{}, errUnexpected
	}
	return f.fork(id, in)
}

func (f *fakeForks) ForkTree(_ context.Context, _ core.Caller, id string, in api.ForkTree, i core.Idempotency) (api.ForkedTree, error) {
	f.key = i
	if f.forkTree == nil {
		return api.ForkedTree{}, errUnexpected
	}
	return f.forkTree(id, in)
}

func (f *fakeForks) Promote(_ context.Context, _ core.Caller, id string, in api.Promote) (api.Promoted, error) {
	if f.promote == nil {
		return api.Promoted{}, errUnexpected
	}
	return f.promote(id, in)
}

type fakeVolumes struct {
	key    core.Idempotency // of the last create
	create func(api.CreateVolume) (api.Volume, error)
	get    func(string) (api.Volume, error)
	list   func(core.ListOptions) ([]api.Volume, string, error)
	delete func(string) error
}

func (f *fakeVolumes) Create(_ context.Context, _ core.Caller, in api.CreateVolume, i core.Idempotency) (api.Volume, error) {
	f.key = i
	if f.create == nil {
		return api.Volume{}, errUnexpected
	}
	return f.create(in)
}

func (f *fakeVolumes) Get(_ context.Context, _ core.Caller, name string) (api.Volume, error) {
	if f.get == nil {
		return api.Volume{}, errUnexpected
	}
	return f.get(name)
}

func (f *fakeVolumes) List(_ context.Context, _ core.Caller, o core.ListOptions) ([]api.Volume, string, error) {
	if f.list == nil {
		return nil, "", errUnexpected
	}
	return f.list(o)
}

func (f *fakeVolumes) Delete(_ context.Context, _ core.Caller, name string) error {
	if f.delete == nil {
		return errUnexpected
	}
	return f.delete(name)
}

func read[T any](t *testing.T, body string) (out T) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), &out); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return out
}

func TestForkRoutes(t *testing.T) {
	r := newRig(t)
	child := testSandbox()
	child.ForkedFrom = new("parent")
	var got api.Fork
	r.forks.fork = func(id string, in api.Fork) (api.Forked, error) {
		got = in
		return api.Forked{
			ParentID: id, Mode: "cold", Children: []api.Sandbox{child}, Failed: []api.FailedFork{{Index: 1, Error: "no room"}}, PauseMS: 7,
		}, nil
	}
	var gotTree api.ForkTree
	r.forks.forkTree = func(id string, in api.ForkTree) (api.ForkedTree, error) {
		gotTree = in
		return api.ForkedTree{
			TreeID: "tree-1", ParentID: id, Children: []api.Sandbox{child}, Failed: []api.FailedFork{{Index: 1, Error: "no room"}}, PauseMS: 7,
		}, nil
	}

	w := r.call(http.MethodPost, "/v1/sandboxes/"+testID+"/fork", "tenant", `{"count":3,"mode":"warm"}`, api.HeaderIdempotencyKey, "k")
	f := read[api.Forked](t, w.Body.String())
	if w.Code != http.StatusCreated || *got.Count != 3 || *got.Mode != "warm" || r.forks.key.Key != "k" || len(r.forks.key.BodySHA256) != 32 {
		t.Fatalf("status %d, asked for %+v", w.Code, got)
	}
	if f.ParentID != testID || f.Mode != api.ForkCold || len(f.Children) != 1 || len(f.Failed) != 1 || f.PauseMS != 7 || *f.Children[0].ForkedFrom != "parent" {
		t.Fatalf("%+v", f)
	}
	w = r.call(http.MethodPost, "/v1/sandboxes/"+testID+"/fork-tree", "tenant", `{"metadata":{"a":[1]}}`)
	tree := read[api.ForkedTree](t, w.Body.String())
	if w.Code != http.StatusCreated || gotTree.Count != nil || string(gotTree.Metadata) != `{"a":[1]}` || tree.TreeID != "tree-1" || tree.Failed[0].Index != 1 {
		t.Fatalf("status %d, asked for %+v, %+v", w.Code, gotTree, tree)
	}
	r.forks.promote = func(id string, in api.Promote) (api.Promoted, error) {
		if id != testID || in.TreeID != "tree-1" || !in.CleanupSiblings {
			t.Errorf("promote %s, %+v", id, in)
		}
		return api.Promoted{Promoted: child, Deleted: []string{"x"}}, nil
	}
	w = r.call(http.MethodPost, "/v1/sandboxes/"+testID+"/promote", "tenant", `{"tree_id":"tree-1","cleanup_siblings":true}`)
	if p := read[api.Promoted](t, w.Body.String()); w.Code != http.StatusOK || p.Promoted.ID != testID || len(p.Deleted) != 1 {
		t.Fatalf("status %d, %+v", w.Code, p)
	}
}

// An empty string is passed to the use case, which refuses it: only an absent or
// null member means the default.
func TestEmptyChoicesAreGiven(t *testing.T) {
	r := newRig(t)
	var mode *api.ForkMode
	var boot *api.Boot
	var preview *api.PreviewMode
	r.forks.fork = func(id string, in api.Fork) (api.Forked, error) {
		mode = in.Mode
		return api.Forked{ParentID: id, Mode: "cold", Children: []api.Sandbox{}, Failed: []api.FailedFork{}}, nil
	}
	r.sandboxes.create = func(_ context.Context, _ core.Caller, in api.CreateSandbox, i core.Idempotency) (api.Sandbox, error) {
		boot, preview = in.Boot, in.Preview
		return testSandbox(), nil
	}
	for value, given := range map[string]bool{`""`: true, `null`: false} {
		r.call(http.MethodPost, "/v1/sandboxes/"+testID+"/fork", "tenant", `{"mode":`+value+`}`)
		r.call(http.MethodPost, "/v1/sandboxes", "tenant", `{"template":"base","boot":`+value+`,"preview":`+value+`}`)
		for name, got := range map[string]*string{"mode": (*string)(mode), "boot": (*string)(boot), "preview": (*string)(preview)} {
			if (got != nil) != given || given && *got != "" {
				t.Errorf("%s: %s came as %v", name, value, got)
			}
		}
	}
}

func TestForkBodiesOfTheWrongType(t *testing.T) {
	r := newRig(t)
	for path, bodies := range map[string][]string{
		"fork":      {`{"count":"2"}`, `{"count":1.5}`, `{"count":1e99}`, `{"mode":3}`, `[]`},
		"fork-tree": {`{"metadata":"x"}`, `{"metadata":[]}`, `{"count":true}`},
		"promote":   {`{"tree_id":1}`, `{"tree_id":"t","cleanup_siblings":"yes"}`},
		"snapshots": {`{"name":[]}`},
	} {
		for _, body := range bodies {
			w := r.call(http.MethodPost, "/v1/sandboxes/"+testID+"/"+path, "tenant", body)
			if e := errorOf(t, w); w.Code != http.StatusBadRequest || e.Error != "invalid json" {
				t.Errorf("%s %s: %d %+v", path, body, w.Code, e)
			}
		}
		if w := r.call(http.MethodPost, "/v1/sandboxes/"+testID+"/"+path, "tenant", ""); w.Code != http.StatusLengthRequired {
			t.Errorf("%s without a body: %d", path, w.Code)
		}
		if w := r.call(http.MethodPost, "/v1/sandboxes/no%20id/"+path, "tenant", `{}`); w.Code != http.StatusNotFound {
			t.Errorf("%s of no id: %d", path, w.Code)
		}
	}
}

func TestSnapshotRoutes(t *testing.T) {
	r := newRig(t)
	snap := api.Snapshot{
		ID: "snap-1", Status: "ready", SandboxID: testID, Template: "base", Name: "n", CreatedAt: api.Time{Time: time.Now()},
		SizeBytes: 15, MemoryBytes: 10, DiskBytes: 5, AgentID: "host-a", Stored: true, PauseMS: 3,
	}
	r.forks.createSnapshot = func(id string, in api.CreateSnapshot) (api.Snapshot, error) {
		if id != testID || in.Name != "n" || r.forks.key.Key != "k" {
			t.Errorf("%s, %+v", id, in)
		}
		return snap, nil
	}
	w := r.call(http.MethodPost, "/v1/sandboxes/"+testID+"/snapshots", "tenant", `{"name":"n"}`, api.HeaderIdempotencyKey, "k")
	if s := read[api.Snapshot](t, w.Body.String()); w.Code != http.StatusCreated || s.SizeBytes != 15 || s.Status != api.SnapshotReady || !s.Stored || s.PauseMS != 3 {
		t.Fatalf("status %d, %+v", w.Code, s)
	}
	r.forks.getSnapshot = func(id string) (api.Snapshot, error) { return snap, nil }
	if w := r.call(http.MethodGet, "/v1/snapshots/snap-1", "tenant", ""); w.Code != http.StatusOK {
		t.Fatalf("status %d", w.Code)
	}
	r.forks.deleteSnapshot = func(id string) error { return apierror.NotFound() }
	if w := r.call(http.MethodDelete, "/v1/snapshots/snap-2", "tenant", ""); w.Code != http.StatusNotFound {
		t.Fatalf("status %d", w.Code)
	}
	var asked string
	r.forks.listSnapshots = func(id string, o core.ListOptions) ([]api.Snapshot, string, error) {
		asked = id
		return []api.Snapshot{snap}, "more", nil
	}
	w = r.call(http.MethodGet, "/v1/snapshots?limit=1&sandbox_id="+testID, "tenant", "")
	// The link to the next page keeps the filter.
	if link := w.Header().Get("Link"); asked != testID || !strings.Contains(link, "sandbox_id="+testID) || !strings.Contains(link, "cursor=more") {
		t.Fatalf("asked for %q, link %s", asked, link)
	}
	asked = "nothing"
	w = r.call(http.MethodGet, "/v1/snapshots?sandbox_id=", "tenant", "")
	if e := errorOf(t, w); w.Code != http.StatusBadRequest || e.Error != "invalid sandbox_id" || asked != "nothing" {
		t.Fatalf("status %d, %+v, asked for %q", w.Code, e, asked)
	}
	if w := r.call(http.MethodGet, "/v1/snapshots?sandbox_id=a&sandbox_id=b", "tenant", ""); w.Code != http.StatusBadRequest {
		t.Fatalf("status %d", w.Code)
	}
}

// A name may have any printable character, and a client may escape those that need it, or
// all: every spelling means the same volume.
func TestAVolumesNameIsWhatThePathSays(t *testing.T) {
	for path, name := range map[string]string{
		"a+b":           "a+b",
		"a+b,c":         "a+b,c",
		"a+b%2Cc":       "a+b,c",
		"a%2Bb%2Cc":     "a+b,c",
		"disk+(old)":    "disk+(old)",
		"disk%20(old)":  "disk (old)",
		"%61+b":         "a+b",
		"a%2Fb+c":       "a/b+c",
		"50%25+(a%25b)": "50%+(a%b)",
		"%252B(c)":      "%2B(c)",
	} {
		t.Run(path, func(t *testing.T) {
			r := newRig(t)
			var got, deleted string
			r.volumes.get = func(name string) (api.Volume, error) { got = name; return api.Volume{}, apierror.NotFound() }
			r.volumes.delete = func(name string) error { deleted = name; return nil }
			r.call(http.MethodGet, "/v1/volumes/"+path, "tenant", "")
			w := r.call(http.MethodDelete, "/v1/volumes/"+path, "tenant", "")
			if got != name || deleted != name || w.Code != http.StatusNoContent {
				t.Errorf("%d: got %q and deleted %q, want %q", w.Code, got, deleted, name)
			}
		})
	}
}

func TestVolumeRoutes(t *testing.T) {
	r := newRig(t)
	v := api.Volume{Name: "data", SizeMB: 7, UsedBytes: 3, AgentID: "host-a", AttachedTo: new(testID), CreatedAt: api.Time{Time: time.Now()}}
	var got api.CreateVolume
	r.volumes.create = func(in api.CreateVolume) (api.Volume, error) { got = in; return v, nil }
	w := r.call(http.MethodPost, "/v1/volumes", "tenant", `{"name":"data","size_mb":7}`, api.HeaderIdempotencyKey, "k")
	if out := read[api.Volume](t, w.Body.String()); w.Code != http.StatusCreated || *got.SizeMB != 7 || r.volumes.key.Key != "k" || *out.AttachedTo != testID {
		t.Fatalf("status %d, %+v, %+v", w.Code, got, out)
	}
	r.volumes.create = func(api.CreateVolume) (api.Volume, error) {
		return api.Volume{}, &apierror.Error{Code: apierror.ERateLimited, Message: "volume quota exceeded", Fields: map[string]any{"volume_mb_used": 5, "volume_mb_max": 6}}
	}
	w = r.call(http.MethodPost, "/v1/volumes", "tenant", `{"name":"data"}`)
	if w.Code != http.StatusTooManyRequests || !strings.Contains(w.Body.String(), `"volume_mb_max":6`) {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	r.volumes.get = func(name string) (api.Volume, error) { v.AttachedTo = nil; return v, nil }
	if w := r.call(http.MethodGet, "/v1/volumes/data", "tenant", ""); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"attached_to":null`) {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	r.volumes.list = func(core.ListOptions) ([]api.Volume, string, error) { return nil, "", nil }
	if w := r.call(http.MethodGet, "/v1/volumes", "tenant", ""); strings.TrimSpace(w.Body.String()) != "[]" {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	r.volumes.delete = func(string) error { return nil }
	if w := r.call(http.MethodDelete, "/v1/volumes/data", "tenant", ""); w.Code != http.StatusNoContent {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	// A volume cannot be changed.
	for _, method := range []string{http.MethodPatch, http.MethodPut, http.MethodPost} {
		if w := r.call(method, "/v1/volumes/data", "tenant", `{"size_mb":9}`); w.Code != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", method, w.Code)
		}
	}
	for _, body := range []string{`{"name":1}`, `{"name":"data","size_mb":"7"}`, `{"name":"data","size_mb":0.5}`} {
		if w := r.call(http.MethodPost, "/v1/volumes", "tenant", body); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d", body, w.Code)
		}
	}
}
