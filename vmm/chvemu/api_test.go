package chvemu

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func ask(v *VMM, method, uri, body string) (int, string) {
	r := httptest.NewRequest(method, uri, strings.NewReader(body))
	r.RequestURI = uri
	w := httptest.NewRecorder()
	v.ServeHTTP(w, r)
	raw, _ := io.ReadAll(w.Result().Body)
	return w.Code, string(raw)
}

// The API without a machine: what needs no root and no QEMU of what the
// conformance suite checks.
func TestAPIWithoutAMachine(t *testing.T) {
	serial := filepath.Join(t.TempDir(), "serial")
	config := `{"cpus":{"boot_vcpus":1,"max_vcpus":1},"memory":{"size":1048576},"payload":{"kernel":"/none"},"serial":{"mode":"File","file":"` + serial + `"},"console":{"mode":"Off"}}`
	v := newVMM()
	defer v.Close()
	steps := []struct {
		method, op, body string
		status           int
		want             string
	}{
		{"GET", "vm.info", "", 404, `["Error from API","The VM info is not available","VM is not created"]`},
		{"PUT", "vm.boot", "", 404, `VM config is missing`},
		{"PUT", "vm.delete", "", 204, ``},
		{"PUT", "vm.create", strings.Replace(config, "Off", "Tty", 1), 400, `the mode of the console is not Off`},
		{"PUT", "vm.create", `{"cpus":{}}`, 400, "missing field `boot_vcpus`"},
		{"PUT", "vm.create", config, 204, ``},
		{"PUT", "vm.create", config, 500, `VM is already created`},
		{"GET", "vm.info", "", 200, `"state":"Created","memory_actual_size":1048576}`},
		{"PUT", "vm.boot", "", 500, `["Error from API","The VM could not boot","cannot open kernel file: open /none: no such file or directory"]`},
		{"GET", "vm.info", "", 200, `"state":"Created"`},
		{"PUT", "vm.pause", "", 500, `VM is not running`},
		{"PUT", "vm.shutdown", "", 500, `VM is not running`},
		{"PUT", "vm.send-migration", `{}`, 404, `Not Found`},
		{"POST", "vm.boot", "", 400, `Invalid HTTP Method`},
		{"PUT", "vm.delete", "", 204, ``},
		{"PUT", "vm.restore", `{"source_url":"file:///no/such/dir"}`, 500, `destination is not a directory: /no/such/dir`},
		{"PUT", "vm.restore", `{"source_url":"file:///","prefault":true}`, 500, `chvemu does not support prefault`},
		{"PUT", "vm.restore", `{"source_url":"file:///","memory_restore_mode":"Lazy"}`, 400, `unknown restore mode`},
		{"PUT", "vmm.shutdown", "", 200, ``},
	}
	for _, s := range steps {
		status, body := ask(v, s.method, "/api/v1/"+s.op, s.body)
		if status != s.status || !strings.Contains(body, s.want) || s.want == "" && body != "" {
			t.Errorf("%s %s: %d %s, want %d %s", s.method, s.op, status, body, s.status, s.want)
		}
	}
	select {
	case e := <-v.exit:
		if e != (Exit{}) {
			t.Errorf("ends with %+v", e)
		}
	default:
		t.Error("vmm.shutdown does not end it")
	}
	if st, err := os.Stat(serial); err != nil || st.Mode().IsRegular() == false {
		t.Errorf("the serial port's file: %v", err)
	}
}

func TestAPIAnswersOnlyItsPaths(t *testing.T) {
	v := newVMM()
	defer v.Close()
	for _, uri := range []string{"/", "/api/v1/", "/api/v1/vm.info/", "/api/v1/vm.info?x", "/api/v2/vm.info", "/api/v1/VM.INFO"} {
		if status, body := ask(v, http.MethodGet, uri, ""); status != 404 || body != `["Not Found"]` {
			t.Errorf("%s: %d %s", uri, status, body)
		}
	}
	if status, body := ask(v, http.MethodPut, "/api/v1/vm.create", strings.Repeat(" ", maxBody+1)); status != 400 || !strings.Contains(body, "larger than") {
		t.Errorf("a body too large: %d %s", status, body)
	}
}
