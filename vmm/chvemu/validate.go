package chvemu

import (
	"math/bits"
	"strings"
)

// validate checks what VmConfig::validate in vmm/src/config.rs checks of the
// fields that are supported, in its order and with its texts, and returns the
// identifiers in use.
func (c *vmConfig) validate() (map[string]bool, *fault) {
	ids := map[string]bool{}
	if f := c.Payload.validate(); f != nil {
		return nil, fail(f, "Payload configuration is not bootable")
	}
	if c.Console.Mode == "File" && c.Console.File == nil || c.Serial.Mode == "File" && c.Serial.File == nil {
		return nil, failf("Path missing when using file console mode")
	}
	if c.CPUs.MaxVCPUs < c.CPUs.BootVCPUs {
		return nil, failf("Max CPUs (%d) lower than boot CPUs (%d)", c.CPUs.MaxVCPUs, c.CPUs.BootVCPUs)
	}
	const maxCPUs = 8192
	if c.CPUs.MaxVCPUs > maxCPUs {
		return nil, failf("Too many CPUs: specified %d but %d is the limit", c.CPUs.MaxVCPUs, maxCPUs)
	}
	for _, g := range c.RateLimitGroups {
		if g.ID == "" || g.RateLimiterConfig.Bandwidth == nil && g.RateLimiterConfig.Ops == nil {
			return nil, errRateLimiterGroup
		}
		if f := claim(ids, &g.ID); f != nil {
			return nil, f
		}
	}
	for i := range c.Disks {
		if f := c.Disks[i].validate(c); f != nil {
			return nil, f
		}
		if f := claim(ids, c.Disks[i].ID); f != nil {
			return nil, f
		}
	}
	for i := range c.Net {
		if f := c.Net[i].validate(c); f != nil {
			return nil, f
		}
		if f := claim(ids, c.Net[i].ID); f != nil {
			return nil, f
		}
	}
	for _, segment := range []uint16{c.RNG.PCISegment, c.Console.PCISegment} {
		if f := validateSegment(segment); f != nil {
			return nil, f
		}
	}
	if f := claim(ids, c.RNG.ID); f != nil {
		return nil, f
	}
	for _, z := range c.Memory.Zones {
		if f := claim(ids, &z.ID); f != nil {
			return nil, f
		}
	}
	return ids, nil
}

var errRateLimiterGroup = failf("Invalid rate-limiter group")

// claim takes an identifier for a device (validate_identifier).
func claim(ids map[string]bool, id *string) *fault {
	if id == nil {
		return nil
	}
	if strings.HasPrefix(*id, "__") {
		return failf("Identifier %s is not invalid", *id)
	}
	if ids[*id] {
		return failf("Identifier %s is not unique", *id)
	}
	ids[*id] = true
	return nil
}

func (p *payloadConfig) validate() *fault {
	switch {
	case p == nil || p.Firmware == nil && p.Kernel == nil:
		return failf("No bootitem provided: neither firmware nor kernel")
	case p.Firmware != nil && p.Kernel != nil:
		return failf("Specifying a kernel is not supported when a firmware is provided")
	default:
		return nil
	}
}

func validateSegment(segment uint16) *fault {
	// There is one segment unless a platform says otherwise, which is not
	// supported.
	if segment != 0 {
		return failf("Invalid PCI segment id: %d", segment)
	}
	return nil
}

func validateQueueSize(n uint16) *fault {
	if bits.OnesCount16(n) != 1 {
		return failf("Queue size must be a power of 2 no greater than 32768: %d", n)
	}
	return nil
}

func (d *diskConfig) validate(c *vmConfig) *fault {
	if d.RateLimitGroup != nil {
		known := false
		for _, g := range c.RateLimitGroups {
			known = known || g.ID == *d.RateLimitGroup
		}
		if !known {
			return errRateLimiterGroup
		}
	}
	if f := validateSegment(d.PCISegment); f != nil {
		return f
	}
	if d.NumQueues > uint64(c.CPUs.BootVCPUs) {
		return failf("Queue count (%d) must not exceed boot vCPUs (%d)", d.NumQueues, c.CPUs.BootVCPUs)
	}
	if f := validateQueueSize(d.QueueSize); f != nil {
		return f
	}
	if d.QueueSize <= 2 {
		return failf("Block queue size must be greater than 2: %d", d.QueueSize)
	}
	if d.RateLimiterConfig != nil && d.RateLimitGroup != nil {
		return errRateLimiterGroup
	}
	const maxSerial = 20
	if d.Serial != nil && len(*d.Serial) > maxSerial {
		return failf("Block device serial length (%d) exceeds maximum allowed length (%d)", len(*d.Serial), maxSerial)
	}
	return nil
}

func (n *netConfig) validate(c *vmConfig) *fault {
	if f := validateSegment(n.PCISegment); f != nil {
		return f
	}
	if n.NumQueues < 2 {
		return failf("Number of queues (%d) to virtio_net should be higher than 2", n.NumQueues)
	}
	if n.NumQueues/2 > uint64(c.CPUs.BootVCPUs) {
		return failf("Queue count (%d) must not exceed boot vCPUs (%d)", n.NumQueues, c.CPUs.BootVCPUs)
	}
	if f := validateQueueSize(n.QueueSize); f != nil {
		return f
	}
	if n.MTU != nil && *n.MTU < 1280 {
		return failf("Provided MTU %d is lower than 1280 (expected by VIRTIO specification)", *n.MTU)
	}
	if !n.OffloadCsum && (n.OffloadTSO || n.OffloadUFO) {
		return failf(`"offload_tso" and "offload_ufo" depend on "offload_csum"`)
	}
	return nil
}
