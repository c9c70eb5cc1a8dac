package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
	"github.com/berth-cloud/berth/hostd/cgroup"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/netfab/slot"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
	"github.com/berth-cloud/berth/vmm"
)

// The host id, slot addresses and users of the VMs that the benchmark starts
// itself. They do not overlap those of the stack's two hosts.
const (
	rawHost = "m3"
	rawCIDR = "10.213.32.0/20"
	rawUID  = 636000
	rawRun  = "/run/berth/" + rawHost // sockets have short paths
)

// rawEngine is the engine without Berth: VMMs driven through package vmm, in
// existing slots. Their cgroups are next to those of the stack's hosts, without
// limits: in the cgroup of the machine's other programs they would get more CPU
// time, or less.
type rawEngine struct {
	engine vmm.Engine
	// template is the template whose sandboxes are restored.
	template image.Template
	fabric   *slot.Fabric
	slots    []slot.Slot
	tree     *cgroup.Tree
	groups   []*cgroup.Group
	dir      string
}

// openRaw creates n slots. It first removes what a killed run left behind.
func openRaw(ctx context.Context, root string, n int) (_ *rawEngine, err error) {
	e := &rawEngine{dir: stack.Cache(root, "bench", "engine")}
	if e.engine, err = vmm.Detect(ctx, ""); err != nil {
		return nil, err
	}
	images, err := image.Open(ctx, image.Config{Dir: stack.Cache(root, "templates"), Engine: e.engine})
	if err != nil {
		return nil, err
	}
	if e.template, err = images.Get("base"); err != nil {
		return nil, err
	}
	if e.fabric, err = slotsOf(rawHost); err != nil {
		return nil, err
	}
	if e.tree, err = cgroup.Open(cgroup.Config{Host: rawHost}, slog.New(slog.DiscardHandler)); err != nil {
		return nil, errors.Join(err, e.fabric.Close())
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close(context.WithoutCancel(ctx)))
		}
	}()
	if err := e.clear(ctx); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(e.dir, 0o755); err != nil {
		return nil, err
	}
	if err := e.fabric.EnsureHost(ctx); err != nil {
		return nil, err
	}
	for i := range n {
		s, err := e.fabric.Ensure(ctx, i)
		if err != nil {
			return nil, err
		}
		g, err := e.tree.Ensure(ctx, "engine-"+strconv.Itoa(i), cgroup.Limits{})
		if err != nil {
			return nil, err
		}
		e.slots, e.groups = append(e.slots, s), append(e.groups, g)
	}
	return e, nil
}

// slotsOf returns the slots of a host without creating any, so the host may be
// running.
func slotsOf(host string) (*slot.Fabric, error) {
	return slot.NewFabric(slot.Config{Host: host, CIDR: netip.MustParsePrefix(rawCIDR), BaseUID: rawUID}, slog.New(slog.DiscardHandler))
}

// clear kills every VMM of the raw engine and removes its cgroups, slots and
// files.
func (e *rawEngine) clear(ctx context.Context) error {
	groups, err := e.tree.List()
	if err != nil {
		return err
	}
	for _, group := range groups {
		err = errors.Join(err, e.tree.Remove(ctx, group))
	}
	return errors.Join(err, e.fabric.Purge(ctx), os.RemoveAll(rawRun), os.RemoveAll(e.dir))
}

func (e *rawEngine) close(ctx context.Context) error {
	return errors.Join(e.clear(ctx), e.tree.Close(), e.fabric.Close())
}

// rawVM is one VM of the raw engine, with the times from the start of its process
// to three points.
type rawVM struct {
	process  *vmm.Process
	resumed  time.Duration // vm.resume has returned
	answered time.Duration // the guest has taken an identity
	executed time.Duration // the guest has run true
}

// prepare lays out the files from which a VM in slot n is restored: the state,
// with its own disk and console. A host does this while the VMM starts.
func (e *rawEngine) prepare(ctx context.Context, state string, n int) (dir string, err error) {
	dir = filepath.Join(e.dir, strconv.Itoa(n))
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return "", err
	}
	disk := filepath.Join(dir, "overlay.img")
	if err := copyDisk(ctx, filepath.Join(state, "overlay.img"), disk); err != nil {
		return "", err
	}
	return dir, e.template.WriteRestoreFrom(dir, state, image.VM{
		Overlay: disk, RAM: filepath.Join(state, vmm.FileMemory), Serial: filepath.Join(dir, "serial.log"),
	})
}

// copyDisk copies a sparse file with cp.
func copyDisk(ctx context.Context, from, to string) error {
	out, err := exec.CommandContext(ctx, "cp", "--reflink=auto", "--sparse=auto", from, to).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cp: %w: %s", err, out)
	}
	return nil
}

// restore restores a saved state in slot n.
func (e *rawEngine) restore(ctx context.Context, dir string, n int) (m rawVM, err error) {
	group, err := e.groups[n].Entry()
	if err != nil {
		return m, err
	}
	defer group.Close()
	began := time.Now()
	m.process, err = vmm.Start(ctx, vmm.Launch{
		Engine: e.engine, Dir: filepath.Join(rawRun, strconv.Itoa(n)), NetNS: e.slots[n].NetNSPath,
		Cgroup: vmm.Cgroup{V2: group.V2, V1: group.V1},
	})
	if err != nil {
		return m, err
	}
	c := m.process.Client()
	if err := c.Restore(ctx, vmm.RestoreConfig{SourceURL: vmm.FileURL(dir)}); err != nil {
		return m, err
	}
	if err := c.Resume(ctx); err != nil {
		return m, err
	}
	m.resumed = time.Since(began)
	guest := guestclient.New(func(ctx context.Context) (net.Conn, error) { return e.fabric.Dial(ctx, n, guestapi.Port) })
	if _, err := guest.Identity(ctx, newIdentity()); err != nil {
		return m, err
	}
	m.answered = time.Since(began)
	result, err := guest.Run(ctx, guestapi.ExecRequest{Argv: []string{"true"}, OutputLimitBytes: 1 << 10})
	if err == nil && result.ExitCode != 0 {
		err = errors.New("true failed")
	}
	m.executed = time.Since(began)
	return m, err
}

func newIdentity() guestapi.Identity {
	random := make([]byte, 256+16)
	_, _ = rand.Read(random) // never fails, see crypto/rand
	return guestapi.Identity{
		Generation: 1, Entropy: random[16:], Hostname: "engine", MachineID: hex.EncodeToString(random[:16]),
		Nameservers: []string{slot.GatewayAddr.String()}, GatewayMAC: slot.TapMAC.String(), ResetTCP: true,
	}
}

// restoreOnce measures one raw restore and removes it.
func (e *rawEngine) restoreOnce(ctx context.Context, state string) (rawVM, error) {
	all, err := e.restoreAll(ctx, state, 1)
	if err != nil {
		return rawVM{}, err
	}
	return all[0], nil
}

// restoreAll measures n raw restores in parallel and removes them.
func (e *rawEngine) restoreAll(ctx context.Context, state string, n int) ([]rawVM, error) {
	dirs := make([]string, n)
	for i := range dirs {
		var err error
		if dirs[i], err = e.prepare(ctx, state, i); err != nil {
			return nil, err
		}
	}
	vms := make([]rawVM, n)
	var group errgroup.Group
	for i, dir := range dirs {
		group.Go(func() (err error) {
			vms[i], err = e.restore(ctx, dir, i)
			return err
		})
	}
	err := group.Wait()
	for _, vm := range vms {
		if vm.process != nil {
			err = errors.Join(err, vm.process.Kill(context.WithoutCancel(ctx)))
		}
	}
	return vms, err
}

// saveAndCopy does the minimum of a capture to the VM of a sandbox, without its
// host: pause, save, copy the disk, resume.
func (e *rawEngine) saveAndCopy(ctx context.Context, b *bench, host, id string) (time.Duration, error) {
	// The VMM belongs to its host and outlives this process.
	runtime := filepath.Join("/run/berth", host, id)
	var owner syscall.Stat_t
	if err := syscall.Stat(runtime, &owner); err != nil {
		return 0, err
	}
	process, err := vmm.Adopt(ctx, runtime)
	if err != nil {
		return 0, err
	}
	c := process.Client()
	defer c.Close()
	dir := filepath.Join(e.dir, "save")
	err = errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755), os.Chown(dir, int(owner.Uid), int(owner.Gid)))
	if err != nil {
		return 0, err
	}
	disk := filepath.Join(b.s.DataDir(host), "boxes", id, "overlay.img")
	began := time.Now()
	if err := c.Pause(ctx); err != nil {
		return 0, err
	}
	err = process.Snapshot(ctx, dir)
	if err == nil {
		err = copyDisk(ctx, disk, filepath.Join(dir, "overlay.img"))
	}
	err = errors.Join(err, c.Resume(context.WithoutCancel(ctx)))
	return time.Since(began), err
}
