package vmm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

// ConfigEdit is a snapshot's config.json opened for editing. What it does not
// know it keeps, so that a config that an engine wrote in full goes back to it
// in full, unless Distrust was called.
type ConfigEdit struct {
	doc map[string]any
}

// OpenConfig reads the config.json of a snapshot directory.
func OpenConfig(path string) (*ConfigEdit, error) {
	raw, err := readAtMost(path, maxConfig)
	if err != nil {
		return nil, fmt.Errorf("open config: %w", err)
	}
	e, err := ParseConfig(raw)
	if err != nil {
		return nil, fmt.Errorf("open config %s: %w", path, err)
	}
	return e, nil
}

// ParseConfig reads a config.json.
func ParseConfig(raw []byte) (*ConfigEdit, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber() // sizes are 64 bits wide and must not become floats
	e := &ConfigEdit{}
	if err := dec.Decode(&e.doc); err != nil {
		return nil, err
	}
	if e.doc == nil {
		return nil, fmt.Errorf("config is null")
	}
	return e, nil
}

// Bytes returns the edited JSON.
func (e *ConfigEdit) Bytes() ([]byte, error) { return json.Marshal(e.doc) }

// Config decodes the typed view.
func (e *ConfigEdit) Config() (VMConfig, error) {
	var c VMConfig
	raw, err := e.Bytes()
	if err != nil {
		return c, err
	}
	return c, json.Unmarshal(raw, &c)
}

// SetZone sets the file behind a memory zone and how it is mapped.
func (e *ConfigEdit) SetZone(id, file string, shared bool) error {
	memory, ok := e.doc["memory"].(map[string]any)
	if !ok {
		return fmt.Errorf("config has no memory")
	}
	zone, err := find(memory, "zones", "id", id)
	if err != nil {
		return err
	}
	zone["file"], zone["shared"] = file, shared
	return nil
}

// SetPayload sets the kernel and the initramfs. Cloud Hypervisor opens the
// initramfs at a restore too, although it loads neither then (Vm::new in
// vmm/src/vm.rs), and both when the guest reboots.
func (e *ConfigEdit) SetPayload(kernel, initramfs string) error {
	payload, ok := e.doc["payload"].(map[string]any)
	if !ok {
		return fmt.Errorf("config has no payload")
	}
	payload["kernel"], payload["initramfs"] = kernel, initramfs
	return nil
}

// SetDiskPath sets the image of a disk.
func (e *ConfigEdit) SetDiskPath(id, path string) error {
	disk, err := find(e.doc, "disks", "id", id)
	if err != nil {
		return err
	}
	disk["path"] = path
	return nil
}

// SetRNG sets the source of the guest's entropy.
func (e *ConfigEdit) SetRNG(src string) error {
	rng, ok := e.doc["rng"].(map[string]any)
	if !ok {
		return fmt.Errorf("config has no rng")
	}
	rng["src"] = src
	return nil
}

// SetNetTap sets the tap of a network device. It also takes host_mac out, which
// an unprivileged VMM could not set.
func (e *ConfigEdit) SetNetTap(id, tap string) error {
	net, err := find(e.doc, "net", "id", id)
	if err != nil {
		return err
	}
	net["tap"] = tap
	delete(net, "host_mac")
	return nil
}

// SetSerialFile sends the serial port's output to a file.
func (e *ConfigEdit) SetSerialFile(path string) {
	e.doc["serial"] = map[string]any{"mode": ConsoleFile, "file": path}
}

// find returns the object of a list whose key has the value.
func find(doc map[string]any, list, key, value string) (map[string]any, error) {
	items, _ := doc[list].([]any)
	i := slices.IndexFunc(items, func(item any) bool {
		o, ok := item.(map[string]any)
		return ok && o[key] == value
	})
	if i < 0 {
		return nil, fmt.Errorf("config has no %s with %s %q", list, key, value)
	}
	return items[i].(map[string]any), nil
}

// eachFile calls fn for each file that the configuration names, with a name for
// it and whether the VMM writes to it, and has the configuration name what fn
// returns.
func (e *ConfigEdit) eachFile(fn func(path, name string, write bool) (string, error)) error {
	replace := func(o map[string]any, key, name string, write bool) error {
		path, _ := o[key].(string)
		if path == "" {
			return nil
		}
		to, err := fn(path, name, write)
		if err != nil {
			return err
		}
		o[key] = to
		return nil
	}
	memory, _ := e.doc["memory"].(map[string]any)
	zones, _ := memory["zones"].([]any)
	for i, item := range zones {
		if zone, ok := item.(map[string]any); ok {
			if err := replace(zone, "file", fmt.Sprintf("ram%d", i), zone["shared"] == true); err != nil {
				return err
			}
		}
	}
	disks, _ := e.doc["disks"].([]any)
	for i, item := range disks {
		if disk, ok := item.(map[string]any); ok {
			if err := replace(disk, "path", fmt.Sprintf("disk%d", i), disk["readonly"] != true); err != nil {
				return err
			}
		}
	}
	payload, _ := e.doc["payload"].(map[string]any)
	for _, key := range []string{"kernel", "initramfs"} {
		if err := replace(payload, key, key, false); err != nil {
			return err
		}
	}
	serial, _ := e.doc["serial"].(map[string]any)
	return replace(serial, "file", "serial", true)
}
