package chvemu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// QEMU saves the state of all devices, without RAM, by the command
// xen-save-devices-state. The name is history: nothing in it is Xen's. What it
// writes is a migration stream that lacks two sections which every other stream
// has, and which loading one insists on: the configuration, that is the machine
// type's name, at the beginning, and a description at the end. They are put in
// here, and the machine is loaded like one that is migrated to.
//
// The format is that of migration/savevm.c in QEMU's source.

const (
	streamMagic   = 0x5145564d // "QEVM"
	streamVersion = 3

	sectionEnd           = 0x00
	sectionDescription   = 0x06
	sectionConfiguration = 0x07
)

// completeStream makes a stream that can be loaded out of one that
// xen-save-devices-state wrote on a machine type.
func completeStream(raw []byte, machine string) ([]byte, error) {
	const header = 8
	if len(raw) < header+2 || binary.BigEndian.Uint32(raw) != streamMagic || binary.BigEndian.Uint32(raw[4:]) != streamVersion {
		return nil, errors.New("QEMU wrote no device state")
	}
	if raw[header] == sectionConfiguration {
		return nil, errors.New("QEMU wrote a device state with a configuration, which this chvemu does not expect")
	}
	if raw[len(raw)-1] != sectionEnd {
		return nil, errors.New("QEMU wrote a device state without an end")
	}
	const description = "{}"
	out := make([]byte, 0, len(raw)+len(machine)+len(description)+10)
	out = append(out, raw[:header]...)
	out = append(out, sectionConfiguration)
	out = binary.BigEndian.AppendUint32(out, uint32(len(machine)))
	out = append(out, machine...)
	out = append(out, raw[header:]...)
	out = append(out, sectionDescription)
	out = binary.BigEndian.AppendUint32(out, uint32(len(description)))
	return append(out, description...), nil
}

// stateSet is the number of the descriptor set that a state is written to.
const stateSet = 101

// maxDeviceState bounds what is read back. It is some hundred kilobytes.
const maxDeviceState = 64 << 20

// saveDevices returns the state of the devices of a machine that is stopped. It
// changes nothing: it may be called again, and the machine may go on.
func (m *machine) saveDevices() ([]byte, error) {
	f, err := anonymousFile("device-state", nil)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// QEMU looks for a descriptor that is open for writing only.
	w, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	err = m.command("add-fd", map[string]any{"fdset-id": stateSet}, nil, w)
	w.Close()
	if err != nil {
		return nil, err
	}
	err = m.command("xen-save-devices-state", map[string]any{
		"filename": fmt.Sprintf("/dev/fdset/%d", stateSet),
		// Otherwise QEMU gives up its images, for another to take over.
		"live": false,
	}, nil)
	if err := errors.Join(err, m.command("remove-fd", map[string]any{"fdset-id": stateSet}, nil)); err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() > maxDeviceState {
		return nil, fmt.Errorf("a device state of %d bytes", st.Size())
	}
	raw := make([]byte, st.Size())
	if _, err := f.ReadAt(raw, 0); err != nil {
		return nil, err
	}
	return completeStream(raw, machineType)
}

// load feeds a saved state to a machine that was started to wait for one.
func (m *machine) load(state []byte) error {
	f, err := anonymousFile("device-state", state)
	if err != nil {
		return err
	}
	defer f.Close()
	// An event reports the end, so it need not be polled for.
	if err := m.command("migrate-set-capabilities", map[string]any{
		"capabilities": []map[string]any{{"capability": "events", "state": true}},
	}, nil); err != nil {
		return err
	}
	if err := m.command("getfd", map[string]string{"fdname": "state"}, nil, f); err != nil {
		return err
	}
	if err := m.command("migrate-incoming", map[string]string{"uri": "fd:state"}, nil); err != nil {
		return err
	}
	return m.awaitLoad()
}

func (m *machine) awaitLoad() error {
	select {
	case status := <-m.migrated:
		if status == "completed" {
			return nil
		}
		return fmt.Errorf("QEMU did not take the saved state (%s): %s", status, m.stderr.last())
	case <-m.done:
		return fmt.Errorf("QEMU did not take the saved state: %s", m.stderr.last())
	}
}

// anonymousFile puts bytes into a file without a name, positioned at its start.
func anonymousFile(name string, raw []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(raw)
	if err == nil {
		_, err = f.Seek(0, 0)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
