package volume_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/volume"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

func n(i int) *int { return &i }

func mounts(pairs ...string) (out []api.VolumeMount) {
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, api.VolumeMount{Name: pairs[i], MountPath: pairs[i+1]})
	}
	return out
}

// What the specification says of sizes is an operator's to lower.
func TestSizesOfVolumesAreSettings(t *testing.T) {
	r := testplane.NewRig(t, 1)
	for _, c := range []struct {
		cfg       volume.Config
		most, def int
	}{
		{volume.Config{}, 65536, 256}, {volume.Config{MaxMB: 1024, DefaultMB: 64}, 1024, 64}, {volume.Config{MaxMB: 128}, 128, 128},
	} {
		v := volume.New(r.Node.Core, c.cfg)
		name := fmt.Sprint("v", c.most)
		_, err := v.Create(t.Context(), testplane.Caller, api.CreateVolume{Name: name, SizeMB: n(c.most + 1)}, core.Idempotency{})
		testplane.Want(t, err, apierror.EInvalid, fmt.Sprintf("size_mb must be from 16 to %d", c.most))
		if made, err := v.Create(t.Context(), testplane.Caller, api.CreateVolume{Name: name}, core.Idempotency{}); err != nil || made.SizeMB != c.def {
			t.Errorf("%+v: %+v, %v", c.cfg, made, err)
		}
	}
}

func TestVolumes(t *testing.T) {
	r := testplane.NewRig(t, 1)
	v := volume.New(r.Node.Core, volume.Config{QuotaMB: 1000})
	make1 := func(c core.Caller, name string, size *int) (api.Volume, error) {
		return v.Create(t.Context(), c, api.CreateVolume{Name: name, SizeMB: size}, core.Idempotency{})
	}
	for name, c := range map[string]struct {
		size    *int
		message string
	}{
		"":                       {nil, "name is required"},
		".":                      {nil, "invalid name"},
		"..":                     {nil, "invalid name"},
		"a\nb":                   {nil, "invalid name"},
		"a\xffb":                 {nil, "invalid name"},
		strings.Repeat("ü", 129): {nil, "invalid name"},
		"tiny":                   {n(15), "size_mb must be from 16 to 65536"},
		"zero":                   {n(0), "size_mb must be from 16 to 65536"},
		"negative":               {n(-1), "size_mb must be from 16 to 65536"},
		"large":                  {n(65537), "size_mb must be from 16 to 65536"},
	} {
		_, err := make1(testplane.Caller, name, c.size)
		testplane.Want(t, err, apierror.EInvalid, c.message)
	}
	data, err := make1(testplane.Caller, "data", nil)
	if err != nil || data.SizeMB != 256 || data.AgentID != "h1" || core.OrZero(data.AttachedTo) != "" || data.CreatedAt.IsZero() {
		t.Fatalf("%+v, %v", data, err)
	}
	for _, size := range []*int{nil, n(512)} { // nor is it resized
		_, err = make1(testplane.Caller, "data", size)
		if e := testplane.Want(t, err, apierror.EConflict, "volume already exists"); !strings.Contains(e.Detail, "choose another name") {
			t.Errorf("detail %q", e.Detail)
		}
	}
	if _, err := make1(testplane.Stranger, "data", n(16)); err != nil { // names are the workspace's own
		t.Fatal(err)
	}
	_, err = make1(testplane.Caller, "more", n(745))
	if e := testplane.Want(t, err, apierror.ERateLimited, "volume quota exceeded"); e.Fields["volume_mb_used"] != 256 || e.Fields["volume_mb_max"] != 1000 {
		t.Errorf("%v", e.Fields)
	}
	repeat, key := api.CreateVolume{Name: "more", SizeMB: n(744)}, testplane.Key("k", "body")
	for range 2 {
		if more, err := v.Create(t.Context(), testplane.Caller, repeat, key); err != nil || more.SizeMB != 744 {
			t.Fatalf("%+v, %v", more, err)
		}
	}
	for id := range r.H1.Volumes() {
		r.H1.UseVolume(id, 12345)
	}
	testcluster.Await(t, "the heartbeat", func() bool {
		got, err := v.Get(t.Context(), testplane.Caller, "data")
		return err == nil && got.UsedBytes == 12345
	})
	page, next, err := v.List(t.Context(), testplane.Caller, core.ListOptions{Limit: 1})
	if err != nil || len(page) != 1 || page[0].Name != "more" || next == "" {
		t.Fatalf("%+v, %q, %v", page, next, err)
	}
	_, err = v.Get(t.Context(), testplane.Stranger, "more")
	testplane.Want(t, err, apierror.ENotFound, "not found")
	testplane.Want(t, v.Delete(t.Context(), testplane.Stranger, "more"), apierror.ENotFound, "not found")
	if err := v.Delete(t.Context(), testplane.Caller, "more"); err != nil {
		t.Fatal(err)
	}
	testplane.Want(t, v.Delete(t.Context(), testplane.Caller, "more"), apierror.ENotFound, "not found")
	r.Settled(r.H1)
}

// A volume that is being deleted is not shown, but its name is taken.
func TestTheNameOfAVolumeThatIsBeingDeleted(t *testing.T) {
	r := testplane.NewRig(t, 1)
	v := volume.New(r.Node.Core, volume.Config{QuotaMB: 500})
	create := func() error {
		_, err := v.Create(t.Context(), testplane.Caller, api.CreateVolume{Name: "data"}, core.Idempotency{})
		return err
	}
	if err := create(); err != nil {
		t.Fatal(err)
	}
	r.H1.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "unvolume" {
			return fakehost.ErrDrop
		}
		return nil
	})
	r.Node.Core.DeleteWait = 300 * time.Millisecond
	if err := v.Delete(t.Context(), testplane.Caller, "data"); !errors.Is(err, core.ErrRemoving) {
		t.Fatal(err)
	}
	_, err := v.Get(t.Context(), testplane.Caller, "data")
	testplane.Want(t, err, apierror.ENotFound, "not found")
	if e := testplane.Want(t, create(), apierror.EConflict, "volume already exists"); !strings.Contains(e.Detail, "is being deleted") {
		t.Errorf("detail %q", e.Detail)
	}
	// It counts no more.
	if _, err := v.Create(t.Context(), testplane.Caller, api.CreateVolume{Name: "other", SizeMB: n(256)}, core.Idempotency{}); err != nil {
		t.Errorf("another volume: %v", err)
	}
	r.H1.SetFault(nil)
	if err := v.Delete(t.Context(), testplane.Caller, "other"); err != nil {
		t.Fatal(err)
	}
	testcluster.Await(t, "the name", func() bool { return create() == nil })
}

func TestAVolumesHostHasNoRoom(t *testing.T) {
	r := testplane.NewRig(t, 1)
	v := volume.New(r.Node.Core, volume.Config{})
	r.H1.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "volume" && !c.Done {
			return &hostapi.Error{Code: hostapi.CodeNoDisk, Message: "no headroom"}
		}
		return nil
	})
	_, err := v.Create(t.Context(), testplane.Caller, api.CreateVolume{Name: "data"}, core.Idempotency{})
	testplane.Want(t, err, apierror.EInsufficient, "insufficient host storage for volume")
	r.H1.SetFault(nil)
	if _, err := v.Create(t.Context(), testplane.Caller, api.CreateVolume{Name: "data"}, core.Idempotency{}); err != nil { // the name is free
		t.Fatal(err)
	}
}

// Only the guest knows its files: what it says of a path is the answer, once, and no
// host's fault.
func TestAMountPathThatTheGuestRefuses(t *testing.T) {
	r := testplane.NewRig(t, 1)
	v := volume.New(r.Node.Core, volume.Config{})
	if _, err := v.Create(t.Context(), testplane.Caller, api.CreateVolume{Name: "data"}, core.Idempotency{}); err != nil {
		t.Fatal(err)
	}
	var refused atomic.Int32
	r.H1.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "put" && !c.Done {
			refused.Add(1)
			return &hostapi.Error{
				Code: hostapi.CodeInvalidMount, Message: "invalid request", Detail: "create sandbox: invalid request: mount_path /etc/passwd: not a directory",
			}
		}
		return nil
	})
	_, err := r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "base", Volumes: mounts("data", "/etc/passwd")}, core.Idempotency{})
	if e := testplane.Want(t, err, apierror.EInvalid, "invalid volumes"); e.Detail != "mount_path /etc/passwd: not a directory" || refused.Load() != 1 {
		t.Errorf("detail %q, asked %d times", e.Detail, refused.Load())
	}
	r.H1.SetFault(nil)
	if rows := r.Settled(r.H1); len(rows) != 0 {
		t.Errorf("%d rows are left", len(rows))
	}
	if got, err := v.Get(t.Context(), testplane.Caller, "data"); err != nil || core.OrZero(got.AttachedTo) != "" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestAttach(t *testing.T) {
	r := testplane.NewRig(t, 1)
	v := volume.New(r.Node.Core, volume.Config{})
	f := r.Node.Forks
	for _, name := range []string{"data", "logs"} {
		if _, err := v.Create(t.Context(), testplane.Caller, api.CreateVolume{Name: name}, core.Idempotency{}); err != nil {
			t.Fatal(err)
		}
	}
	create := func(m []api.VolumeMount) (api.Sandbox, error) {
		return r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "base", Volumes: m}, core.Idempotency{})
	}
	for name, m := range map[string][]api.VolumeMount{
		"relative":              mounts("data", "mnt"),
		"empty":                 mounts("data", ""),
		"root":                  mounts("data", "/"),
		"proc":                  mounts("data", "/proc"),
		"below sys":             mounts("data", "/sys/x"),
		"dev":                   mounts("data", "/dev"),
		"below run":             mounts("data", "/run/berth"),
		"etc":                   mounts("data", "/etc"),
		"programs":              mounts("data", "/usr/bin"),
		"the agent's own":       mounts("data", "/etc/berth/lsp"),
		"dots":                  mounts("data", "/mnt/../etc"),
		"a slash at the end":    mounts("data", "/mnt/"),
		"two slashes":           mounts("data", "//mnt"),
		"a NUL":                 mounts("data", "/mnt\x00"),
		"too long":              mounts("data", "/"+strings.Repeat("a", 5000)),
		"no name":               mounts("", "/mnt"),
		"no such name":          mounts("a\nb", "/mnt"),
		"a name twice":          mounts("data", "/a", "data", "/b"),
		"a path twice":          mounts("data", "/a", "logs", "/a"),
		"a path inside another": mounts("data", "/a", "logs", "/a/b"),
	} {
		_, err := create(m)
		if e := testplane.Want(t, err, apierror.EInvalid, "invalid volumes"); e.Detail == "" {
			t.Errorf("%s: no detail", name)
		}
	}
	_, err := create(mounts("nope", "/mnt"))
	if e := testplane.Want(t, err, apierror.ENotFound, "not found"); e.Detail != "no such volume: nope" {
		t.Errorf("detail %q", e.Detail)
	}
	_, err = r.Create(t.Context(), testplane.Stranger, api.CreateSandbox{Template: "base", Volumes: mounts("data", "/mnt")}, core.Idempotency{})
	testplane.Want(t, err, apierror.ENotFound, "not found")

	sb, err := create(mounts("data", "/var/lib/data", "logs", "/logs"))
	if err != nil || len(sb.Volumes) != 2 {
		t.Fatalf("%+v, %v", sb, err)
	}
	if spec := r.H1.Spec(sb.ID); len(spec.Volumes) != 2 || spec.Volumes[0].MountPath != "/var/lib/data" || spec.Volumes[1].MountPath != "/logs" {
		t.Fatalf("%+v", spec.Volumes)
	}
	if got, _ := v.Get(t.Context(), testplane.Caller, "data"); core.OrZero(got.AttachedTo) != sb.ID {
		t.Fatalf("%+v", got)
	}
	_, err = create(mounts("logs", "/mnt"))
	testplane.Want(t, err, apierror.EConflict, "volume in use")
	testplane.Want(t, v.Delete(t.Context(), testplane.Caller, "data"), apierror.EConflict, "volume in use")
	// Memory cannot be captured with volumes attached; a disk can, without them.
	_, err = f.ForkTree(t.Context(), testplane.Caller, sb.ID, api.ForkTree{}, core.Idempotency{})
	testplane.Want(t, err, apierror.EConflict, "volumes are attached")
	_, err = f.Fork(t.Context(), testplane.Caller, sb.ID, api.Fork{Mode: new(api.ForkMode("warm"))}, core.Idempotency{})
	testplane.Want(t, err, apierror.EConflict, "volumes are attached")
	_, err = r.Node.Snapshots.Create(t.Context(), testplane.Caller, sb.ID, api.CreateSnapshot{}, core.Idempotency{})
	testplane.Want(t, err, apierror.EConflict, "volumes are attached")
	cold, err := f.Fork(t.Context(), testplane.Caller, sb.ID, api.Fork{}, core.Idempotency{})
	if err != nil || len(cold.Children[0].Volumes) != 0 {
		t.Fatalf("%+v, %v", cold, err)
	}

	if err := r.Delete(t.Context(), testplane.Caller, sb.ID); err != nil {
		t.Fatal(err)
	}
	again, err := create(mounts("data", "/mnt"))
	if err != nil || again.Volumes[0].MountPath != "/mnt" {
		t.Fatalf("%+v, %v", again, err)
	}
	// A failed create detaches its volumes.
	r.H1.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "put" && !c.Done {
			return &hostapi.Error{Code: hostapi.CodeInternal, Message: "oops"}
		}
		return nil
	})
	_, err = create(mounts("logs", "/mnt"))
	testplane.Want(t, err, apierror.EInternal, "sandbox failed to start")
	if got, _ := v.Get(t.Context(), testplane.Caller, "logs"); core.OrZero(got.AttachedTo) != "" {
		t.Fatalf("%+v", got)
	}
	r.H1.SetFault(nil)
	r.Settled(r.H1)
}

// A sandbox is placed where its volumes are.
func TestVolumesChooseTheHost(t *testing.T) {
	tier.Slow(t)
	r := testplane.NewRig(t, 1)
	v := volume.New(r.Node.Core, volume.Config{})
	h2 := r.Host("h2", 2048) // less room than h1
	for name, hostID := range map[string]string{"here": "h1", "there": "h2"} {
		if _, err := v.Create(t.Context(), testplane.Caller, api.CreateVolume{Name: name}, core.Idempotency{}); err != nil {
			t.Fatal(err)
		}
		r.Update(func(tx *raftstore.Tx) error {
			row := raftstore.Find(tx, record.Volumes, "name", "ws/"+name)[0].Clone()
			row.HostID = hostID
			raftstore.Put(tx, record.Volumes, row)
			h2.AddVolume(row.ID)
			r.H1.AddVolume(row.ID)
			return nil
		})
	}
	sb := r.Must(t, api.CreateSandbox{Volumes: mounts("there", "/mnt")})
	if sb.AgentID != "h2" {
		t.Fatalf("it is on %s", sb.AgentID)
	}
	_, err := r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "base", Volumes: mounts("here", "/a", "there", "/b")}, core.Idempotency{})
	testplane.Want(t, err, apierror.EInvalid, "volumes are on different hosts")
	if err := r.Delete(t.Context(), testplane.Caller, sb.ID); err != nil {
		t.Fatal(err)
	}
	h2.Silence(true)
	testcluster.Await(t, "the host's end", func() bool {
		a, _ := raftstore.Get(r.Leader().Store.View(), record.Hosts, "h2")
		return a.State == record.HostLost
	})
	_, err = r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "base", Volumes: mounts("there", "/mnt")}, core.Idempotency{})
	if e := testplane.Want(t, err, apierror.EBadGateway, "no available compute node"); !strings.Contains(e.Detail, "not available") {
		t.Errorf("detail %q", e.Detail)
	}
	if got, _ := v.Get(t.Context(), testplane.Caller, "there"); core.OrZero(got.AttachedTo) != "" {
		t.Fatal("it stays attached to nothing")
	}
}

// A host that has the only copy of something is not removed.
func TestAHostWithVolumesIsKept(t *testing.T) {
	r := testplane.NewRig(t, 1)
	v := volume.New(r.Node.Core, volume.Config{})
	if _, err := v.Create(t.Context(), testplane.Caller, api.CreateVolume{Name: "data"}, core.Idempotency{}); err != nil {
		t.Fatal(err)
	}
	replicas := r.Node.Replicas
	testplane.Want(t, replicas.RemoveAgent(t.Context(), "h1"), apierror.EConflict, "agent has volumes or snapshots")
	if err := v.Delete(t.Context(), testplane.Caller, "data"); err != nil {
		t.Fatal(err)
	}
	if err := replicas.RemoveAgent(t.Context(), "h1"); err != nil {
		t.Fatal(err)
	}
}
