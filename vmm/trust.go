package vmm

// shape says which keys of a JSON object are kept: nil for a value, else the shape
// of the object, or of each object of the list.
type shape map[string]shape

// inert is the part of a VM's configuration that names nothing outside the VM:
// sizes, switches and the names of its own devices. Paths, sockets, descriptors and
// kinds of devices that Berth's VMs do not have are not in it.
var inert = shape{
	"cpus": {
		"boot_vcpus": nil, "max_vcpus": nil, "kvm_hyperv": nil, "max_phys_bits": nil, "features": {"amx": nil},
		"nested": nil, "core_scheduling": nil, "profile": nil,
	},
	"memory": {
		"size": nil, "mergeable": nil, "hotplug_method": nil, "shared": nil, "hugepages": nil, "hugepage_size": nil,
		"prefault": nil, "reserve": nil, "thp": nil,
		"zones": {
			"id": nil, "size": nil, "shared": nil, "hugepages": nil, "hugepage_size": nil, "prefault": nil, "reserve": nil,
			"mergeable": nil,
		},
	},
	"payload": {"cmdline": nil},
	"disks": {
		"id": nil, "pci_segment": nil, "pci_device_id": nil, "readonly": nil, "direct": nil, "num_queues": nil, "queue_size": nil,
		"disable_io_uring": nil, "disable_aio": nil, "serial": nil, "sparse": nil, "image_type": nil, "lock_granularity": nil,
	},
	"net": {
		"id": nil, "pci_segment": nil, "pci_device_id": nil, "mac": nil, "mtu": nil, "num_queues": nil, "queue_size": nil,
		"offload_tso": nil, "offload_ufo": nil, "offload_csum": nil,
	},
	"rng":           {"pci_segment": nil, "pci_device_id": nil},
	"serial":        {},
	"console":       {"pci_segment": nil, "pci_device_id": nil},
	"debug_console": {"iobase": nil},
	"pvpanic":       nil,
	"iommu":         nil,
	"watchdog":      nil,
}

// Distrust removes everything from the configuration that could make a VMM touch
// files or sockets of others. The configuration was written by a VMM that its guest
// may have taken over, or comes from a store that others can write to. The caller
// sets what is missing then; consoles are off.
func (e *ConfigEdit) Distrust() {
	inert.prune(e.doc)
	for _, name := range []string{"serial", "console", "debug_console"} {
		if console, ok := e.doc[name].(map[string]any); ok {
			console["mode"] = ConsoleOff
		}
	}
}

func (s shape) prune(doc map[string]any) {
	for key, value := range doc {
		inner, ok := s[key]
		if !ok || !inner.keep(value) {
			delete(doc, key)
		}
	}
}

// keep prunes a value, and reports whether it is of the shape at all.
func (s shape) keep(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case map[string]any:
		s.prune(v)
		return s != nil
	case []any:
		for _, item := range v {
			o, ok := item.(map[string]any)
			if !ok {
				return false
			}
			s.prune(o)
		}
		return s != nil
	}
	return s == nil
}
