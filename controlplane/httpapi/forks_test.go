package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/fork"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/controlplane/snapshot"
	"github.com/berth-cloud/berth/controlplane/volume"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
)

var (
	_ Forks     = (*fork.Forks)(nil)
	_ Snapshots = (*snapshot.Snapshots)(nil)
	_ Volumes   = (*volume.Volumes)(nil)
)

type fakeForks struct {
	createSnapshot func(string, snapshot.CreateSnapshot) (snapshot.Snapshot, error)
	getSnapshot    func(string) (snapshot.Snapshot, error)
	listSnapshots  func(string, core.ListOptions) ([]snapshot.Snapshot, string, error)
	deleteSnapshot func(string) error
	fork, forkTree func(string, fork.Request) (fork.Forked, error)
	promote        func(id, treeID string, cleanup bool) (sandbox.Sandbox, []string, error)
}

func (f *fakeForks) Create(_ context.Context, _ core.Caller, id string, in snapshot.CreateSnapshot) (snapshot.Snapshot, error) {
	if f.createSnapshot == nil {
		return snapshot.Snapshot{}, errUnexpected
	}
	return f.createSnapshot(id, in)
}

func (f *fakeForks) Get(_ context.Context, _ core.Caller, id string) (snapshot.Snapshot, error) {
	if f.getSnapshot == nil {
		return snapshot.Snapshot{}, errUnexpected
	}
	return f.getSnapshot(id)
}

func (f *fakeForks) List(_ context.Context, _ core.Caller, id string, o core.ListOptions) ([]snapshot.Snapshot, string, error) {
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

func (f *fakeForks) Fork(_ context.Context, _ core.Caller, id string, in fork.Request) (fork.Forked, error) {
	if f.fork == nil {
		return fork.Forked{}, errUnexpected
	}
	return f.fork(id, in)
}

func (f *fakeForks) ForkTree(_ context.Context, _ core.Caller, id string, in fork.Request) (fork.Forked, error) {
	if f.forkTree == nil {
		return fork.Forked{}, errUnexpected
	}
	return f.forkTree(id, in)
}

func (f *fakeForks) Promote(_ context.Context, _ core.Caller, id, treeID string, cleanup bool) (sandbox.Sandbox, []string, error) {
	if f.promote == nil {
		return sandbox.Sandbox{}, nil, errUnexpected
	}
	return f.promote(id, treeID, cleanup)
}

type fakeVolumes struct {
	create func(volume.CreateVolume) (volume.Volume, error)
	get    func(string) (volume.Volume, error)
	list   func(core.ListOptions) ([]volume.Volume, string, error)
	delete func(string) error
}

func (f *fakeVolumes) Create(_ context.Context, _ core.Caller, in volume.CreateVolume) (volume.Volume, error) {
	if f.create == nil {
		return volume.Volume{}, errUnexpected
	}
	return f.create(in)
}

func (f *fakeVolumes) Get(_ context.Context, _ core.Caller, name string) (volume.Volume, error) {
	if f.get == nil {
		return volume.Volume{}, errUnexpected
	}
	return f.get(name)
}

func (f *fakeVolumes) List(_ context.Context, _ core.Caller, o core.ListOptions) ([]volume.Volume, string, error) {
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
	child.ForkedFrom = "parent"
	var got fork.Request
	answer := func(id string, in fork.Request) (fork.Forked, error) {
		got = in
		return fork.Forked{
			TreeID: "tree-1", ParentID: id, Mode: "cold", Children: []sandbox.Sandbox{child},
			Failed: []fork.FailedFork{{Index: 1, Error: "no room"}}, PauseMS: 7,
		}, nil
	}
	r.forks.fork, r.forks.forkTree = answer, answer

	w := r.call(http.MethodPost, "/v1/sandboxes/"+testID+"/fork", "tenant", `{"count":3,"mode":"warm"}`, api.HeaderIdempotencyKey, "k")
	f := read[api.Forked](t, w.Body.String())
	if w.Code != http.StatusCreated || *got.Count != 3 || *got.Mode != "warm" || got.Idempotency.Key != "k" || len(got.Idempotency.BodySHA256) != 32 {
		t.Fatalf("status %d, asked for %+v", w.Code, got)
	}
	if f.ParentID != testID || f.Mode != api.ForkCold || len(f.Children) != 1 || len(f.Failed) != 1 || f.PauseMS != 7 || *f.Children[0].ForkedFrom != "parent" {
		t.Fatalf("%+v", f)
	}
	w = r.call(http.MethodPost, "/v1/sandboxes/"+testID+"/fork-tree", "tenant", `{"metadata":{"a":[1]}}`)
	tree := read[api.ForkedTree](t, w.Body.String())
	if w.Code != http.StatusCreated || got.Count != nil || string(got.Metadata) != `{"a":[1]}` || tree.TreeID != "tree-1" || tree.Failed[0].Index != 1 {
		t.Fatalf("status %d, asked for %+v, %+v", w.Code, got, tree)
	}
	// Nothing is null where a list is promised.
	r.forks.fork = func(id string, _ fork.Request) (fork.Forked, error) {
		return fork.Forked{ParentID: id, Mode: "cold"}, nil
	}
	if w := r.call(http.MethodPost, "/v1/sandboxes/"+testID+"/fork", "tenant", `{}`); !strings.Contains(w.Body.String(), `"children":[],"failed":[]`) {
		t.Fatal(w.Body.String())
	}
	r.forks.promote = func(id, tree string, cleanup bool) (sandbox.Sandbox, []string, error) {
		if id != testID || tree != "tree-1" || !cleanup {
			t.Errorf("promote %s of %s, %v", id, tree, cleanup)
		}
		return child, []string{"x"}, nil
	}
	w = r.call(http.MethodPost, "/v1/sandboxes/"+testID+"/promote", "tenant", `{"tree_id":"tree-1","cleanup_siblings":true}`)
	if p := read[api.Promoted](t, w.Body.String()); w.Code != http.StatusOK || p.Promoted.ID != testID || len(p.Deleted) != 1 {
		t.Fatalf("status %d, %+v", w.Code, p)
	}
}

// A choice that is given as "" goes to the use case as it is, which refuses it:
// only one that is absent, or null, means the default.
func TestEmptyChoicesAreGiven(t *testing.T) {
	r := newRig(t)
	var mode, boot, preview *string
	r.forks.fork = func(id string, in fork.Request) (fork.Forked, error) {
		mode = in.Mode
		return fork.Forked{ParentID: id, Mode: "cold"}, nil
	}
	r.sandboxes.create = func(_ context.Context, _ core.Caller, in sandbox.CreateSandbox) (sandbox.Sandbox, error) {
		boot, preview = in.Boot, in.Preview
		return testSandbox(), nil
	}
	for value, given := range map[string]bool{`""`: true, `null`: false} {
		r.call(http.MethodPost, "/v1/sandboxes/"+testID+"/fork", "tenant", `{"mode":`+value+`}`)
		r.call(http.MethodPost, "/v1/sandboxes", "tenant", `{"template":"base","boot":`+value+`,"preview":`+value+`}`)
		for name, got := range map[string]*string{"mode": mode, "boot": boot, "preview": preview} {
			if (got != nil) != given || given && *got != "" {
				t.Errorf("%s: %s came as %v", name, value, got)
			}
		}
	}
}

// What is read of a body is what the public type documents.
func TestBodiesAsTheyAreRead(t *testing.T) {
	members := func(v any) (out []string) {
		for _, f := range reflect.VisibleFields(reflect.TypeOf(v)) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			out = append(out, name)
		}
		slices.Sort(out)
		return out
	}
	for _, c := range [][2]any{
		{forkBody{}, api.Fork{}}, {createSandboxBody{}, api.CreateSandbox{}}, {createPreviewToken{}, api.CreatePreviewToken{}},
	} {
		if read, public := members(c[0]), members(c[1]); !slices.Equal(read, public) {
			t.Errorf("%T has %v, %T has %v", c[0], read, c[1], public)
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
	snap := snapshot.Snapshot{
		ID: "snap-1", Status: "ready", SandboxID: testID, Template: "base", Name: "n", CreatedAt: time.Now(),
		MemoryBytes: 10, DiskBytes: 5, AgentID: "host-a", Stored: true, PauseMS: 3,
	}
	r.forks.createSnapshot = func(id string, in snapshot.CreateSnapshot) (snapshot.Snapshot, error) {
		if id != testID || in.Name != "n" || in.Idempotency.Key != "k" {
			t.Errorf("%s, %+v", id, in)
		}
		return snap, nil
	}
	w := r.call(http.MethodPost, "/v1/sandboxes/"+testID+"/snapshots", "tenant", `{"name":"n"}`, api.HeaderIdempotencyKey, "k")
	if s := read[api.Snapshot](t, w.Body.String()); w.Code != http.StatusCreated || s.SizeBytes != 15 || s.Status != api.SnapshotReady || !s.Stored || s.PauseMS != 3 {
		t.Fatalf("status %d, %+v", w.Code, s)
	}
	r.forks.getSnapshot = func(id string) (snapshot.Snapshot, error) { return snap, nil }
	if w := r.call(http.MethodGet, "/v1/snapshots/snap-1", "tenant", ""); w.Code != http.StatusOK {
		t.Fatalf("status %d", w.Code)
	}
	r.forks.deleteSnapshot = func(id string) error { return apierror.NotFound() }
	if w := r.call(http.MethodDelete, "/v1/snapshots/snap-2", "tenant", ""); w.Code != http.StatusNotFound {
		t.Fatalf("status %d", w.Code)
	}
	var asked string
	r.forks.listSnapshots = func(id string, o core.ListOptions) ([]snapshot.Snapshot, string, error) {
		asked = id
		return []snapshot.Snapshot{snap}, "more", nil
	}
	w = r.call(http.MethodGet, "/v1/snapshots?limit=1&sandbox_id="+testID, "tenant", "")
	// The next page is of the same sandbox.
	if link := w.Header().Get("Link"); asked != testID || !strings.Contains(link, "sandbox_id="+testID) || !strings.Contains(link, "cursor=more") {
		t.Fatalf("asked for %q, link %s", asked, link)
	}
	if w := r.call(http.MethodGet, "/v1/snapshots?sandbox_id=a&sandbox_id=b", "tenant", ""); w.Code != http.StatusBadRequest {
		t.Fatalf("status %d", w.Code)
	}
}

func TestVolumeRoutes(t *testing.T) {
	r := newRig(t)
	v := volume.Volume{Name: "data", SizeMB: 7, UsedBytes: 3, AgentID: "host-a", AttachedTo: testID, CreatedAt: time.Now()}
	var got volume.CreateVolume
	r.volumes.create = func(in volume.CreateVolume) (volume.Volume, error) { got = in; return v, nil }
	w := r.call(http.MethodPost, "/v1/volumes", "tenant", `{"name":"data","size_mb":7}`, api.HeaderIdempotencyKey, "k")
	if out := read[api.Volume](t, w.Body.String()); w.Code != http.StatusCreated || *got.SizeMB != 7 || got.Idempotency.Key != "k" || *out.AttachedTo != testID {
		t.Fatalf("status %d, %+v, %+v", w.Code, got, out)
	}
	r.volumes.create = func(volume.CreateVolume) (volume.Volume, error) {
		return volume.Volume{}, &apierror.Error{Code: apierror.ERateLimited, Message: "volume quota exceeded", Fields: map[string]any{"volume_mb_used": 5, "volume_mb_max": 6}}
	}
	w = r.call(http.MethodPost, "/v1/volumes", "tenant", `{"name":"data"}`)
	if w.Code != http.StatusTooManyRequests || !strings.Contains(w.Body.String(), `"volume_mb_max":6`) {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	r.volumes.get = func(name string) (volume.Volume, error) { v.AttachedTo = ""; return v, nil }
	if w := r.call(http.MethodGet, "/v1/volumes/data", "tenant", ""); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"attached_to":null`) {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	r.volumes.list = func(core.ListOptions) ([]volume.Volume, string, error) { return nil, "", nil }
	if w := r.call(http.MethodGet, "/v1/volumes", "tenant", ""); strings.TrimSpace(w.Body.String()) != "[]" {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	r.volumes.delete = func(string) error { return nil }
	if w := r.call(http.MethodDelete, "/v1/volumes/data", "tenant", ""); w.Code != http.StatusNoContent {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	// There is no way to change one.
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
