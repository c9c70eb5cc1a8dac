package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

func (c *tenant) volume(t *testing.T, name string, sizeMB int) *api.Volume {
	t.Helper()
	v, err := c.CreateVolume(t.Context(), api.CreateVolume{Name: name, SizeMB: &sizeMB}, "")
	if err != nil {
		t.Fatalf("volume %s: %v", name, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := c.DeleteVolume(ctx, name); err != nil && api.StatusOf(err) != 404 {
			t.Errorf("delete volume: %v", err)
		}
	})
	return v
}

func at(name, path string) []api.VolumeMount {
	return []api.VolumeMount{{Name: name, MountPath: path}}
}

// isFree waits until a volume is attached to no sandbox.
func (c *tenant) isFree(t *testing.T, name string) {
	t.Helper()
	eventually(t, 20*time.Second, "the volume is free", func(ctx context.Context) error {
		v, err := c.GetVolume(ctx, name)
		if err == nil && v.AttachedTo != nil {
			err = errors.New("it is attached")
		}
		return err
	})
}

func TestVolumeOutlivesItsSandboxes(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	v := c.volume(t, "data", 256)
	if v.Name != "data" || v.SizeMB != 256 || v.AgentID == "" || v.AttachedTo != nil {
		t.Errorf("it is %+v", v)
	}
	first := c.make(t, api.CreateSandbox{Volumes: at("data", "/mnt/data")})
	if first.AgentID != v.AgentID || len(first.Volumes) != 1 || first.Volumes[0] != at("data", "/mnt/data")[0] {
		t.Errorf("the sandbox is on %s with %v, the volume on %s", first.AgentID, first.Volumes, v.AgentID)
	}
	if v, err := c.GetVolume(t.Context(), "data"); err != nil || v.AttachedTo == nil || *v.AttachedTo != first.ID {
		t.Errorf("it is %+v, %v", v, err)
	}
	if got := c.run(t, first.ID, "stat -fc %T /mnt/data; df -m --output=size /mnt/data | tail -1"); !strings.HasPrefix(got, "ext2/ext3\n") {
		t.Errorf("it is mounted as %q", got)
	}

	// At most one sandbox at a time, and not deleted under it.
	_, err := c.CreateSandbox(t.Context(), api.CreateSandbox{Template: stack.BaseTemplate, Volumes: at("data", "/d")}, "")
	refusal(t, err, 409, "volume in use")
	refusal(t, c.DeleteVolume(t.Context(), "data"), 409, "volume in use")
	// Memory is not captured with a disk that others will have changed.
	_, err = c.ForkTree(t.Context(), first.ID, api.ForkTree{}, "")
	refusal(t, err, 409, "volumes are attached")
	_, err = c.Fork(t.Context(), first.ID, api.Fork{Mode: new(api.ForkWarm)}, "")
	refusal(t, err, 409, "volumes are attached")
	_, err = c.CreateSnapshot(t.Context(), first.ID, api.CreateSnapshot{}, "")
	refusal(t, err, 409, "volumes are attached")
	cold := c.fork(t, first.ID, api.Fork{}).Children[0]
	if got := c.run(t, cold.ID, "mountpoint -q /mnt/data || echo none"); got != "none" || len(cold.Volumes) != 0 {
		t.Errorf("the child has %v, %q", cold.Volumes, got)
	}

	// It stays through a hibernation, and with it an open file.
	c.exec(t, first.ID, "echo one > /mnt/data/f; sync; setsid sh -c 'exec 3>>/mnt/data/f; echo $$ > /holder; sleep 10000' </dev/null >/dev/null 2>&1 &")
	moved(t, api.SandboxHibernated)(c.HibernateSandbox(t.Context(), first.ID))
	refusal(t, c.DeleteVolume(t.Context(), "data"), 409, "volume in use")
	if got := c.run(t, first.ID, "cat /mnt/data/f; ls -l /proc/$(cat /holder)/fd/3 | grep -c /mnt/data/f"); got != "one\n1" {
		t.Errorf("after the hibernation: %q", got)
	}

	// What was synced is there when the VM is killed; the file system is whole.
	if got := c.run(t, first.ID, `python3 -c 'import os
f = os.open("/mnt/data/synced", os.O_CREAT | os.O_WRONLY); os.write(f, b"x" * 3000000); os.fsync(f)
d = os.open("/mnt/data", os.O_RDONLY); os.fsync(d); print("synced")'`); got != "synced" {
		t.Fatal(got)
	}
	if err := unix.Kill(boxOf(t, first).VMMPID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.becomes(t, first.ID, api.SandboxFailed, 10*time.Second)
	if err := c.DeleteSandbox(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	c.isFree(t, "data")
	second := c.make(t, api.CreateSandbox{Volumes: at("data", "/srv/deep/er")})
	if got := c.run(t, second.ID, "cd /srv/deep/er && cat f && tr -d x < synced | wc -c && stat -c %s synced"); got != "one\n0\n3000000" {
		t.Errorf("the next sandbox finds %q", got)
	}
	if v, err := c.GetVolume(t.Context(), "data"); err != nil || v.UsedBytes < 3000000 || v.SizeMB != 256 {
		t.Errorf("it is %+v, %v", v, err)
	}
	if err := c.DeleteSandbox(t.Context(), second.ID); err != nil {
		t.Fatal(err)
	}
	if err := c.DeleteVolume(t.Context(), "data"); err != nil {
		t.Error(err)
	}
	_, err = c.GetVolume(t.Context(), "data")
	refusal(t, err, 404, "not found")
}

func TestVolumeRefusals(t *testing.T) {
	c := newTenant(t)
	c.volume(t, "mine", 64)
	for body, want := range map[string]struct {
		status int
		text   string
	}{
		`{}`:                                 {400, "name is required"},
		`{"name":".."}`:                      {400, "invalid name"},
		`{"name":"a\u0007b"}`:                {400, "invalid name"},
		`{"name":"x","size_mb":15}`:          {400, "size_mb must be from 16 to 65536"},
		`{"name":"x","size_mb":65537}`:       {400, "size_mb must be from 16 to 65536"},
		`{"name":"x","size_mb":"1"}`:         {400, "invalid json"},
		`{"name":"mine"}`:                    {409, "volume already exists"},
		`{"name":"mine","size_mb":128}`:      {409, "volume already exists"}, // nor resized
		`{"name":"too-much","size_mb":4040}`: {429, "volume quota exceeded"},
	} {
		got := request{method: "POST", path: "/v1/volumes", token: c.token, body: body}.send(t)
		if got.status != want.status || got.errorText() != want.text {
			t.Errorf("%s: %d %s, want %d %q", body, got.status, got.body, want.status, want.text)
		}
		if want.status == 429 && (!strings.Contains(got.body, `"volume_mb_used":64`) || !strings.Contains(got.body, `"volume_mb_max":4096`)) {
			t.Errorf("%s: %s", body, got.body)
		}
	}
	for name, tc := range map[string]struct {
		mounts []api.VolumeMount
		status int
		text   string
	}{
		"no such volume":     {at("none", "/d"), 404, "not found"},
		"a relative path":    {at("mine", "d"), 400, "invalid volumes"},
		"the root":           {at("mine", "/"), 400, "invalid volumes"},
		"the system":         {at("mine", "/etc"), 400, "invalid volumes"},
		"a way up":           {at("mine", "/srv/../etc"), 400, "invalid volumes"},
		"twice":              {append(at("mine", "/a"), at("mine", "/b")...), 400, "invalid volumes"},
		"two in one place":   {append(at("mine", "/a"), at("none", "/a")...), 400, "invalid volumes"},
		"inside another one": {append(at("mine", "/a"), at("none", "/a/b")...), 400, "invalid volumes"},
	} {
		s, err := c.CreateSandbox(t.Context(), api.CreateSandbox{Template: stack.BaseTemplate, Volumes: tc.mounts}, "")
		if err == nil {
			c.deleteAtEnd(t, s.ID)
		}
		t.Run(name, func(t *testing.T) { refusal(t, err, tc.status, tc.text) })
	}
	stranger := newTenant(t, "stranger")
	_, err := stranger.GetVolume(t.Context(), "mine")
	refusal(t, err, 404, "not found")
	_, err = stranger.CreateSandbox(t.Context(), api.CreateSandbox{Template: stack.BaseTemplate, Volumes: at("mine", "/d")}, "")
	refusal(t, err, 404, "not found")
	stranger.volume(t, "mine", 16) // names are each workspace's own

	// Volumes of two hosts cannot meet.
	far := map[string]string{}
	for _, host := range theStack.HostProc {
		t.Run(host.ID, func(sub *testing.T) {
			onlyOn(sub, host.ID)
			far[c.volume(t, "on-"+host.ID, 16).AgentID] = "on-" + host.ID
		})
	}
	if len(far) == 2 {
		_, err := c.CreateSandbox(t.Context(), api.CreateSandbox{Template: stack.BaseTemplate, Volumes: append(at("on-e1", "/a"), at("on-e2", "/b")...)}, "")
		refusal(t, err, 400, "volumes are on different hosts")
	} else {
		t.Errorf("the volumes are on %v", far)
	}
}

func TestVolumeNeedsHeadroom(t *testing.T) {
	c := newTenant(t)
	for _, host := range theStack.HostProc {
		// A thousand MB less than there are: other tests write meanwhile, or
		// none, and this is neither refused at the start nor room enough.
		var disk unix.Statfs_t
		if err := unix.Statfs(theStack.DataDir(host.ID), &disk); err != nil {
			t.Fatal(err)
		}
		free := int(disk.Bavail*uint64(disk.Bsize)>>20) - 1000
		withEnv(t, host, "BERTH_DISK_HEADROOM_MB="+strconv.Itoa(free))
	}
	healthy(t)
	_, err := c.CreateVolume(t.Context(), api.CreateVolume{Name: "data", SizeMB: new(volumeQuotaMB)}, "")
	refusal(t, err, 507, "insufficient host storage for volume")
	left, _, err := c.ListVolumes(t.Context(), api.Page{})
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// keeps wants what a sandbox has written to a volume without a sync, before the volume
// leaves it, to be there for the next sandbox.
func (c *tenant) keeps(t *testing.T, volume string, in api.CreateSandbox, leave func(t *testing.T, s *api.Sandbox), want string) {
	t.Helper()
	volume = strings.NewReplacer(" ", "-", ",", "").Replace(volume)
	c.volume(t, volume, 64)
	in.Volumes = at(volume, "/data")
	first := c.make(t, in)
	c.exec(t, first.ID, "echo keep > /data/f")
	leave(t, first)
	c.isFree(t, volume)
	next := c.make(t, api.CreateSandbox{Volumes: at(volume, "/data")})
	if got := c.run(t, next.ID, "cat /data/f"); got != want {
		t.Errorf("the next sandbox finds %q, want %q", got, want)
	}
	c.remove(t, next)
}

func (c *tenant) remove(t *testing.T, s *api.Sandbox) {
	t.Helper()
	if err := c.DeleteSandbox(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
}

// Whatever way a volume leaves a sandbox, what a command wrote before it ended with
// code 0 is there for the next sandbox, although nothing in the guest was synced.
func TestVolumeKeepsWhatWasWrittenWithoutSync(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	// From now on: within half a minute a guest writes by itself what it has in memory.
	expire := func(t *testing.T, s *api.Sandbox) {
		t.Helper()
		if _, err := c.PatchLifecycle(t.Context(), s.ID, api.PatchLifecycle{TTLSeconds: api.SetTo(int64(1))}); err != nil {
			t.Fatal(err)
		}
	}
	for name, way := range map[string]struct {
		in    api.CreateSandbox
		leave func(t *testing.T, s *api.Sandbox)
		want  string // other than keep
	}{
		"running": {leave: c.remove},
		"paused": {want: "keep\nthis", leave: func(t *testing.T, s *api.Sandbox) {
			moved(t, api.SandboxPaused)(c.PauseSandbox(t.Context(), s.ID))
			moved(t, api.SandboxRunning)(c.ResumeSandbox(t.Context(), s.ID))
			c.exec(t, s.ID, "echo this >> /data/f") // its processes run again
			moved(t, api.SandboxPaused)(c.PauseSandbox(t.Context(), s.ID))
			c.remove(t, s)
		}},
		"hibernated": {leave: func(t *testing.T, s *api.Sandbox) {
			moved(t, api.SandboxHibernated)(c.HibernateSandbox(t.Context(), s.ID))
			c.remove(t, s)
		}},
		"time to live": {leave: func(t *testing.T, s *api.Sandbox) {
			expire(t, s)
			c.gone(t, s.ID, time.Minute)
		}},
		"time to live, persistent": {in: api.CreateSandbox{Persistent: true}, leave: func(t *testing.T, s *api.Sandbox) {
			expire(t, s)
			c.becomes(t, s.ID, api.SandboxHibernated, time.Minute)
			c.remove(t, s)
		}},
		"forked": {want: "keep\nthis", leave: func(t *testing.T, s *api.Sandbox) {
			c.fork(t, s.ID, api.Fork{})
			c.exec(t, s.ID, "echo this >> /data/f") // what was written before, the fork has flushed
			c.remove(t, s)
		}},
		// No volume leaves by a snapshot: its memory would not fit the disk later.
		"snapshot refused": {leave: func(t *testing.T, s *api.Sandbox) {
			_, err := c.CreateSnapshot(t.Context(), s.ID, api.CreateSnapshot{}, "")
			refusal(t, err, 409, "volumes are attached")
			c.remove(t, s)
		}},
	} {
		t.Run(name, func(t *testing.T) { c.keeps(t, name, way.in, way.leave, cmp.Or(way.want, "keep")) })
	}
	// Who has spent the free credit is evicted: all that runs is hibernated.
	t.Run("workspace paused", func(t *testing.T) {
		c, operator := newTenant(t), admin(t)
		id := c.workspaceID(t)
		credit := func(q api.Quotas) {
			if _, err := operator.PatchWorkspace(t.Context(), id, api.PatchWorkspace{Quotas: &q}); err != nil {
				t.Fatal(err)
			}
		}
		c.keeps(t, "evicted", api.CreateSandbox{}, func(t *testing.T, s *api.Sandbox) {
			credit(api.Quotas{CreditCents: new(0)})
			c.becomes(t, s.ID, api.SandboxHibernated, time.Minute)
			c.remove(t, s)
			credit(api.Quotas{})
			eventually(t, time.Minute, "the workspace goes on", func(ctx context.Context) error {
				all, _, err := operator.ListWorkspaces(ctx, api.Page{Limit: 1000})
				if err == nil && slices.ContainsFunc(all, func(w api.Workspace) bool { return w.ID == id && w.PausedAt != nil }) {
					err = errors.New("it is paused")
				}
				return err
			})
		}, "keep")
	})
}

// Likewise where its host is taken out of service, or stops in an orderly way.
func TestVolumeKeepsWhatWasWrittenWithoutSyncOnAHostThat(t *testing.T) {
	c, operator := newTenant(t), admin(t)
	undrain := func(t *testing.T, host string) {
		t.Helper()
		if _, err := operator.UndrainAgent(t.Context(), host); err != nil {
			t.Fatal(err)
		}
	}
	stop := func(t *testing.T, s *api.Sandbox) *stack.Process {
		t.Helper()
		host := theStack.Process(s.AgentID)
		restartAtEnd(t, host)
		if err := host.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		return host
	}
	start := func(t *testing.T, host *stack.Process) {
		t.Helper()
		if err := host.Start(); err != nil {
			t.Fatal(err)
		}
		healthy(t)
	}
	for name, way := range map[string]struct {
		in    api.CreateSandbox
		leave func(t *testing.T, s *api.Sandbox)
	}{
		"is drained": {leave: func(t *testing.T, s *api.Sandbox) {
			if _, err := operator.DrainAgent(t.Context(), s.AgentID); err != nil {
				t.Fatal(err)
			}
			c.remove(t, s)
			undrain(t, s.AgentID)
		}},
		"is evacuated": {leave: func(t *testing.T, s *api.Sandbox) {
			if _, err := operator.EvacuateAgent(t.Context(), s.AgentID, api.EvacuateAgent{}); err != nil {
				t.Fatal(err)
			}
			eventually(t, time.Minute, "it is said to stay", func(ctx context.Context) error {
				a, err := operator.GetAgent(ctx, s.AgentID)
				if err == nil && !slices.ContainsFunc(a.Evacuation.Stays, func(s api.AgentStay) bool { return s.Kind == "sandbox" }) {
					err = fmt.Errorf("evacuation: %+v", a.Evacuation)
				}
				return err
			})
			c.remove(t, s)
			undrain(t, s.AgentID)
		}},
		"stops and starts": {leave: func(t *testing.T, s *api.Sandbox) {
			start(t, stop(t, s))
			c.remove(t, s)
		}},
		"reboots": {leave: func(t *testing.T, s *api.Sandbox) {
			host := stop(t, s)
			losesItsMachine(t, host)
			start(t, host)
			c.becomes(t, s.ID, api.SandboxFailed, time.Minute)
			c.remove(t, s)
		}},
		"reboots, persistent": {in: api.CreateSandbox{Persistent: true}, leave: func(t *testing.T, s *api.Sandbox) {
			host := stop(t, s)
			losesItsMachine(t, host)
			start(t, host)
			c.becomes(t, s.ID, api.SandboxRunning, time.Minute)
			c.answers(t, s.ID)
			if got := c.run(t, s.ID, "cat /data/f"); got != "keep" {
				t.Errorf("it finds %q itself", got)
			}
			c.remove(t, s)
		}},
	} {
		t.Run(name, func(t *testing.T) { c.keeps(t, name, way.in, way.leave, "keep") })
	}
}
