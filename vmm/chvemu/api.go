package chvemu

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
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

// jsonError marks a body that is not what the endpoint takes.
type jsonError struct{ error }

func badJSON(err error) error { return jsonError{err} }

// endpoint is one route: which method it has, whether it takes a body, and what
// it does. The call returns a value for the body of the answer, or nil for none.
type endpoint struct {
	get    bool
	body   bool
	failed string // the message that says what could not be done (ApiError)
	call   func(v *VMM, body []byte) (any, error)
}

func act(f func(*VMM) error) func(*VMM, []byte) (any, error) {
	return func(v *VMM, _ []byte) (any, error) { return nil, f(v) }
}

func actOn(f func(*VMM, []byte) error) func(*VMM, []byte) (any, error) {
	return func(v *VMM, body []byte) (any, error) { return nil, f(v, body) }
}

// lacking refuses an endpoint that Cloud Hypervisor has, after the checks of the
// VM's state that it would make.
func lacking(name string, needs func(*VMM) error) func(*VMM, []byte) (any, error) {
	return func(v *VMM, body []byte) (any, error) {
		if r, _ := parseObject(body); r.err != nil {
			return nil, badJSON(r.err)
		}
		if err := needs(v); err != nil {
			return nil, err
		}
		return nil, unsupported(name)
	}
}

func needsConfig(v *VMM) error {
	if v.config == nil {
		return errNotCreated
	}
	return nil
}

func needsNothing(*VMM) error { return nil }

var endpoints = map[string]endpoint{
	"vmm.ping":     {get: true, call: func(v *VMM, _ []byte) (any, error) { return v.ping(), nil }},
	"vmm.shutdown": {failed: "The VMM could not shutdown", call: act((*VMM).shutdownVMM)},

	"vm.create": {body: true, failed: "The VM could not be created", call: actOn((*VMM).create)},
	"vm.info": {get: true, failed: "The VM info is not available", call: func(v *VMM, _ []byte) (any, error) {
		info, err := v.info()
		return info, err
	}},
	// ApiAction for VmCounters wraps its errors in ApiError::VmInfo.
	"vm.counters": {get: true, failed: "The VM info is not available", call: func(v *VMM, _ []byte) (any, error) {
		c, err := v.counters()
		return c, err
	}},
	"vm.boot":         {failed: "The VM could not boot", call: act((*VMM).boot)},
	"vm.delete":       {failed: "The VM could not be deleted", call: act((*VMM).delete)},
	"vm.pause":        {failed: "The VM could not be paused", call: act((*VMM).pause)},
	"vm.power-button": {failed: "Error triggering power button", call: act((*VMM).powerButton)},
	"vm.reboot":       {failed: "The VM could not reboot", call: act((*VMM).reboot)},
	"vm.resume":       {failed: "The VM could not resume", call: act((*VMM).resume)},
	"vm.shutdown":     {failed: "The VM could not shutdown", call: act((*VMM).shutdown)},
	"vm.nmi":          {failed: "Error triggering NMI", call: act((*VMM).nmi)},
	"vm.restore":      {body: true, failed: "The VM could not be restored", call: actOn((*VMM).restore)},
	"vm.snapshot":     {body: true, failed: "The VM could not be snapshotted", call: actOn((*VMM).snapshot)},
	"vm.add-disk": {body: true, failed: "The disk could not be added to the VM", call: func(v *VMM, body []byte) (any, error) {
		info, err := v.addDisk(body)
		if info == nil {
			return nil, err
		}
		return info, err
	}},
	"vm.remove-device": {body: true, failed: "The device could not be removed from the VM", call: actOn((*VMM).removeDevice)},
	"vm.resize-disk":   {body: true, failed: "The disk could not be resized", call: actOn((*VMM).resizeDisk)},

	"vm.resize":                 {body: true, failed: "The VM could not be resized", call: lacking("resizing a VM", needsConfig)},
	"vm.resize-zone":            {body: true, failed: "The memory zone could not be resized", call: lacking("resizing a memory zone", needsConfig)},
	"vm.add-device":             {body: true, failed: "The device could not be added to the VM", call: lacking("adding VFIO devices", needsConfig)},
	"vm.add-user-device":        {body: true, failed: "The user device could not be added to the VM", call: lacking("adding user devices", needsConfig)},
	"vm.add-fs":                 {body: true, failed: "The fs could not be added to the VM", call: lacking("adding virtio-fs devices", needsConfig)},
	"vm.add-generic-vhost-user": {body: true, failed: "The generic vhost-user device could not be added to the VM", call: lacking("adding vhost-user devices", needsConfig)},
	"vm.add-net":                {body: true, failed: "The network device could not be added to the VM", call: lacking("adding network devices", needsConfig)},
	"vm.add-pmem":               {body: true, failed: "The pmem device could not be added to the VM", call: lacking("adding pmem devices", needsConfig)},
	"vm.add-vdpa":               {body: true, failed: "The vDPA device could not be added to the VM", call: lacking("adding vDPA devices", needsConfig)},
	"vm.add-vsock":              {body: true, failed: "The vsock device could not be added to the VM", call: lacking("adding vsock devices", needsConfig)},
	"vm.receive-migration":      {body: true, failed: "Error receiving migration", call: lacking("migration", needsNothing)},
	"vm.send-migration":         {body: true, failed: "Error dispatching the migration worker", call: lacking("migration", needsNothing)},
}

// ServeHTTP answers one request. Requests are answered one at a time, as by
// Cloud Hypervisor's one HTTP thread and one VMM thread.
func (v *VMM) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Server", "Cloud Hypervisor API")
	h["Date"] = nil // not sent there either
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		lowLevel(w, "Request payload is larger than the limit of 51200 allowed by server.")
		return
	}
	switch r.Method {
	case http.MethodGet, http.MethodPut, http.MethodPatch:
	default:
		lowLevel(w, "Invalid HTTP Method: Unsupported HTTP method.")
		return
	}
	h.Set("Content-Type", "application/json")
	// The path is compared with its query, so any query makes it unknown.
	name, ok := cutRoot(r.RequestURI)
	e, known := endpoints[name]
	if !ok || !known {
		answerError(w, http.StatusNotFound, "Not Found")
		return
	}
	if !e.takes(r.Method, len(body) > 0) {
		// Two kinds of handler word the same refusal differently: those made of
		// an action answer PATCH with an empty body, and vm.create one without
		// a body.
		if own := name == "vm.create" || name == "vm.info" || name == "vmm.ping" || name == "vmm.shutdown"; r.Method == http.MethodPatch && !own ||
			name == "vm.create" && r.Method == http.MethodPut {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		answerError(w, http.StatusBadRequest, "Bad Request")
		return
	}
	v.mu.Lock()
	value, err := e.call(v, body)
	v.mu.Unlock()
	switch {
	case err != nil:
		v.answerFault(w, name, e, err)
	case value != nil:
		answer(w, http.StatusOK, value)
	case name == "vmm.shutdown":
		w.WriteHeader(http.StatusOK)
	default:
		h.Del("Content-Type")
		w.WriteHeader(http.StatusNoContent)
	}
}

// takes says whether a method with or without a body is for this endpoint.
func (e endpoint) takes(method string, body bool) bool {
	if e.get {
		return method == http.MethodGet
	}
	switch {
	case method != http.MethodPut:
		return false
	case e.failed == "The VMM could not shutdown":
		return true // its handler does not look at the body
	default:
		return body == e.body
	}
}

func cutRoot(uri string) (string, bool) {
	if len(uri) < len(apiRoot) || uri[:len(apiRoot)] != apiRoot {
		return "", false
	}
	return uri[len(apiRoot):], true
}

func (v *VMM) answerFault(w http.ResponseWriter, name string, e endpoint, err error) {
	var bad jsonError
	if errors.As(err, &bad) {
		v.log.Info("API error", "endpoint", name, "error", err)
		answerError(w, http.StatusBadRequest, "Failed to deserialize JSON", bad.Error())
		return
	}
	f := fail(err, "Error from API", e.failed)
	status := f.status
	if status == 0 {
		status = http.StatusInternalServerError
	}
	v.log.Info("API error", "endpoint", name, "error", f)
	answerError(w, status, f.messages...)
}

func answer(w http.ResponseWriter, status int, value any) {
	raw, err := json.Marshal(value)
	if err != nil {
		panic(err) // the answers are plain structs and maps
	}
	w.WriteHeader(status)
	_, _ = w.Write(raw) // the client has gone, which is its own affair
}

func answerError(w http.ResponseWriter, status int, messages ...string) {
	answer(w, status, messages)
}

// lowLevel is what the HTTP layer below the API answers (ClientConnection::read
// in micro_http/src/server.rs): no JSON, for all that it looks like it.
func lowLevel(w http.ResponseWriter, text string) {
	w.Header().Set("Server", "Firecracker API")
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusBadRequest)
	_, _ = io.WriteString(w, "{ \"error\": \""+text+"\nAll previous unanswered requests will be dropped.\" }")
}

type pong struct {
	BuildVersion string   `json:"build_version"`
	Version      string   `json:"version"`
	PID          int      `json:"pid"`
	Features     []string `json:"features"`
}

func (v *VMM) ping() pong {
	return pong{BuildVersion: BuildVersion, Version: apiVersion, PID: os.Getpid(), Features: []string{v.accel}}
}

type vmInfo struct {
	Config           *vmConfig             `json:"config"`
	State            string                `json:"state"`
	MemoryActualSize uint64                `json:"memory_actual_size"`
	DeviceTree       map[string]deviceNode `json:"device_tree,omitempty"`
}

// deviceNode is DeviceNode in vmm/src/device_tree.rs.
type deviceNode struct {
	ID        string   `json:"id"`
	Resources []string `json:"resources"`
	Parent    string   `json:"parent,omitempty"`
	Children  []string `json:"children"`
	PCIBDF    string   `json:"pci_bdf,omitempty"`
}

// info describes the VM (vm_info).
func (v *VMM) info() (*vmInfo, error) {
	if v.config == nil {
		return nil, errNotCreated
	}
	info := &vmInfo{Config: v.config, State: stateCreated, MemoryActualSize: v.config.Memory.total()}
	if v.vm == nil {
		return info, nil
	}
	info.State = v.vm.state
	info.DeviceTree = map[string]deviceNode{}
	for _, d := range v.vm.devices {
		transport := "_virtio-pci-" + d.ID
		info.DeviceTree[transport] = deviceNode{ID: transport, Resources: []string{}, Children: []string{d.ID}, PCIBDF: d.bdf()}
		info.DeviceTree[d.ID] = deviceNode{ID: d.ID, Resources: []string{}, Children: []string{}, Parent: transport}
	}
	return info, nil
}

// nmi interrupts the guest (vm_nmi).
func (v *VMM) nmi() error {
	if v.vm == nil || v.vm.m == nil {
		return errNotRunning
	}
	if err := v.vm.m.command("inject-nmi", nil, nil); err != nil {
		return fail(v.vm.m.explain(err), "Error injecting NMI")
	}
	return nil
}
