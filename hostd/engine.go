package hostd

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/vmm"
)

// engine starts VMMs for boxes.
type engine struct {
	engine vmm.Engine
	groups []int // beside the slot's own
}

// newEngine looks up what the engine needs: Cloud Hypervisor opens /dev/kvm,
// which belongs to a group.
func newEngine(e vmm.Engine) (*engine, error) {
	if e.Kind != vmm.KindCloudHypervisor {
		return &engine{engine: e}, nil
	}
	fi, err := os.Stat(kvmDevice)
	if err != nil {
		return nil, fmt.Errorf("%s needs hardware virtualization: %w (load the module kvm_intel or kvm_amd, or set BERTH_VMM to chvemu)", e.Kind, err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, fmt.Errorf("owner of %s is not known", kvmDevice)
	}
	groups, err := kvmGroups(fi.Mode().Perm(), int(st.Gid))
	if err != nil {
		return nil, err
	}
	return &engine{engine: e, groups: groups}, nil
}

const kvmDevice = "/dev/kvm"

// kvmGroups is which group lets a VMM's user open a /dev/kvm of this mode and
// group. Root's group is not given away: it opens more than that.
func kvmGroups(mode fs.FileMode, gid int) ([]int, error) {
	const forGroup = fs.FileMode(0o060)
	switch {
	case mode&forAll == forAll:
		return nil, nil
	case mode&forGroup == forGroup && gid != 0:
		return []int{gid}, nil
	default:
		return nil, fmt.Errorf("%s has mode %#o and group %d, and VMMs, which run as users of their own, cannot open it: "+
			"give it to a group (groupadd -rf kvm; chgrp kvm %s; chmod 0660 %s), as udev does where it runs", kvmDevice, mode, gid, kvmDevice, kvmDevice)
	}
}

func (e *engine) Start(ctx context.Context, l box.Launch) (box.VMM, error) {
	p, err := vmm.Start(ctx, vmm.Launch{
		Engine: e.engine, Dir: l.Dir, NetNS: l.Slot.NetNSPath, UID: l.Slot.UID, GID: l.Slot.GID, Groups: e.groups, Cgroup: l.Cgroup,
		Isolated: true, MaxFile: l.MaxFile,
	})
	if err != nil {
		return nil, err
	}
	p.Supervise()
	return process{p}, nil
}

// Detach lets VMs share the memory of a saved state.
func (e *engine) Detach(dir string) error { return vmm.DetachMemory(e.engine, dir) }

// Adopt finds the VMM of a runtime directory.
func (e *engine) Adopt(ctx context.Context, dir string) (box.VMM, error) {
	p, err := vmm.Adopt(ctx, dir)
	if err != nil {
		return nil, err
	}
	p.Supervise()
	return process{p}, nil
}

// process is a VMM and its API in one.
type process struct{ *vmm.Process }

func (p process) Boot(ctx context.Context) error   { return p.Client().Boot(ctx) }
func (p process) Pause(ctx context.Context) error  { return p.Client().Pause(ctx) }
func (p process) Resume(ctx context.Context) error { return p.Client().Resume(ctx) }

func (p process) AddDisk(ctx context.Context, disk vmm.DiskConfig) error {
	_, err := p.Process.AddDisk(ctx, disk)
	return err
}

func (p process) State(ctx context.Context) (vmm.State, error) {
	info, err := p.Client().Info(ctx)
	return info.State, err
}
