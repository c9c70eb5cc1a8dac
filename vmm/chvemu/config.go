package chvemu

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strings"

	"github.com/berth-cloud/berth/vmm"
)

// decode reads a request into a type of package vmm. Cloud Hypervisor refuses two
// things that encoding/json takes, and so they are refused here: null for a value,
// and the lack of a field that has no default. Both ignore unknown fields.
func decode(raw []byte, into any) error {
	if err := json.Unmarshal(raw, into); err != nil {
		return err
	}
	var doc any
	if err := json.Unmarshal(raw, &doc); err != nil {
		return err
	}
	return complete(doc, reflect.TypeOf(into).Elem())
}

// complete compares a value with the type that it was decoded into. A field
// without omitempty must be there.
func complete(v any, t reflect.Type) error {
	switch t.Kind() {
	case reflect.Pointer:
		return complete(v, t.Elem())
	case reflect.Slice:
		items, _ := v.([]any)
		for _, item := range items {
			if err := complete(item, t.Elem()); err != nil {
				return err
			}
		}
		return nil
	case reflect.Struct:
	default:
		return nil
	}
	doc, ok := v.(map[string]any)
	if !ok {
		return errors.New("an object is missing")
	}
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		value, there := doc[name]
		switch {
		case there && value == nil:
			return fmt.Errorf("field `%s` is null", name)
		case there:
			if err := complete(value, f.Type); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		case options == "":
			return fmt.Errorf("missing field `%s`", name)
		}
	}
	return nil
}

// checkConfig refuses what a configuration must not name, and fills in defaults.
func checkConfig(c *vmm.VMConfig) error {
	switch {
	case c.Serial == nil || c.Serial.Mode != vmm.ConsoleOff && c.Serial.Mode != vmm.ConsoleFile:
		return errors.New("the mode of the serial port is neither Off nor File")
	case c.Serial.Mode == vmm.ConsoleFile && c.Serial.File == "":
		return errors.New("the serial port has no file")
	case c.Console == nil || c.Console.Mode != vmm.ConsoleOff:
		return errors.New("the mode of the console is not Off")
	case len(c.Memory.Zones) > 1:
		return errors.New("more than one memory zone")
	}
	for i := range c.Disks {
		if err := checkDisk(&c.Disks[i]); err != nil {
			return err
		}
	}
	for i := range c.Net {
		n := &c.Net[i]
		if n.MAC == "" {
			continue // refused at a boot
		}
		hw, err := net.ParseMAC(n.MAC)
		if err != nil || len(hw) != 6 {
			return fmt.Errorf("invalid MAC address %q", n.MAC)
		}
		n.MAC = hw.String()
	}
	if c.RNG == nil {
		c.RNG = &vmm.RNGConfig{Src: "/dev/urandom"}
	}
	return nil
}

func checkDisk(d *vmm.DiskConfig) error {
	if d.ImageType != vmm.ImageRaw {
		return fmt.Errorf("image type %q of a disk is not Raw", d.ImageType)
	}
	if d.NumQueues == 0 {
		d.NumQueues = 1
	}
	if d.QueueSize == 0 {
		d.QueueSize = 128
	}
	return nil
}

// clone returns a copy whose disks and network devices can be changed.
func clone(c *vmm.VMConfig) *vmm.VMConfig {
	d := *c
	d.Disks, d.Net = slices.Clone(c.Disks), slices.Clone(c.Net)
	return &d
}

// diskIndex returns the index of the disk with an id, or -1.
func diskIndex(c *vmm.VMConfig, id string) int {
	return slices.IndexFunc(c.Disks, func(d vmm.DiskConfig) bool { return d.ID == id })
}

// memorySize is the size of the guest's RAM in bytes.
func memorySize(m vmm.MemoryConfig) uint64 {
	sum := m.Size
	for _, z := range m.Zones {
		sum += z.Size
	}
	return sum
}
