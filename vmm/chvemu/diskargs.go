package chvemu

import (
	"fmt"

	"github.com/berth-cloud/berth/vmm"
)

// The parts of a disk in QEMU, as objects for the command line and for QMP
// alike: an image by descriptor, a limiter above it if there is one, and the
// device the guest sees.

// groupLimits names the limiter of a group, whose identifier may hold characters
// that QEMU's may not.
func groupLimits(id string) string { return fmt.Sprintf("limits-%x", id) }

// throttleGroup turns token buckets of a size and a time to refill, in
// milliseconds, into rates a second.
func throttleGroup(id string, cfg vmm.RateLimiterConfig) map[string]any {
	limits := map[string]any{}
	rate := func(key string, b *vmm.TokenBucket) {
		if b != nil && b.Size > 0 && b.RefillTime > 0 {
			limits[key] = max(1, b.Size*1000/b.RefillTime)
		}
	}
	rate("bps-total", cfg.Bandwidth)
	rate("iops-total", cfg.Ops)
	return map[string]any{"qom-type": "throttle-group", "id": id, "limits": limits}
}

// diskNodes returns the block nodes, the lowest first. The last one is the one
// that the device uses.
func diskNodes(d device, cfg *vmm.DiskConfig, path string) []map[string]any {
	cache := map[string]any{"direct": false, "no-flush": false}
	discard := "unmap"
	if cfg.ReadOnly {
		discard = "ignore"
	}
	image := map[string]any{
		"driver": "raw", "node-name": d.node(), "read-only": cfg.ReadOnly, "discard": discard, "cache": cache,
		// The image is locked by this process, in the way Cloud Hypervisor does.
		"file": map[string]any{
			"driver": "file", "filename": path, "locking": "off", "discard": discard, "cache": cache,
			"read-only": cfg.ReadOnly,
		},
	}
	if topNode(d, cfg) == d.node() {
		return []map[string]any{image}
	}
	group := d.limits()
	if cfg.RateLimiterConfig == nil {
		group = groupLimits(cfg.RateLimitGroup)
	}
	return []map[string]any{image, {
		"driver": "throttle", "node-name": d.throttle(), "throttle-group": group, "file": d.node(),
		"read-only": cfg.ReadOnly, "discard": discard,
	}}
}

// topNode is the node that the device uses.
func topNode(d device, cfg *vmm.DiskConfig) string {
	if cfg.RateLimiterConfig != nil || cfg.RateLimitGroup != "" {
		return d.throttle()
	}
	return d.node()
}

func diskDevice(d device, cfg *vmm.DiskConfig) map[string]any {
	o := d.pci("virtio-blk-pci")
	o["drive"], o["num-queues"], o["queue-size"] = topNode(d, cfg), cfg.NumQueues, cfg.QueueSize
	o["discard"], o["write-zeroes"] = !cfg.ReadOnly, !cfg.ReadOnly
	// A host's full disk is an I/O error of the guest's, as it is with Cloud
	// Hypervisor. By default QEMU would stop the VM.
	o["rerror"], o["werror"] = "report", "report"
	if cfg.Serial != "" {
		o["serial"] = cfg.Serial
	}
	return o
}
