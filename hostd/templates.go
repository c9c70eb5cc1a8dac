package hostd

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/build"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/vmm"
)

// templates are the host's as boxes see them.
type templates struct{ *build.Templates }

// Get returns what a box is made from.
func (t templates) Get(_ context.Context, name string) (box.Template, error) {
	tpl, err := t.Templates.Get(name)
	return asBoxTemplate(tpl), err
}

// Build returns a build that a box or a capture was made from.
func (t templates) Build(_ context.Context, id string) (box.Template, error) {
	tpl, err := t.Templates.Build(id)
	return asBoxTemplate(tpl), err
}

// Bootable returns a build for a box that has its disk already.
func (t templates) Bootable(_ context.Context, id string) (box.Template, error) {
	tpl, err := t.Templates.Bootable(id)
	return asBoxTemplate(tpl), err
}

func asBoxTemplate(tpl image.Template) box.Template {
	vm := func(m box.Machine) image.VM {
		return image.VM{Overlay: m.Overlay, RAM: m.RAM, Serial: m.Serial, Disks: m.Volumes}
	}
	return box.Template{
		Name: tpl.Name, BuildID: tpl.BuildID, CPU: tpl.CPU, MemoryMB: tpl.MemoryMB, DiskMB: tpl.DiskMB, OverlaySeed: tpl.OverlaySeed,
		OpenConnections: tpl.OpenConnections > 0,
		Restore:         func(dir string, m box.Machine) error { return tpl.WriteRestore(dir, vm(m)) },
		RestoreFrom: func(dir, state string, m box.Machine) error {
			err := tpl.WriteRestoreFrom(dir, state, vm(m))
			if errors.Is(err, vmm.ErrDamaged) {
				return fmt.Errorf("%w: %w", hosterr.ErrBadSnapshot, err)
			}
			return err
		},
		Cold: func(m box.Machine) vmm.VMConfig { return tpl.VMConfig(vm(m)) },
	}
}
