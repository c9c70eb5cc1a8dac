package service_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/service"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

func mounts(pairs ...string) (out []service.VolumeMount) {
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, service.VolumeMount{Name: pairs[i], MountPath: pairs[i+1]})
	}
	return out
}

func TestVolumes(t *testing.T) {
	r := newRig(t)
	v := service.NewVolumes(r.Sandboxes, 1000)
	make1 := func(c service.Caller, name string, size *int) (service.Volume, error) {
		return v.CreateVolume(t.Context(), c, service.CreateVolume{Name: name, SizeMB: size})
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
		_, err := make1(caller, name, c.size)
		want(t, err, apierror.EInvalid, c.message)
	}
	data, err := make1(caller, "data", nil)
	if err != nil || data.SizeMB != 256 || data.AgentID != "h1" || data.AttachedTo != "" || data.CreatedAt.IsZero() {
		t.Fatalf("%+v, %v", data, err)
	}
	for _, size := range []*int{nil, n(512)} { // nor is it resized
		_, err = make1(caller, "data", size)
		want(t, err, apierror.EConflict, "volume already exists")
	}
	if _, err := make1(stranger, "data", n(16)); err != nil { // names are the workspace's own
		t.Fatal(err)
	}
	_, err = make1(caller, "more", n(745))
	if e := want(t, err, apierror.ERateLimited, "volume quota exceeded"); e.Fields["volume_mb_used"] != 256 || e.Fields["volume_mb_max"] != 1000 {
		t.Errorf("%v", e.Fields)
	}
	repeat := service.CreateVolume{Name: "more", SizeMB: n(744), Idempotency: key("k", "body")}
	for range 2 {
		if more, err := v.CreateVolume(t.Context(), caller, repeat); err != nil || more.SizeMB != 744 {
			t.Fatalf("%+v, %v", more, err)
		}
	}
	for id := range r.host.Volumes() {
		r.host.UseVolume(id, 12345)
	}
	testcluster.Await(t, 5*time.Second, "the heartbeat", func() bool {
		got, err := v.GetVolume(t.Context(), caller, "data")
		return err == nil && got.UsedBytes == 12345
	})
	page, next, err := v.ListVolumes(t.Context(), caller, service.ListOptions{Limit: 1})
	if err != nil || len(page) != 1 || page[0].Name != "more" || next == "" {
		t.Fatalf("%+v, %q, %v", page, next, err)
	}
	_, err = v.GetVolume(t.Context(), stranger, "more")
	want(t, err, apierror.ENotFound, "not found")
	want(t, v.DeleteVolume(t.Context(), stranger, "more"), apierror.ENotFound, "not found")
	if err := v.DeleteVolume(t.Context(), caller, "more"); err != nil {
		t.Fatal(err)
	}
	want(t, v.DeleteVolume(t.Context(), caller, "more"), apierror.ENotFound, "not found")
	r.Settled(r.host)
}

func TestAVolumesHostHasNoRoom(t *testing.T) {
	r := newRig(t)
	v := service.NewVolumes(r.Sandboxes, 0)
	r.host.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "volume" && !c.Done {
			return &hostapi.Error{Code: hostapi.CodeNoDisk, Message: "no headroom"}
		}
		return nil
	})
	_, err := v.CreateVolume(t.Context(), caller, service.CreateVolume{Name: "data"})
	want(t, err, apierror.EInsufficient, "insufficient host storage for volume")
	r.host.SetFault(nil)
	if _, err := v.CreateVolume(t.Context(), caller, service.CreateVolume{Name: "data"}); err != nil { // the name is free
		t.Fatal(err)
	}
}

func TestAttach(t *testing.T) {
	r := newRig(t)
	v := service.NewVolumes(r.Sandboxes, 0)
	f := r.forks()
	for _, name := range []string{"data", "logs"} {
		if _, err := v.CreateVolume(t.Context(), caller, service.CreateVolume{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	create := func(m []service.VolumeMount) (service.Sandbox, error) {
		return r.Create(t.Context(), caller, service.CreateSandbox{Template: "base", Volumes: m})
	}
	for name, m := range map[string][]service.VolumeMount{
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
		if e := want(t, err, apierror.EInvalid, "invalid volumes"); e.Detail == "" {
			t.Errorf("%s: no detail", name)
		}
	}
	_, err := create(mounts("nope", "/mnt"))
	if e := want(t, err, apierror.ENotFound, "not found"); e.Detail != "no such volume: nope" {
		t.Errorf("detail %q", e.Detail)
	}
	_, err = r.Create(t.Context(), stranger, service.CreateSandbox{Template: "base", Volumes: mounts("data", "/mnt")})
	want(t, err, apierror.ENotFound, "not found")

	sb, err := create(mounts("data", "/var/lib/data", "logs", "/logs"))
	if err != nil || len(sb.Volumes) != 2 {
		t.Fatalf("%+v, %v", sb, err)
	}
	if spec := r.host.Spec(sb.ID); len(spec.Volumes) != 2 || spec.Volumes[0].MountPath != "/var/lib/data" || spec.Volumes[1].MountPath != "/logs" {
		t.Fatalf("%+v", spec.Volumes)
	}
	if got, _ := v.GetVolume(t.Context(), caller, "data"); got.AttachedTo != sb.ID {
		t.Fatalf("%+v", got)
	}
	_, err = create(mounts("logs", "/mnt"))
	want(t, err, apierror.EConflict, "volume in use")
	want(t, v.DeleteVolume(t.Context(), caller, "data"), apierror.EConflict, "volume in use")
	// Memory does not go with volumes, a disk does, without them.
	_, err = f.ForkTree(t.Context(), caller, sb.ID, service.Fork{})
	want(t, err, apierror.EConflict, "volumes are attached")
	_, err = f.Fork(t.Context(), caller, sb.ID, service.Fork{Mode: new("warm")})
	want(t, err, apierror.EConflict, "volumes are attached")
	_, err = f.CreateSnapshot(t.Context(), caller, sb.ID, service.CreateSnapshot{})
	want(t, err, apierror.EConflict, "volumes are attached")
	cold, err := f.Fork(t.Context(), caller, sb.ID, service.Fork{})
	if err != nil || len(cold.Children[0].Volumes) != 0 {
		t.Fatalf("%+v, %v", cold, err)
	}

	if err := r.Delete(t.Context(), caller, sb.ID); err != nil {
		t.Fatal(err)
	}
	again, err := create(mounts("data", "/mnt"))
	if err != nil || again.Volumes[0].MountPath != "/mnt" {
		t.Fatalf("%+v, %v", again, err)
	}
	// A create that fails gives its volumes back.
	r.host.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "put" && !c.Done {
			return &hostapi.Error{Code: hostapi.CodeInternal, Message: "oops"}
		}
		return nil
	})
	_, err = create(mounts("logs", "/mnt"))
	want(t, err, apierror.EInternal, "sandbox failed to start")
	if got, _ := v.GetVolume(t.Context(), caller, "logs"); got.AttachedTo != "" {
		t.Fatalf("%+v", got)
	}
	r.host.SetFault(nil)
	r.Settled(r.host)
}

// Where the volumes are, the sandbox goes.
func TestVolumesChooseTheHost(t *testing.T) {
	r := newRig(t)
	v := service.NewVolumes(r.Sandboxes, 0)
	h2 := r.Host("h2", 2048) // less room than h1
	for name, agentID := range map[string]string{"here": "h1", "there": "h2"} {
		if _, err := v.CreateVolume(t.Context(), caller, service.CreateVolume{Name: name}); err != nil {
			t.Fatal(err)
		}
		r.Update(func(tx *raftstore.Tx) error {
			row := raftstore.Find(tx, record.Volumes, "name", "ws/"+name)[0].Clone()
			row.AgentID = agentID
			raftstore.Put(tx, record.Volumes, row)
			h2.AddVolume(row.ID)
			r.host.AddVolume(row.ID)
			return nil
		})
	}
	sb := r.must(t, service.CreateSandbox{Volumes: mounts("there", "/mnt")})
	if sb.AgentID != "h2" {
		t.Fatalf("it is on %s", sb.AgentID)
	}
	_, err := r.Create(t.Context(), caller, service.CreateSandbox{Template: "base", Volumes: mounts("here", "/a", "there", "/b")})
	want(t, err, apierror.EInvalid, "volumes are on different hosts")
	if err := r.Delete(t.Context(), caller, sb.ID); err != nil {
		t.Fatal(err)
	}
	h2.Silence(true)
	testcluster.Await(t, 10*time.Second, "the host's end", func() bool {
		a, _ := raftstore.Get(r.Leader().Store.View(), record.Agents, "h2")
		return a.State == record.AgentLost
	})
	_, err = r.Create(t.Context(), caller, service.CreateSandbox{Template: "base", Volumes: mounts("there", "/mnt")})
	if e := want(t, err, apierror.EBadGateway, "no available compute node"); !strings.Contains(e.Detail, "not available") {
		t.Errorf("detail %q", e.Detail)
	}
	if got, _ := v.GetVolume(t.Context(), caller, "there"); got.AttachedTo != "" {
		t.Fatal("it stays attached to nothing")
	}
}

// A host is not forgotten with what is on it alone.
func TestAHostWithVolumesIsKept(t *testing.T) {
	r := newRig(t)
	v := service.NewVolumes(r.Sandboxes, 0)
	if _, err := v.CreateVolume(t.Context(), caller, service.CreateVolume{Name: "data"}); err != nil {
		t.Fatal(err)
	}
	n := r.LeaderNode()
	cluster := service.NewCluster(service.ClusterConfig{Store: n.Store, Hosts: n.Hosts, Clock: time.Now})
	want(t, cluster.RemoveAgent(t.Context(), "h1"), apierror.EConflict, "agent has volumes or snapshots")
	if err := v.DeleteVolume(t.Context(), caller, "data"); err != nil {
		t.Fatal(err)
	}
	if err := cluster.RemoveAgent(t.Context(), "h1"); err != nil {
		t.Fatal(err)
	}
}
