package conformance_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-cloud/berth/vmm"
	"github.com/berth-cloud/berth/vmm/conformance"
)

// wantExit waits for the end of a VMM's process and checks its code, and that it
// took its socket with it (main in cloud-hypervisor/src/main.rs).
func wantExit(t *testing.T, h *host, code int) {
	t.Helper()
	must(t, h.p.Wait(h.ctx()))
	got, signal, known := h.p.Exit()
	if !known || got != code || signal != 0 {
		t.Errorf("the VMM ended with code %d, signal %d, known %t; want code %d", got, signal, known, code)
	}
	if _, err := os.Lstat(vmm.SocketPath(h.dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// vmm.shutdown deletes the VM, answers, and ends the process (VmmShutdown in
// vmm/src/api/mod.rs answers before control_loop in vmm/src/lib.rs leaves; its
// handler in http_endpoint.rs answers with 200).
func TestConformanceShutdownVMM(t *testing.T) {
	need(t)
	t.Run("without a VM", func(t *testing.T) {
		h := startHost(t)
		h.want("PUT", "/api/v1/vmm.shutdown", nil, 200)
		wantExit(t, h, 0)
	})
	t.Run("with a running VM", func(t *testing.T) {
		h, _, g := restoreGolden(t)
		g.up()
		must(t, h.c.ShutdownVMM(h.ctx()))
		wantExit(t, h, 0)
	})
}

// SIGTERM ends it in the same way (signal_handler in vmm/src/lib.rs).
func TestConformanceTerminate(t *testing.T) {
	need(t)
	h, _, g := restoreGolden(t)
	g.up()
	must(t, h.p.Terminate(h.ctx()))
	wantExit(t, h, 0)
}

// The power button reaches the guest as an ACPI event (vm_power_button in
// vmm/src/lib.rs), and when the guest powers off the process ends (GuestExit in
// control_loop in vmm/src/lib.rs).
func TestConformancePowerButton(t *testing.T) {
	need(t)
	h, _, g := restoreGolden(t)
	if r := g.up(); !r.Button {
		t.Fatal("the kernel does not drive the power button: it lacks CONFIG_ACPI_BUTTON, and no button.ko lies beside it")
	}
	must(t, h.c.PowerButton(h.ctx()))
	wantExit(t, h, 0)
	if r, _ := g.last(); r.Pressed != 1 {
		t.Errorf("the guest was told %d times", r.Pressed)
	}
}

// A guest that powers off by itself.
func TestConformanceGuestPoweroff(t *testing.T) {
	need(t)
	h, _, g := restoreGolden(t)
	g.up()
	g.order("poweroff")
	wantExit(t, h, 0)
}

// A guest that reboots is booted again from the configuration, by the same VMM
// (Reset in control_loop, vm_reboot in vmm/src/lib.rs). One that was restored
// has its RAM from the configuration too, so here it gets a file of its own.
func TestConformanceGuestReboot(t *testing.T) {
	need(t)
	g := theGolden(t)
	f, dir := child(t, g, func(e *vmm.ConfigEdit, f files) {
		copySparse(t, f.ram, g.ram)
		must(t, e.SetZone(zoneID, f.ram, true))
	})
	h := startHost(t)
	guest := restore(t, h, f, dir)
	first := guest.up()
	guest.order("reboot")
	guest.await("another boot", func(r conformance.Report) bool { return r.Boot != first.Boot })
	guest.tag("rebooted")
	h.wantState(vmm.StateRunning)
	wantEvents(t, h, "vm/rebooting", "vm/rebooted")
}

// What a reboot opens must be there: where it is not, the VMM ends with an error
// (VmReboot in control_loop in vmm/src/lib.rs), after it told of the reboot.
func TestConformanceGuestRebootRefused(t *testing.T) {
	need(t)
	g := theGolden(t)
	f, dir := child(t, g, func(e *vmm.ConfigEdit, f files) {
		must(t, e.SetPayload(shared.kernel, newFile(t, filepath.Join(f.dir, "initramfs"), 0, "")))
	})
	h := startHost(t)
	guest := restore(t, h, f, dir)
	guest.up()
	must(t, os.Remove(filepath.Join(f.dir, "initramfs")))
	guest.order("reboot")
	must(t, h.p.Wait(h.ctx()))
	if code, signal, known := h.p.Exit(); !known || code != 1 || signal != 0 {
		t.Errorf("the VMM ended with code %d, signal %d, known %t; want code 1", code, signal, known)
	}
	wantEvents(t, h, "vm/rebooting")
}

// A VMM that is told to ends when its guest reboots, however the reboot would
// have ended, and says so. The console's file is made anew at a reboot; what the
// guest wrote last to it is kept.
func TestConformanceEndOnReboot(t *testing.T) {
	need(t)
	h := startHost(t)
	serial := vmm.SerialPath(h.dir)
	f, dir := child(t, theGolden(t), func(e *vmm.ConfigEdit, _ files) { e.SetSerialFile(serial) })
	f.serial = serial
	guest := restore(t, h, f, dir)
	h.p.Supervise()
	first := guest.up()
	if h.p.Rebooted() {
		t.Error("a guest that runs is taken for one that rebooted")
	}
	eventually(t, "the console's end is kept", func() bool { return strings.Contains(h.p.LastConsole(), first.Boot) })
	guest.order("reboot")
	must(t, h.p.Wait(h.ctx()))
	if !h.p.Rebooted() {
		t.Error("the VMM ended, and its guest's reboot is not known")
	}
	if last := h.p.LastConsole(); !strings.Contains(last, first.Boot) {
		t.Errorf("its console is said to have ended with %q", last)
	}
}

// SIGKILL at every step leaves nothing that stops the next VMM on the same paths:
// not the socket, not its lock (acquire_api_socket_lock in
// vmm/src/api/http/mod.rs), not the locks on images.
func TestConformanceKilled(t *testing.T) {
	need(t)
	g := theGolden(t)
	f, dir := child(t, g, nil)
	runtime := filepath.Join(shortDir(t), "r")
	source := vmm.RestoreConfig{SourceURL: vmm.FileURL(dir)}
	steps := []struct {
		name string
		do   func(t *testing.T, h *host)
	}{
		{"started", func(*testing.T, *host) {}},
		{"created", func(t *testing.T, h *host) { must(t, h.c.Create(h.ctx(), f.config())) }},
		{"restored", func(t *testing.T, h *host) { must(t, h.c.Restore(h.ctx(), source)) }},
		{"running", func(t *testing.T, h *host) { restore(t, h, f, dir).up() }},
		{"paused", func(t *testing.T, h *host) {
			restore(t, h, f, dir).up()
			must(t, h.c.Pause(h.ctx()))
		}},
		{"saved", func(t *testing.T, h *host) {
			restore(t, h, f, dir).up()
			must(t, h.c.Pause(h.ctx()))
			must(t, snapshotTo(h, mkdir(t, f.dir, "saved")))
		}},
		{"shut down", func(t *testing.T, h *host) {
			restore(t, h, f, dir).up()
			must(t, h.c.Shutdown(h.ctx()))
		}},
	}
	for _, s := range steps {
		t.Run(s.name, func(t *testing.T) {
			must(t, os.RemoveAll(f.serial))
			h := startHostIn(t, runtime)
			s.do(t, h)
			h.kill()
			if _, signal, known := h.p.Exit(); !known || signal != syscall.SIGKILL {
				t.Errorf("the VMM ended by signal %d (known: %t), want SIGKILL", signal, known)
			}
			again := startHostIn(t, runtime)
			restore(t, again, f, dir).await("its memory", func(r conformance.Report) bool { return r.Boot == g.report.Boot })
			again.kill()
		})
	}

	// In the middle of a call, at moments that are spread over its length.
	for _, call := range []string{"restore", "snapshot"} {
		t.Run("during "+call, func(t *testing.T) {
			for i := range 6 {
				h := startHostIn(t, runtime)
				work := func() { _ = h.c.Restore(h.ctx(), source) }
				if call == "snapshot" {
					must(t, h.c.Restore(h.ctx(), source))
					to := t.TempDir()
					work = func() { _ = snapshotTo(h, to) }
				}
				ended := make(chan struct{})
				go func() { defer close(ended); work() }()
				select {
				case <-ended:
				case <-time.After(time.Duration(i) * 12 * time.Millisecond):
				}
				h.kill()
				<-ended
			}
			again := startHostIn(t, runtime)
			restore(t, again, f, dir).await("its memory", func(r conformance.Report) bool { return r.Boot == g.report.Boot })
			again.kill()
		})
	}
}

// A second VMM on a socket in use ends with an error and leaves the first alone
// (ApiSocketInUse in vmm/src/api/http/mod.rs; main in cloud-hypervisor/src/main.rs
// removes the socket only when it ran).
func TestConformanceSocketInUse(t *testing.T) {
	need(t)
	h := startHost(t)
	cmd := exec.Command(shared.engine.Path, "--api-socket", "path="+vmm.SocketPath(h.dir))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("the second VMM: %v, want exit code 1", err)
	}
	if !strings.Contains(string(out), "already in use") {
		t.Errorf("the second VMM says %q", out)
	}
	pong, err := h.c.Ping(h.ctx())
	must(t, err)
	if pong.PID != h.p.PID() {
		t.Errorf("process %d answers, want %d", pong.PID, h.p.PID())
	}
}

// A VMM is found again by its runtime directory, by another process as much as
// by this one.
func TestConformanceAdopt(t *testing.T) {
	need(t)
	h, _, g := restoreGolden(t)
	before := g.up()
	p, err := vmm.Adopt(h.ctx(), h.dir)
	must(t, err)
	if p.PID() != h.p.PID() || p.StartTime() != h.p.StartTime() || !p.Adopted() {
		t.Errorf("adopted process %d of %d, want %d of %d", p.PID(), p.StartTime(), h.p.PID(), h.p.StartTime())
	}
	info, err := p.Client().Info(h.ctx())
	must(t, err)
	if info.State != vmm.StateRunning {
		t.Errorf("the adopted VM is %s", info.State)
	}
	g.after(before)
	must(t, p.Kill(h.ctx()))
	if _, _, known := p.Exit(); known {
		t.Error("the exit status of an adopted process is told as known")
	}
	if _, err := vmm.Adopt(h.ctx(), h.dir); !errors.Is(err, vmm.ErrGone) {
		t.Errorf("adopting a VMM that is gone: %v, want ErrGone", err)
	}
}

// The event monitor's stream: indented JSON objects with an empty line after
// each (start_event_monitor_thread in vmm/src/lib.rs, event_log in
// event_monitor/src/lib.rs).
func TestConformanceEvents(t *testing.T) {
	need(t)
	h, _, g := restoreGolden(t)
	before := g.up()
	must(t, h.c.Pause(h.ctx()))
	must(t, snapshotTo(h, t.TempDir()))
	must(t, h.c.Resume(h.ctx()))
	g.after(before)
	// Not vmm.shutdown: the thread that writes events is not waited for at the
	// end (main in cloud-hypervisor/src/main.rs), so the last may be lost.
	must(t, h.c.Delete(h.ctx()))
	wantEvents(t, h,
		"vmm/starting", "vm/restoring", "vm/restored", "vm/resuming", "vm/resumed",
		"vm/pausing", "vm/paused", "vm/snapshotting", "vm/snapshotted", "vm/resuming", "vm/resumed",
		"vm/shutdown", "vm/deleted")
	raw, err := os.ReadFile(h.p.EventsPath())
	must(t, err)
	pieces := bytes.Split(bytes.TrimSuffix(raw, []byte("\n\n")), []byte("\n\n"))
	for _, piece := range pieces {
		var e map[string]any
		must(t, json.Unmarshal(piece, &e))
		for _, key := range []string{"timestamp", "source", "event", "properties"} {
			if _, ok := e[key]; !ok {
				t.Errorf("an event lacks %q: %s", key, piece)
			}
		}
		if !bytes.Contains(piece, []byte("\n  \"source\": ")) {
			t.Errorf("an event is not indented: %s", piece)
		}
	}
	events, err := vmm.NewEventLog(h.p.EventsPath()).Next()
	must(t, err)
	if !slices.IsSortedFunc(events, func(a, b vmm.Event) int { return int(a.Timestamp - b.Timestamp) }) {
		t.Error("the events' times go back")
	}
}

// wantEvents checks that events happened in this order, with or without others
// in between.
func wantEvents(t *testing.T, h *host, want ...string) {
	t.Helper()
	log := vmm.NewEventLog(h.p.EventsPath())
	left := want
	eventually(t, fmt.Sprintf("events %v in this order", want), func() bool {
		events, err := log.Next()
		must(t, err)
		for _, e := range events {
			if len(left) > 0 && left[0] == e.Source+"/"+e.Event {
				left = left[1:]
			}
		}
		return len(left) == 0
	})
}

// awaitEvent waits for an event with certain properties.
func awaitEvent(t *testing.T, h *host, source, event string, ok func(map[string]string) bool) {
	t.Helper()
	log := vmm.NewEventLog(h.p.EventsPath())
	eventually(t, "event "+source+"/"+event, func() bool {
		events, err := log.Next()
		must(t, err)
		return slices.ContainsFunc(events, func(e vmm.Event) bool {
			return e.Source == source && e.Event == event && ok(e.Properties)
		})
	})
}
