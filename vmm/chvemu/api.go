package chvemu

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/berth-cloud/berth/vmm"
)

// The routes and the form of their answers, as in vmm/src/api/http/mod.rs and
// http_endpoint.rs of Cloud Hypervisor v53.0.

const apiRoot = "/api/v1/"

// maxBody is the largest body that is read (MAX_PAYLOAD_SIZE in micro_http).
const maxBody = 51200

// apiVersion is the version of Cloud Hypervisor whose API this is.
const apiVersion = "53.0.0"

// BuildVersion is what --version and vmm.ping say.
const BuildVersion = "v53.0"

// endpoint is one route: which method it has, whether it takes a body, and what
// it does. The call returns a value for the body of the answer, or nil for none.
type endpoint struct {
	method string
	body   bool
	failed string // the message that says what could not be done (ApiError)
	call   func(v *VMM, body []byte) (any, error)
}

func get(failed string, call func(*VMM) (any, error)) endpoint {
	return endpoint{method: http.MethodGet, failed: failed, call: func(v *VMM, _ []byte) (any, error) { return call(v) }}
}

func put(failed string, call func(*VMM) error) endpoint {
	return endpoint{method: http.MethodPut, failed: failed, call: func(v *VMM, _ []byte) (any, error) { return nil, call(v) }}
}

// send is put with a body of type T.
func send[T any](failed string, call func(*VMM, T) error) endpoint {
	return query(failed, func(v *VMM, in T) (any, error) { return nil, call(v, in) })
}

// query is send with an answer.
func query[T any](failed string, call func(*VMM, T) (any, error)) endpoint {
	return endpoint{method: http.MethodPut, body: true, failed: failed, call: func(v *VMM, body []byte) (any, error) {
		var in T
		if err := decode(body, &in); err != nil {
			return nil, badRequest{err}
		}
		return call(v, in)
	}}
}

var endpoints = map[string]endpoint{
	"vmm.ping":         get("", (*VMM).ping),
	"vmm.shutdown":     put("The VMM could not shutdown", (*VMM).shutdownVMM),
	"vm.create":        send("The VM could not be created", (*VMM).create),
	"vm.info":          get("The VM info is not available", (*VMM).info),
	"vm.boot":          put("The VM could not boot", (*VMM).boot),
	"vm.delete":        put("The VM could not be deleted", (*VMM).delete),
	"vm.pause":         put("The VM could not be paused", (*VMM).pause),
	"vm.power-button":  put("Error triggering power button", (*VMM).powerButton),
	"vm.reboot":        put("The VM could not reboot", (*VMM).reboot),
	"vm.resume":        put("The VM could not resume", (*VMM).resume),
	"vm.shutdown":      put("The VM could not shutdown", (*VMM).shutdown),
	"vm.restore":       send("The VM could not be restored", (*VMM).restore),
	"vm.snapshot":      send("The VM could not be snapshotted", (*VMM).snapshot),
	"vm.add-disk":      query("The disk could not be added to the VM", (*VMM).addDisk),
	"vm.remove-device": send("The device could not be removed from the VM", (*VMM).removeDevice),
}

// ServeHTTP answers one request. Requests are answered one at a time, as by
// Cloud Hypervisor's one HTTP thread and one VMM thread.
func (v *VMM) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Server", "Cloud Hypervisor API")
	w.Header().Set("Content-Type", "application/json")
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		refuse(w, http.StatusBadRequest, "Request payload is larger than the limit of 51200 bytes")
		return
	}
	// The path is compared with its query, so any query makes it unknown.
	name, ok := strings.CutPrefix(r.RequestURI, apiRoot)
	e, known := endpoints[name]
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodPut && r.Method != http.MethodPatch:
		refuse(w, http.StatusBadRequest, "Invalid HTTP Method")
		return
	case !ok || !known:
		refuse(w, http.StatusNotFound, "Not Found")
		return
	case r.Method != e.method || len(body) > 0 != e.body:
		refuse(w, http.StatusBadRequest, "Bad Request")
		return
	}
	v.mu.Lock()
	value, err := e.call(v, body)
	v.mu.Unlock()
	switch {
	case err != nil:
		v.log.Info("API error", "endpoint", name, "error", err)
		status := statusOf(err)
		if status == http.StatusBadRequest {
			refuse(w, status, "Failed to deserialize JSON", err.Error())
			return
		}
		refuse(w, status, "Error from API", e.failed, err.Error())
	case value != nil:
		answer(w, http.StatusOK, value)
	case name == "vmm.shutdown":
		w.WriteHeader(http.StatusOK)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

func answer(w http.ResponseWriter, status int, value any) {
	raw, err := json.Marshal(value)
	if err != nil {
		panic(err) // the answers are plain structs and maps
	}
	w.WriteHeader(status)
	_, _ = w.Write(raw) // the client may have gone
}

func refuse(w http.ResponseWriter, status int, messages ...string) { answer(w, status, messages) }

func (v *VMM) ping() (any, error) {
	return vmm.Pong{BuildVersion: BuildVersion, Version: apiVersion, PID: os.Getpid(), Features: []string{v.accel}}, nil
}

// info describes the VM (vm_info).
func (v *VMM) info() (any, error) {
	if v.config == nil {
		return nil, errNotCreated
	}
	info := vmm.VMInfo{Config: *v.config, State: vmm.StateCreated, MemoryActualSize: memorySize(v.config.Memory)}
	if v.vm == nil {
		return info, nil
	}
	info.State = v.vm.state
	info.DeviceTree = map[string]vmm.DeviceNode{}
	for _, d := range v.vm.devices {
		transport := "_virtio-pci-" + d.ID
		info.DeviceTree[transport] = vmm.DeviceNode{ID: transport, Children: []string{d.ID}, PCIBDF: d.bdf()}
		info.DeviceTree[d.ID] = vmm.DeviceNode{ID: d.ID, Parent: transport, Children: []string{}}
	}
	return info, nil
}
