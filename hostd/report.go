package hostd

import (
	"runtime"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// report is the host's state, as a heartbeat carries it.
func (d *Daemon) report() hostapi.Heartbeat {
	list := d.boxes.List()
	hb := hostapi.Heartbeat{
		HostID: d.cfg.HostID, Address: d.cfg.Advertise, BootID: d.bootID, StartedAt: d.startedAt,
		Ready: d.boxes.Ready(), Draining: d.draining.Load(),
		Capacity: hostapi.Capacity{
			CPUs: runtime.NumCPU(), MemoryMB: d.budgetMB, ReservedMB: d.boxes.ReservedMB(), Slots: d.cfg.Slots,
			SlotsUsed: d.boxes.SlotsUsed(), OverheadMBPerBox: d.boxes.OverheadMB(),
			DiskStalledMS: d.boxes.DiskStalled().Milliseconds(),
		},
		Versions:  d.versions(),
		Templates: d.builds.Templates.States(),
		Sources:   d.builds.Templates.Sources(),
		Boxes:     make([]hostapi.BoxState, 0, len(list)),
		Store:     d.stored != nil,
	}
	if free, err := freeBytes(d.cfg.DataDir); err == nil {
		hb.Capacity.DiskFreeBytes = free
	}
	for i, t := range hb.Templates {
		hb.Templates[i].Stored = d.stored != nil && d.builds.Stored.Has(t.BuildID)
	}
	for _, b := range list {
		state := b.State()
		if d.databases != nil {
			state.Database = d.databases.State(b.ID)
		}
		hb.Boxes = append(hb.Boxes, state)
	}
	hb.ShortenErrors()
	for _, c := range d.boxes.Captures().List() {
		hb.Captures = append(hb.Captures, hostapi.CaptureState{ID: c.ID, Stored: c.Stored})
	}
	for _, v := range d.volumes.Volumes() {
		hb.Volumes = append(hb.Volumes, hostapi.VolumeState{ID: v.ID, UsedBytes: v.UsedBytes})
	}
	return hb
}

func (d *Daemon) versions() hostapi.Versions {
	return hostapi.Versions{Hostd: d.cfg.Version, Engine: engineName(d.engine), Kernel: d.builds.Templates.KernelVersion()}
}
