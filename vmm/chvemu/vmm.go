package chvemu

import (
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"

	"github.com/berth-cloud/berth/vmm"
)

// VMM holds at most one virtual machine. Its methods are the calls of the API;
// they run one after another, as on Cloud Hypervisor's single VMM thread.
type VMM struct {
	log    *slog.Logger
	events *monitor
	accel  string
	// lock is kept open by every QEMU, so that the socket's lock lasts until the
	// last of this VMM is gone.
	lock *os.File

	mu     sync.Mutex
	config *vmm.VMConfig
	serial *os.File // opened when the configuration comes, used by the machine
	vm     *vm      // nil until boot or restore
	exit   chan Exit
	ended  bool

	// watchers wait for machines to end by themselves.
	watchers sync.WaitGroup
}

// Exit says why the process is to end.
type Exit struct {
	Code int
	// Signal is the one that killed QEMU, to be passed on.
	Signal syscall.Signal
}

// vm is a virtual machine that was booted or restored.
type vm struct {
	state   vmm.State
	m       *machine
	mem     ram
	devices []device
}

// NewVMM returns a VMM without a virtual machine.
func NewVMM(log *slog.Logger, events *monitor, accel string, lock *os.File) *VMM {
	return &VMM{log: log, events: events, accel: accel, lock: lock, exit: make(chan Exit, 1)}
}

// create defines a VM (vm_create).
func (v *VMM) create(cfg vmm.VMConfig) error {
	if err := checkConfig(&cfg); err != nil {
		return badRequest{err}
	}
	if v.config != nil {
		return errAlreadyCreated
	}
	v.config = &cfg
	return v.openConsoles()
}

// openConsoles makes the file that the serial port writes to
// (pre_create_console_devices in vmm/src/console_devices.rs): what was in it is
// lost.
func (v *VMM) openConsoles() error {
	v.closeConsoles()
	if v.config.Serial.Mode != vmm.ConsoleFile {
		return nil
	}
	f, err := os.OpenFile(v.config.Serial.File, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return fmt.Errorf("error creating console devices: %w", err)
	}
	v.serial = f
	return nil
}

func (v *VMM) closeConsoles() {
	if v.serial != nil {
		v.serial.Close()
		v.serial = nil
	}
}

// boot starts the VM that was defined (vm_boot).
func (v *VMM) boot() error {
	if v.vm != nil {
		return errAlreadyCreated
	}
	v.events.event("vm", "booting")
	if v.config == nil {
		return errMissingConfig
	}
	if v.serial == nil {
		if err := v.openConsoles(); err != nil {
			return err
		}
	}
	if err := v.start(); err != nil {
		return err
	}
	v.events.event("vm", "booted")
	return nil
}

// pause stops the guest (Vm::pause).
func (v *VMM) pause() error {
	if v.vm == nil {
		return errNotRunning
	}
	v.events.event("vm", "pausing")
	if v.vm.state != vmm.StateRunning {
		return fmt.Errorf("cannot pause VM: InvalidStateTransition(%s, Paused)", v.vm.state)
	}
	if err := v.vm.m.command("stop", nil, nil); err != nil {
		return fmt.Errorf("cannot pause VM: %w", v.vm.m.explain(err))
	}
	v.vm.state = vmm.StatePaused
	v.events.event("vm", "paused")
	return nil
}

// resume runs a paused guest (Vm::resume).
func (v *VMM) resume() error {
	if v.vm == nil {
		return errNotRunning
	}
	v.events.event("vm", "resuming")
	if v.vm.state != vmm.StatePaused {
		return fmt.Errorf("cannot resume VM: InvalidStateTransition(%s, Running)", v.vm.state)
	}
	if err := v.vm.m.command("cont", nil, nil); err != nil {
		return fmt.Errorf("cannot resume VM: %w", v.vm.m.explain(err))
	}
	v.vm.state = vmm.StateRunning
	v.events.event("vm", "resumed")
	return nil
}

// shutdown cuts the power (vm_shutdown). The definition stays.
func (v *VMM) shutdown() error {
	if v.vm == nil {
		return errNotRunning
	}
	v.stop()
	v.events.event("vm", "shutdown")
	return nil
}

// stop ends the machine and drops the VM.
func (v *VMM) stop() {
	vm := v.vm
	v.vm = nil // the watcher sees by this that it was meant
	v.closeConsoles()
	if vm.state == vmm.StateRunning {
		// Writes in flight are finished before QEMU is killed.
		_ = vm.m.command("stop", nil, nil) // or it is dead already
	}
	vm.m.kill()
}

// delete forgets the VM (vm_delete).
func (v *VMM) delete() error {
	if v.config == nil {
		return nil
	}
	if v.vm != nil {
		if err := v.shutdown(); err != nil {
			return err
		}
	}
	v.closeConsoles()
	v.config = nil
	v.events.event("vm", "deleted")
	return nil
}

// shutdownVMM deletes the VM and lets the process end (vmm_shutdown).
func (v *VMM) shutdownVMM() error {
	if err := v.delete(); err != nil {
		return err
	}
	v.events.event("vmm", "shutdown")
	v.end(Exit{})
	return nil
}

func (v *VMM) end(e Exit) {
	if !v.ended {
		v.ended = true
		v.exit <- e
	}
}

// reboot cuts the power and boots anew (vm_reboot).
func (v *VMM) reboot() error {
	v.events.event("vm", "rebooting")
	if v.vm == nil {
		return errNotCreated
	}
	v.stop()
	if err := v.openConsoles(); err != nil {
		return err
	}
	if err := v.start(); err != nil {
		return err
	}
	v.events.event("vm", "rebooted")
	return nil
}

// powerButton presses the ACPI power button (vm_power_button).
func (v *VMM) powerButton() error {
	if v.vm == nil {
		return errNotRunning
	}
	if err := v.vm.m.command("system_powerdown", nil, nil); err != nil {
		return v.vm.m.explain(err)
	}
	return nil
}

// watch waits for a machine to end. If this VMM did not end it, the guest did, or
// QEMU failed (the Exit, Reset and GuestExit events of control_loop in
// vmm/src/lib.rs).
func (v *VMM) watch(m *machine) {
	v.watchers.Go(func() {
		<-m.done
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.vm == nil || v.vm.m != m {
			return
		}
		reason := m.shutdownReason()
		switch {
		case reason == "guest-reset":
			v.log.Info("the guest rebooted")
			if err := v.reboot(); err != nil {
				v.log.Error("cannot reboot the VM", "error", err)
				v.end(Exit{Code: 1})
			}
		case reason != "" && m.status().ExitStatus() == 0:
			v.log.Info("the guest ended", "reason", reason)
			_ = v.shutdownVMM() // cannot fail once the machine is gone
		default:
			status := m.status()
			v.log.Error("QEMU ended by itself", "exit_code", status.ExitStatus(), "signal", int(status.Signal()), "text", m.stderr.last())
			v.stop()
			if status.Signaled() {
				v.end(Exit{Code: 1, Signal: status.Signal()})
			} else {
				v.end(Exit{Code: 1})
			}
		}
	})
}

// Close ends the machine, if there is one, and waits for what watches it.
func (v *VMM) Close() {
	v.mu.Lock()
	v.ended = true
	if v.vm != nil {
		v.stop()
	}
	v.closeConsoles()
	v.mu.Unlock()
	v.watchers.Wait()
}
