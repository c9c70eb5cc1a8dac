package conformance_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/vmm"
)

// The first line of --version is the program's name and BUILD_VERSION, which
// vmm.ping repeats (main in cloud-hypervisor/src/main.rs, vmm_ping in
// vmm/src/lib.rs).
func TestConformanceVersion(t *testing.T) {
	need(t)
	out, err := exec.Command(shared.engine.Path, "--version").Output()
	must(t, err)
	first, _, _ := strings.Cut(string(out), "\n")
	fields := strings.Fields(first)
	if len(fields) != 2 {
		t.Fatalf("--version says %q, want a name and a version", first)
	}
	h := startHost(t)
	pong, err := h.c.Ping(h.ctx())
	must(t, err)
	if pong.BuildVersion != fields[1] {
		t.Errorf("vmm.ping says version %q, --version %q", pong.BuildVersion, fields[1])
	}
	if len(strings.Split(pong.Version, ".")) != 3 {
		t.Errorf("vmm.ping says version %q, want three numbers", pong.Version)
	}
	if pong.PID != h.p.PID() {
		t.Errorf("vmm.ping says pid %d, want %d", pong.PID, h.p.PID())
	}
	if len(pong.Features) == 0 {
		t.Error("vmm.ping names no features")
	}
}

// An argument that nobody knows ends a program that is built with clap with
// code 2 (create_app in cloud-hypervisor/src/main.rs).
func TestConformanceUnknownArgument(t *testing.T) {
	need(t)
	err := exec.Command(shared.engine.Path, "--no-such-thing").Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 {
		t.Errorf("got %v, want exit code 2", err)
	}
}

// Without a VM. VmNotCreated and VmMissingConfig are answered with 404, all else
// with 500 (api_error_status_code in vmm/src/api/http/mod.rs); which of them it
// is, is in the methods of RequestHandler for Vmm in vmm/src/lib.rs.
func TestConformanceWithoutVM(t *testing.T) {
	need(t)
	h := startHost(t)
	disk, err := json.Marshal(vmm.DiskConfig{Path: "/nowhere", ImageType: vmm.ImageRaw})
	must(t, err)
	cases := []struct {
		method, op string
		body       string
		status     int
		messages   []string
	}{
		{"GET", "vm.info", "", 404, []string{"Error from API", "The VM info is not available", "VM is not created"}},
		{"PUT", "vm.boot", "", 404, []string{"Error from API", "The VM could not boot", "VM config is missing"}},
		{"PUT", "vm.pause", "", 500, []string{"Error from API", "The VM could not be paused", "VM is not running"}},
		{"PUT", "vm.resume", "", 500, []string{"Error from API", "The VM could not resume", "VM is not running"}},
		{"PUT", "vm.shutdown", "", 500, []string{"Error from API", "The VM could not shutdown", "VM is not running"}},
		{"PUT", "vm.reboot", "", 404, []string{"Error from API", "The VM could not reboot", "VM is not created"}},
		{"PUT", "vm.power-button", "", 500, []string{"Error from API", "Error triggering power button", "VM is not running"}},
		{"PUT", "vm.snapshot", `{"destination_url":"file:///tmp"}`, 500, []string{"Error from API", "The VM could not be snapshotted", "VM is not running"}},
		{"PUT", "vm.add-disk", string(disk), 404, []string{"Error from API", "The disk could not be added to the VM", "VM is not created"}},
		{"PUT", "vm.remove-device", `{"id":"x"}`, 404, []string{"Error from API", "The device could not be removed from the VM", "VM is not created"}},
	}
	for _, c := range cases {
		t.Run(c.op, func(t *testing.T) {
			var body []byte
			if c.body != "" {
				body = []byte(c.body)
			}
			a := h.want(c.method, "/api/v1/"+c.op, body, c.status)
			if diff := cmp.Diff(c.messages, a.messages(t)); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
		})
	}
	// vm_delete: nothing to delete is no error, and no content.
	a := h.want("PUT", "/api/v1/vm.delete", nil, http.StatusNoContent)
	if len(a.body) != 0 {
		t.Errorf("vm.delete answers %q, want nothing", a.body)
	}
}

// Requests that no endpoint takes (handle_http_request, handle_request of the
// EndpointHandlers, and micro_http's parser, whose answers are not JSON).
func TestConformanceBadRequests(t *testing.T) {
	need(t)
	h := startHost(t)
	cases := []struct {
		name, method, path string
		body               []byte
		status             int
		want               []string
	}{
		// HTTP_ROUTES.routes.get finds nothing.
		{"unknown endpoint", "GET", "/api/v1/vm.nothing", nil, 404, []string{`["Not Found"]`}},
		{"unknown root", "GET", "/vm.info", nil, 404, []string{`["Not Found"]`}},
		// The path is compared with its query (Uri::get_abs_path).
		{"query", "GET", "/api/v1/vmm.ping?x=1", nil, 404, []string{`["Not Found"]`}},
		// GetHandler and PutHandler refuse by default.
		{"GET of an action", "GET", "/api/v1/vm.boot", nil, 400, []string{`["Bad Request"]`}},
		{"PUT of vm.info", "PUT", "/api/v1/vm.info", nil, 400, []string{`["Bad Request"]`}},
		{"GET of vm.create", "GET", "/api/v1/vm.create", nil, 400, []string{`["Bad Request"]`}},
		// The default of handle_request for other methods.
		{"PATCH of an action", "PATCH", "/api/v1/vm.boot", nil, 400, nil},
		{"PATCH of vm.info", "PATCH", "/api/v1/vm.info", nil, 400, []string{`["Bad Request"]`}},
		// Method::try_from in micro_http knows three, and DELETE in revisions after the one
		// that v53.0 is locked to: then it is one of the other methods, without a body.
		{"POST", "POST", "/api/v1/vm.boot", nil, 400, []string{"Invalid HTTP Method"}},
		{"DELETE", "DELETE", "/api/v1/vm.delete", nil, 400, nil},
		// vm_action_put_handler and vm_action_put_handler_body.
		{"body where none belongs", "PUT", "/api/v1/vm.pause", []byte("{}"), 400, []string{`["Bad Request"]`}},
		{"no body where one belongs", "PUT", "/api/v1/vm.snapshot", nil, 400, []string{`["Bad Request"]`}},
		{"vm.create without a body", "PUT", "/api/v1/vm.create", nil, 400, nil},
		// HttpError::SerdeJsonDeserialize.
		{"not JSON", "PUT", "/api/v1/vm.create", []byte("{"), 400, []string{`["Failed to deserialize JSON",`}},
		{"no object", "PUT", "/api/v1/vm.remove-device", []byte("7"), 400, []string{`["Failed to deserialize JSON",`}},
		{"trailing bytes", "PUT", "/api/v1/vm.remove-device", []byte(`{"id":"x"} x`), 400, []string{`["Failed to deserialize JSON",`}},
		{"a field of the wrong type", "PUT", "/api/v1/vm.remove-device", []byte(`{"id":7}`), 400, []string{`["Failed to deserialize JSON",`}},
		{"a field missing", "PUT", "/api/v1/vm.remove-device", []byte(`{}`), 400, []string{`["Failed to deserialize JSON",`}},
		{"a negative size", "PUT", "/api/v1/vm.add-disk", []byte(`{"path":"/x","queue_size":-1}`), 400, []string{`["Failed to deserialize JSON",`}},
		{"a fraction", "PUT", "/api/v1/vm.add-disk", []byte(`{"path":"/x","queue_size":1.5}`), 400, []string{`["Failed to deserialize JSON",`}},
		{"null where a value belongs", "PUT", "/api/v1/vm.add-disk", []byte(`{"path":"/x","readonly":null}`), 400, []string{`["Failed to deserialize JSON",`}},
		{"an unknown image type", "PUT", "/api/v1/vm.add-disk", []byte(`{"path":"/x","image_type":"raw"}`), 400, []string{`["Failed to deserialize JSON",`}},
		{"an unknown restore mode", "PUT", "/api/v1/vm.restore", []byte(`{"source_url":"file:///x","memory_restore_mode":"CopyOnWrite"}`), 400, []string{`["Failed to deserialize JSON",`}},
		{"an unknown console mode", "PUT", "/api/v1/vm.create", []byte(`{"serial":{"mode":"Telnet"}}`), 400, []string{`["Failed to deserialize JSON",`}},
		{"memory without a size", "PUT", "/api/v1/vm.create", []byte(`{"memory":{}}`), 400, []string{`["Failed to deserialize JSON",`}},
		{"cpus without a maximum", "PUT", "/api/v1/vm.create", []byte(`{"cpus":{"boot_vcpus":1}}`), 400, []string{`["Failed to deserialize JSON",`}},
		{"a bad MAC address", "PUT", "/api/v1/vm.create", []byte(`{"net":[{"tap":"t","mac":"52:54:00:zz:00:00"}]}`), 400, []string{`["Failed to deserialize JSON",`}},
		// MAX_PAYLOAD_SIZE in micro_http/src/server.rs.
		{"a body of more than 51200 bytes", "PUT", "/api/v1/vm.create", bytes.Repeat([]byte(" "), 51201), 400, []string{"larger than the limit of 51200"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h.want(c.method, c.path, c.body, c.status, c.want...)
		})
	}
	// set_server and set_content_type in handle_http_request.
	a := h.want("GET", "/api/v1/vmm.ping", nil, 200)
	if a.header.Get("Server") != "Cloud Hypervisor API" || a.header.Get("Content-Type") != "application/json" {
		t.Errorf("headers %v", a.header)
	}
	// None of it made a VM.
	h.wantNoVM()
}

// vm_create stores a configuration and checks little of it; what can be done
// with a VM that is not booted is in the VmOwnership::None branches of
// vmm/src/lib.rs.
func TestConformanceCreated(t *testing.T) {
	need(t)
	h := startHost(t)
	f := newFiles(t)
	must(t, os.WriteFile(f.serial, []byte("of an earlier VM"), 0o600))
	cfg := f.config()
	raw, err := json.Marshal(cfg)
	must(t, err)
	// A field that nobody knows is ignored: VmConfig has no deny_unknown_fields.
	raw = append(raw[:len(raw)-1], `,"no_such_field":{"x":1}}`...)
	if a := h.want("PUT", "/api/v1/vm.create", raw, http.StatusNoContent); len(a.body) != 0 {
		t.Errorf("vm.create answers %q, want nothing", a.body)
	}
	// pre_create_console_devices in vmm/src/console_devices.rs: File::create.
	if st, err := os.Stat(f.serial); err != nil || st.Size() != 0 {
		t.Errorf("the console's file was not emptied: %v %v", st, err)
	}
	info := h.info()
	if info.State != vmm.StateCreated || info.MemoryActualSize != ramSize || info.DeviceTree != nil {
		t.Errorf("vm.info: state %s, %d bytes, devices %v", info.State, info.MemoryActualSize, info.DeviceTree)
	}
	wantDefaults(t, info.Config)

	t.Run("illegal moves", func(t *testing.T) {
		ctx := h.ctx()
		wantError(t, h.c.Create(ctx, cfg), 500, "The VM could not be created", "VM is already created")
		wantError(t, h.c.Restore(ctx, vmm.RestoreConfig{SourceURL: vmm.FileURL(f.dir)}), 500, "The VM could not be restored", "VM is already created")
		wantError(t, h.c.Pause(ctx), 500, "VM is not running")
		wantError(t, h.c.Resume(ctx), 500, "VM is not running")
		wantError(t, h.c.Shutdown(ctx), 500, "VM is not running")
		wantError(t, h.c.PowerButton(ctx), 500, "VM is not running")
		wantError(t, snapshotTo(h, f.dir), 500, "VM is not running")
		// take_owned_or(VmError::VmNotCreated) in vm_reboot.
		wantError(t, h.c.Reboot(ctx), 404, "VM is not created")
		h.wantState(vmm.StateCreated)
	})
	t.Run("cold plug", func(t *testing.T) {
		// vm_add_disk answers Ok(None), so the status is 204.
		disk, err := json.Marshal(vmm.DiskConfig{ID: "cold", Path: f.data, ImageType: vmm.ImageRaw})
		must(t, err)
		h.want("PUT", "/api/v1/vm.add-disk", disk, http.StatusNoContent)
		if got := len(h.info().Config.Disks); got != 3 {
			t.Errorf("%d disks after vm.add-disk, want 3", got)
		}
		_, err = h.c.AddDisk(h.ctx(), vmm.DiskConfig{ID: "cold", Path: f.data, ImageType: vmm.ImageRaw})
		wantError(t, err, 500, "Failed to validate config", "Identifier cold is not unique")
		must(t, h.c.RemoveDevice(h.ctx(), "cold"))
		wantError(t, h.c.RemoveDevice(h.ctx(), "cold"), 500, `No device with id "cold" to remove`)
		if got := len(h.info().Config.Disks); got != 2 {
			t.Errorf("%d disks after vm.remove-device, want 2", got)
		}
	})
	must(t, h.c.Delete(h.ctx()))
	h.wantNoVM()
	must(t, h.c.Delete(h.ctx()))
	// The VMM is as new.
	must(t, h.c.Create(h.ctx(), cfg))
}

// wantDefaults checks that a configuration comes back with what was left out
// (the serde defaults in vmm/src/vm_config.rs).
func wantDefaults(t *testing.T, c vmm.VMConfig) {
	t.Helper()
	if len(c.Disks) != 2 {
		t.Fatalf("%d disks, want 2", len(c.Disks))
	}
	d := c.Disks[1]
	if d.NumQueues != 1 || d.QueueSize != 128 {
		t.Errorf("disk %+v", d)
	}
	if c.RNG == nil || c.RNG.Src != "/dev/urandom" || c.Serial == nil || c.Serial.Mode != vmm.ConsoleFile {
		t.Errorf("rng %+v, serial %+v", c.RNG, c.Serial)
	}
}
