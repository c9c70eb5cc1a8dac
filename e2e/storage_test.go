package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

// templateCopy is the stack's template store in links: files may be replaced in
// it, and never written to.
func templateCopy(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(stack.Cache(theStack.Root, "e2e"), "templates-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil { // VMMs read it
		t.Fatal(err)
	}
	from := stack.Cache(theStack.Root, "templates")
	if out, err := exec.CommandContext(t.Context(), "cp", "-al", from+"/.", dir).CombinedOutput(); err != nil {
		t.Fatalf("link %s: %v: %s", from, err, out)
	}
	return dir
}

// currentBuild is the directory of the build that the name base means.
func currentBuild(t *testing.T, store string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(store, "names", stack.BaseTemplate+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var name struct {
		BuildID string `json:"build_id"`
	}
	if err := json.Unmarshal(b, &name); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(store, "builds", name.BuildID)
}

// replaceFile puts other bytes in the place of a linked file, whose other name
// keeps what it had.
func replaceFile(t *testing.T, path string, change func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(path), os.WriteFile(path, change(b), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// stateFile is the largest file of the stored device state.
func stateFile(t *testing.T, build string) string {
	t.Helper()
	var largest string
	var size int64
	err := filepath.WalkDir(filepath.Join(build, "state"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Size() > size {
			largest, size = path, info.Size()
		}
		return err
	})
	if err != nil || largest == "" {
		t.Fatalf("no stored state in %s: %v", build, err)
	}
	return largest
}

// damagedHost is the host that the tests below spoil; the other one is well.
func damagedHost() (damaged, well *stack.Process) {
	return theStack.HostProc[1], theStack.HostProc[0]
}

// everyCreateIsOn creates some sandboxes and wants all of them on one host.
func everyCreateIsOn(t *testing.T, c *tenant, host string) {
	t.Helper()
	for range 3 {
		if s := c.create(t); s.AgentID != host {
			t.Errorf("a sandbox is on %s, want %s", s.AgentID, host)
		}
	}
}

// noHost wants a create to be refused because no host can take it.
func noHost(t *testing.T, c *tenant) {
	t.Helper()
	s, err := c.CreateSandbox(t.Context(), api.CreateSandbox{Template: stack.BaseTemplate}, "")
	if err == nil {
		c.deleteAtEnd(t, s.ID)
	}
	var refused *api.Error
	if !errors.As(err, &refused) || refused.Status != 502 || refused.Message != "no available compute node" {
		t.Errorf("create: %v, want 502 no available compute node", err)
	}
}

func TestDamagedTemplateIsNamedAndAnotherHostTaken(t *testing.T) {
	c := newTenant(t)
	bad, well := damagedHost()
	store := templateCopy(t)
	state := stateFile(t, currentBuild(t, store))
	replaceFile(t, state, func(b []byte) []byte { return b[:len(b)/2] })
	withEnv(t, bad, "BERTH_TEMPLATE_DIR="+store)
	reports(t, bad.ID, "failed", filepath.Base(state))
	everyCreateIsOn(t, c, well.ID)
	onlyOn(t, bad.ID)
	noHost(t, c)
}

// Damage that leaves every size as it was is found by the engine, at restore.
func TestGarbledStateFailsTheCreateOnThatHostAlone(t *testing.T) {
	c := newTenant(t)
	bad, well := damagedHost()
	store := templateCopy(t)
	replaceFile(t, stateFile(t, currentBuild(t, store)), func(b []byte) []byte {
		for i := range b {
			b[i] ^= 0x5a
		}
		return b
	})
	withEnv(t, bad, "BERTH_TEMPLATE_DIR="+store)
	reports(t, bad.ID, "ready")
	everyCreateIsOn(t, c, well.ID)
	c.agrees(t, 30*time.Second)
}

// A state that another engine stored is not resumed: the host takes one of its own
// engine from the snapshot store instead.
func TestStateOfAnotherEngineIsReplaced(t *testing.T) {
	c := newTenant(t)
	bad, _ := damagedHost()
	store := templateCopy(t)
	manifest := filepath.Join(currentBuild(t, store), "template.json")
	replaceFile(t, manifest, func(b []byte) []byte {
		var m map[string]any
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		engine, ok := m["engine"].(map[string]any)
		if !ok {
			t.Fatalf("no engine in %s", b)
		}
		engine["kind"], engine["version"] = "cloud-hypervisor", "v52.0"
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	})
	withEnv(t, bad, "BERTH_TEMPLATE_DIR="+store)
	reports(t, bad.ID, "ready")
	onlyOn(t, bad.ID)
	c.answers(t, c.create(t).ID)
}

func TestFullHostDisk(t *testing.T) {
	c := newTenant(t)
	full, well := damagedHost()
	dir := filepath.Join(theStack.Dir, "small-disk")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// Large enough for one sandbox's disk; its file takes what is written.
	image := dir + ".img"
	t.Cleanup(func() {
		if err := errors.Join(os.Remove(dir), os.Remove(image)); err != nil {
			t.Error(err)
		}
	})
	try := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	try("truncate", "-s", "12G", image)
	try("/sbin/mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-N", "4096", image)
	try("mount", "-o", "loop", image, dir)
	t.Cleanup(func() { try("umount", dir) })
	withEnv(t, full, "BERTH_DATA_DIR="+filepath.Join(dir, "data"), "BERTH_DISK_HEADROOM_MB=0", "BERTH_OVERLAY_POOL=0",
		"BERTH_DISK_OVERCOMMIT=100") // the disk is to be full, not promised away
	reports(t, full.ID, "ready")

	// A sandbox from before the disk is full.
	onlyOn(t, full.ID)
	resident := c.create(t)
	c.exec(t, resident.ID, "echo kept > /root/before")
	ballast := filepath.Join(dir, "ballast")
	fill(t, ballast)
	noHost(t, c)

	// The other host takes what this one cannot.
	if _, err := admin(t).UndrainAgent(t.Context(), well.ID); err != nil {
		t.Fatal(err)
	}
	everyCreateIsOn(t, c, well.ID)

	// A daemon that is started again takes over what runs.
	if err := errors.Join(full.Kill9(), full.Start()); err != nil {
		t.Fatal(err)
	}

	// What runs goes on, and a full disk can be emptied by deleting.
	eventually(t, 60*time.Second, "the resident answers", func(ctx context.Context) error {
		out, err := c.Exec(ctx, resident.ID, api.Exec{Cmd: api.Shell("cat /root/before")})
		if err == nil && out.Stdout != "kept\n" {
			err = fmt.Errorf("it reads %q", out.Stdout)
		}
		return err
	})
	if err := c.DeleteSandbox(t.Context(), resident.ID); err != nil {
		t.Errorf("delete on a full disk: %v", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the host takes sandboxes again", func(ctx context.Context) error {
		s, err := c.CreateSandbox(ctx, api.CreateSandbox{Template: stack.BaseTemplate}, "")
		if err != nil {
			return err
		}
		c.deleteAtEnd(t, s.ID)
		if s.AgentID != full.ID {
			return errors.New("it is on " + s.AgentID)
		}
		return nil
	})
}

// fill allocates for a file until nothing fits any more.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at := int64(0)
	for _, size := range []int64{1 << 30, 1 << 20, 4 << 10} {
		for ; err == nil; at += size {
			err = unix.Fallocate(int(f.Fd()), 0, at, size)
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("fill %s: %v", path, err)
		}
		at, err = at-size, nil
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// The sentences of make up, and what is left when a stack is killed rather than
// ended.
func TestKilledStackIsCleanedUp(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"bin", "templates"} {
		if err := os.Symlink(filepath.Join(theStack.Root, name), filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, ".berth"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, cache := range []string{"kernel", "templates"} {
		if err := os.Symlink(stack.Cache(theStack.Root, cache), filepath.Join(root, ".berth", cache)); err != nil {
			t.Fatal(err)
		}
	}
	// VMMs pass through to their disks, and the test's directory is private.
	for dir := root; dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	o := stack.Options{Root: root, PortBase: stack.DefaultPortBase + 300, HostPrefix: "k", HostRange: 3, HostMemoryMB: 1500}
	s, err := stack.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	client, err := s.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.CreateSandbox(t.Context(), api.CreateSandbox{Template: stack.BaseTemplate}, "one"); err != nil {
		t.Error(err)
	}
	if _, err := stack.Start(t.Context(), o); err == nil || !stack.IsRefusal(err) || !strings.Contains(err.Error(), "already runs") {
		t.Errorf("a second start: %v", err)
	}
	// As if the supervisor had been killed: its lock is gone and all else is there.
	s.Abandon()
	if err := stack.Down(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if things, err := s.Census(); err != nil || len(things) > 0 {
		t.Errorf("left behind: %v, %v", things, err)
	}
}
