package chvemu

import "fmt"

// The parts of a disk in QEMU, as objects for the command line and for QMP
// alike: an image by descriptor, a limiter above it if there is one, and the
// device the guest sees.

// diskObjects returns the limiter that a disk has for itself.
func diskObjects(d device, cfg *diskConfig) []map[string]any {
	if cfg.RateLimiterConfig == nil {
		return nil
	}
	return []map[string]any{throttleGroup(ownLimits(d), *cfg.RateLimiterConfig)}
}

func ownLimits(d device) string { return fmt.Sprintf("limits-blk%d", d.Slot) }

// throttleGroup turns token buckets of a size and a time to refill, in
// milliseconds, into rates a second.
func throttleGroup(id string, cfg rateLimiterConfig) map[string]any {
	limits := map[string]any{}
	rate := func(key string, b *tokenBucket) {
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
func diskNodes(d device, cfg *diskConfig, path string) []map[string]any {
	cache := map[string]any{"direct": cfg.Direct, "no-flush": false}
	discard := "unmap"
	if !cfg.Sparse || cfg.ReadOnly {
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
	group := cfg.limits
	if cfg.RateLimiterConfig != nil {
		group = ownLimits(d)
	}
	if group == "" {
		return []map[string]any{image}
	}
	return []map[string]any{image, {
		"driver": "throttle", "node-name": topNode(d, cfg), "throttle-group": group, "file": d.node(),
		"read-only": cfg.ReadOnly, "discard": discard,
	}}
}

// topNode is the node that the device uses.
func topNode(d device, cfg *diskConfig) string {
	if cfg.RateLimiterConfig != nil || cfg.limits != "" {
		return fmt.Sprintf("thr%d", d.Slot)
	}
	return d.node()
}

func diskDevice(d device, cfg *diskConfig) map[string]any {
	o := map[string]any{
		"driver": "virtio-blk-pci", "id": d.qdev(), "bus": "pci.0", "addr": slotAddr(d), "disable-legacy": "on",
		"drive": topNode(d, cfg), "num-queues": cfg.NumQueues, "queue-size": cfg.QueueSize,
		"discard": cfg.Sparse && !cfg.ReadOnly, "write-zeroes": cfg.Sparse && !cfg.ReadOnly,
		// A host's full disk is an I/O error of the guest's, as it is with Cloud
		// Hypervisor. By default QEMU would stop the VM.
		"rerror": "report", "werror": "report",
	}
	if cfg.Serial != nil {
		o["serial"] = *cfg.Serial
	}
	return o
}
