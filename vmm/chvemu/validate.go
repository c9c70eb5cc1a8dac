package chvemu

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"

	"github.com/berth-cloud/berth/vmm"
)

// validate checks what Cloud Hypervisor checks before a VM is started, and when a
// disk is added (VmConfig::validate in vmm/src/config.rs).
func validate(c *vmm.VMConfig) error {
	if c.Payload == nil || c.Payload.Kernel == "" {
		return errors.New("payload configuration is not bootable: it has no kernel")
	}
	if c.CPUs.MaxVCPUs < c.CPUs.BootVCPUs {
		return fmt.Errorf("max CPUs (%d) lower than boot CPUs (%d)", c.CPUs.MaxVCPUs, c.CPUs.BootVCPUs)
	}
	for i := range c.Disks {
		if err := validateDisk(c, &c.Disks[i]); err != nil {
			return err
		}
	}
	for _, n := range c.Net {
		if n.Tap == "" || n.MAC == "" {
			return unsupported("a network device without a tap and a MAC address")
		}
		if n.MTU != 0 {
			return unsupported("setting a network device's MTU")
		}
	}
	return uniqueIDs(c)
}

// uniqueIDs checks the identifiers, which are of one space (validate_identifier).
func uniqueIDs(c *vmm.VMConfig) error {
	var ids []string
	for _, d := range c.Disks {
		ids = append(ids, d.ID)
	}
	for _, n := range c.Net {
		ids = append(ids, n.ID)
	}
	for _, z := range c.Memory.Zones {
		ids = append(ids, z.ID)
	}
	seen := map[string]bool{}
	for _, id := range ids {
		if id == "" {
			continue // made up when the device gets its slot
		}
		if strings.HasPrefix(id, "__") {
			return fmt.Errorf("identifier %s is not invalid: it is reserved", id)
		}
		if seen[id] {
			return fmt.Errorf("identifier %s is not unique", id)
		}
		seen[id] = true
	}
	return nil
}

func validateDisk(c *vmm.VMConfig, d *vmm.DiskConfig) error {
	const maxSerial = 20
	switch {
	case d.PCISegment != 0:
		return fmt.Errorf("invalid PCI segment id: %d", d.PCISegment)
	case d.NumQueues > int(c.CPUs.BootVCPUs):
		return fmt.Errorf("queue count (%d) must not exceed boot vCPUs (%d)", d.NumQueues, c.CPUs.BootVCPUs)
	case bits.OnesCount16(d.QueueSize) != 1:
		return fmt.Errorf("queue size must be a power of 2: %d", d.QueueSize)
	case d.QueueSize <= 2:
		return fmt.Errorf("block queue size must be greater than 2: %d", d.QueueSize)
	case len(d.Serial) > maxSerial:
		return fmt.Errorf("block device serial length (%d) exceeds maximum allowed length (%d)", len(d.Serial), maxSerial)
	default:
		return nil
	}
}
