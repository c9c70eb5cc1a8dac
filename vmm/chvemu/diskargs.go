package chvemu

import "github.com/berth-cloud/berth/vmm"

// The parts of a disk in QEMU, as objects for the command line and for QMP
// alike: an image by descriptor, and the device that the guest sees.

func diskNode(d device, cfg *vmm.DiskConfig, path string) map[string]any {
	cache := map[string]any{"direct": false, "no-flush": false}
	discard := "unmap"
	if cfg.ReadOnly {
		discard = "ignore"
	}
	return map[string]any{
		"driver": "raw", "node-name": d.node(), "read-only": cfg.ReadOnly, "discard": discard, "cache": cache,
		// The image is locked by this process, in the way Cloud Hypervisor does.
		"file": map[string]any{
			"driver": "file", "filename": path, "locking": "off", "discard": discard, "cache": cache,
			"read-only": cfg.ReadOnly,
		},
	}
}

func diskDevice(d device, cfg *vmm.DiskConfig) map[string]any {
	o := d.pci("virtio-blk-pci")
	o["drive"], o["num-queues"], o["queue-size"] = d.node(), cfg.NumQueues, cfg.QueueSize
	o["discard"], o["write-zeroes"] = !cfg.ReadOnly, !cfg.ReadOnly
	// A host's full disk is an I/O error of the guest's, as it is with Cloud
	// Hypervisor. By default QEMU would stop the VM.
	o["rerror"], o["werror"] = "report", "report"
	if cfg.Serial != "" {
		o["serial"] = cfg.Serial
	}
	return o
}
