package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/httpapi"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/controlplane/volume"
	"github.com/berth-cloud/berth/guest/commands"
)

// The plane's features besides sandboxes: transitions, forks, volumes, and files,
// which are those in its directory.
type (
	planeMoves    struct{ *plane }
	planeForks    struct{ *plane }
	planeCommands struct {
		httpapi.Commands // what no script uses
		*plane
		guest *commands.Table
	}
	planeFiles struct {
		httpapi.Files
		dir string // the plane's
	}
	planeLogs      struct{ httpapi.Logs }
	planePorts     struct{ httpapi.Ports }
	planeInputs    struct{}
	planeTemplates struct{ httpapi.Templates } // not used by any script
	planeVolumes   struct {
		*plane
		all []api.Volume
	}
)

func (planeTemplates) Build(_ context.Context, _ core.Caller, in api.BuildTemplate, _ core.Idempotency) (api.Build, error) {
	return api.Build{ID: "bld-1", Template: in.Name, Status: "queued"}, nil
}

func (planeTemplates) GetBuild(context.Context, core.Caller, string) (api.Build, error) {
	return api.Build{ID: "bld-1", Template: "web", Status: "ready"}, nil
}

func (planeTemplates) FollowBuildLogs(context.Context, core.Caller, string) (core.Follower[string], error) {
	return &planeBuild{
		"==> build bld-1", "==> run: apt-get install -y a-package-with-a-long-name (78 %, 1.2s)", "it is installed", "==> store (96 %, 4s)", "==> ready: build b1",
	}, nil
}

// planeBuild is the log of a build.
type planeBuild []string

func (b *planeBuild) Next() (string, error) {
	if len(*b) == 0 {
		return "", io.EOF
	}
	line := (*b)[0]
	*b = (*b)[1:]
	return line, nil
}

func (*planeBuild) Close() error { return nil }

func (p planeMoves) to(id string, from, status api.SandboxStatus) (api.Sandbox, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.find(id)
	switch {
	case i < 0:
		return api.Sandbox{}, apierror.NotFound()
	case p.sandboxes[i].Status != from:
		return api.Sandbox{}, &apierror.Error{Code: apierror.EConflict, Message: "sandbox is " + string(p.sandboxes[i].Status), Detail: "resume it first"}
	}
	p.sandboxes[i].Status = status
	return p.sandboxes[i], nil
}

func (p planeMoves) Pause(_ context.Context, _ core.Caller, id string) (api.Sandbox, error) {
	return p.to(id, "running", "paused")
}

func (p planeMoves) Resume(_ context.Context, _ core.Caller, id string) (api.Sandbox, error) {
	return p.to(id, "paused", "running")
}

func (p planeMoves) Hibernate(_ context.Context, _ core.Caller, id string) (api.Sandbox, error) {
	return p.to(id, "running", "hibernated")
}

func (p planeMoves) Wake(_ context.Context, _ core.Caller, id string) (api.Sandbox, error) {
	return p.to(id, "hibernated", "running")
}

func (p planeMoves) Lifecycle(ctx context.Context, c core.Caller, id string) (api.Lifecycle, error) {
	return p.PatchLifecycle(ctx, c, id, api.PatchLifecycle{})
}

func (p planeMoves) PatchLifecycle(_ context.Context, _ core.Caller, id string, in api.PatchLifecycle) (api.Lifecycle, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.find(id)
	if i < 0 {
		return api.Lifecycle{}, apierror.NotFound()
	}
	sb := &p.sandboxes[i]
	if in.TTLSeconds.Set {
		sb.TTLSeconds, sb.ExpiresAt = in.TTLSeconds.Value, nil
		if ttl := in.TTLSeconds.Value; ttl != nil {
			sb.ExpiresAt = api.NewTime(time.Now().Add(time.Duration(*ttl) * time.Second))
		}
	}
	if in.Persistent.Set {
		sb.Persistent = *in.Persistent.Value
	}
	return api.Lifecycle{Status: sb.Status, TTLSeconds: sb.TTLSeconds, ExpiresAt: sb.ExpiresAt, Persistent: sb.Persistent}, nil
}

var oneSnapshot = api.Snapshot{
	ID: "snap-1", Status: "ready", SandboxID: "k7m2qz4xw3v5n6a2j7p4t5r6sa", Template: "base", Name: "first",
	SizeBytes: 101 << 20, MemoryBytes: 100 << 20, DiskBytes: 1 << 20, AgentID: "host-a", Stored: true, PauseMS: 41,
}

func (p planeForks) Create(context.Context, core.Caller, string, api.CreateSnapshot, core.Idempotency) (api.Snapshot, error) {
	return oneSnapshot, nil
}

func (p planeForks) Get(_ context.Context, _ core.Caller, id string) (api.Snapshot, error) {
	switch id {
	case "snap-1":
		return oneSnapshot, nil
	case "snap-python":
		of := oneSnapshot
		of.ID, of.Template = id, "python"
		return of, nil
	}
	return api.Snapshot{}, apierror.NotFound()
}

func (p planeForks) List(context.Context, core.Caller, string, core.ListOptions) ([]api.Snapshot, string, error) {
	return []api.Snapshot{oneSnapshot}, "", nil
}

func (p planeForks) Delete(context.Context, core.Caller, string) error { return nil }

func (p planeForks) Fork(_ context.Context, _ core.Caller, id string, in api.Fork, _ core.Idempotency) (api.Forked, error) {
	out, err := p.children(id, in.Count, 1, func(int) map[string]any { return map[string]any{"forked_from": id} })
	if in.Mode != nil {
		out.Mode = *in.Mode
	}
	return out, err
}

func (p planeForks) ForkTree(_ context.Context, _ core.Caller, id string, in api.ForkTree, _ core.Idempotency) (api.ForkedTree, error) {
	out, err := p.children(id, in.Count, 2, func(i int) map[string]any {
		return map[string]any{"fork_tree_id": "tree-1", "fork_tree_role": "child", "fork_parent_id": id, "fork_index": i}
	})
	return api.ForkedTree{TreeID: "tree-1", ParentID: id, Children: out.Children, Failed: out.Failed, PauseMS: out.PauseMS}, err
}

// children makes those asked for; of more than three the last fails.
func (p planeForks) children(id string, asked *int, count int, keys func(int) map[string]any) (api.Forked, error) {
	out := api.Forked{ParentID: id, PauseMS: 41, Failed: []api.FailedFork{}}
	if asked != nil {
		count = *asked
	}
	for i := range count {
		if i == 3 {
			out.Failed = append(out.Failed, api.FailedFork{Index: i, Error: "no memory"})
			break
		}
		metadata, err := json.Marshal(keys(i))
		if err != nil {
			return out, err
		}
		child, err := p.add(api.CreateSandbox{Template: "base", Metadata: metadata}, fmt.Sprint(id, i))
		if err != nil {
			return out, err
		}
		p.mu.Lock()
		p.sandboxes[p.find(child.ID)].ForkedFrom = &id
		p.mu.Unlock()
		out.Children = append(out.Children, child)
	}
	return out, nil
}

func (p planeForks) Promote(ctx context.Context, c core.Caller, id string, in api.Promote) (api.Promoted, error) {
	sb, err := p.plane.Get(ctx, c, id)
	if err != nil || in.TreeID != "tree-1" {
		return api.Promoted{}, apierror.NotFound()
	}
	out := api.Promoted{Promoted: sb, Deleted: []string{}}
	if in.CleanupSiblings {
		out.Deleted = append(out.Deleted, "k7m2qz4xw3v5n6a2j7p4t5r6sz")
	}
	return out, nil
}

func (p *planeVolumes) Create(_ context.Context, _ core.Caller, in api.CreateVolume, _ core.Idempotency) (api.Volume, error) {
	v := api.Volume{Name: in.Name, SizeMB: volume.DefaultMB, AgentID: "host-a", CreatedAt: api.Time{Time: time.Now()}}
	if in.SizeMB != nil {
		v.SizeMB = *in.SizeMB
	}
	p.all = append(p.all, v)
	return v, nil
}

func (p *planeVolumes) Get(context.Context, core.Caller, string) (api.Volume, error) {
	return api.Volume{}, apierror.NotFound()
}

func (p *planeVolumes) List(context.Context, core.Caller, core.ListOptions) ([]api.Volume, string, error) {
	return p.all, "", nil
}

func (p *planeVolumes) Delete(_ context.Context, _ core.Caller, name string) error {
	if name == "busy" {
		return &apierror.Error{Code: apierror.EConflict, Message: "volume in use"}
	}
	return nil
}

func (planeInputs) AdmitInput(context.Context, core.Caller, int64) (func(), error) {
	return func() {}, nil
}

func (p planeFiles) at(path string) string { return filepath.Join(p.dir, "guest", path) }

func (p planeFiles) Read(_ context.Context, _ core.Caller, _, path string, _ http.Header) (*sandbox.File, error) {
	f, err := os.Open(p.at(path))
	if err != nil {
		return nil, &apierror.Error{Code: apierror.ENotFound, Message: "no such file or directory"}
	}
	st, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &sandbox.File{Status: 200, Header: http.Header{"Content-Length": {strconv.FormatInt(st.Size(), 10)}}, Body: f}, nil
}

func (p planeFiles) Write(_ context.Context, _ core.Caller, _, path, mode string, body io.Reader, _ int64) (bool, error) {
	if strings.HasPrefix(path, "/full/") {
		return false, &apierror.Error{Code: apierror.EInsufficient, Message: "no space left on device"}
	}
	if err := os.MkdirAll(filepath.Dir(p.at(path)), 0o755); err != nil {
		return false, err
	}
	perm, err := strconv.ParseUint(mode, 8, 32)
	if err != nil {
		perm = 0o644
	}
	raw, err := io.ReadAll(body)
	if err != nil {
		return false, err
	}
	return true, errors.Join(os.WriteFile(p.at(path), raw, os.FileMode(perm)), os.Chmod(p.at(path), os.FileMode(perm)))
}

func (p planeFiles) Stat(_ context.Context, _ core.Caller, _, path string) (api.FileStat, error) {
	st, err := os.Lstat(p.at(path))
	if err != nil {
		return api.FileStat{}, &apierror.Error{Code: apierror.ENotFound, Message: "no such file or directory"}
	}
	target, _ := os.Readlink(p.at(path)) // "" for what is no link
	kind := map[os.FileMode]api.FileType{os.ModeDir: api.FileDir, os.ModeSymlink: api.FileSymlink, 0: api.FileRegular}[st.Mode().Type()]
	return api.FileStat{
		Path: path, Name: filepath.Base(path), Type: kind, SizeBytes: st.Size(), Target: target,
		Mode: fmt.Sprintf("%04o", st.Mode().Perm()), ModifiedAt: api.Time{Time: st.ModTime()},
	}, nil
}

func (planeLogs) Text(context.Context, core.Caller, string, api.LogQuery) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("line one\nline two\n")), nil
}

func (planeLogs) Events(_ context.Context, _ core.Caller, id string, _ api.EventQuery) ([]api.Event, error) {
	return []api.Event{{
		TS: api.Time{Time: time.Date(2026, 11, 20, 13, 5, 9, 412e6, time.UTC)}, SandboxID: id, AgentID: "host-a", Type: "vm.died", Code: "error",
		Message: "VM died", Metadata: api.Object(`{"signal":"KILL"}`),
	}}, nil
}

func (planePorts) List(context.Context, core.Caller, string) ([]api.Port, error) {
	return []api.Port{{Port: 3000, Protocol: "tcp", Process: "node", URL: "http://3000-x.localhost", Label: "web"}}, nil
}
