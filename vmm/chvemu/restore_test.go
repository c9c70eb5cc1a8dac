package chvemu

import (
	"strings"
	"testing"
)

// What a state was saved of must be what is restored.
func TestStateFits(t *testing.T) {
	cfg := mustRead(t, fullConfig)
	devices, err := place(cfg)
	if err != nil {
		t.Fatal(err)
	}
	fresh := func() *savedState {
		return &savedState{
			Engine: engineName, Format: stateFormat, Machine: machineType, Accel: accelTCG,
			VCPUs: 2, RAM: 512 << 20, Zone: "ram", Serial: true, Devices: append([]device(nil), devices...),
		}
	}
	if err := fresh().fits(cfg, accelTCG); err != nil {
		t.Error(err)
	}
	for want, edit := range map[string]func(*savedState){
		"another engine":          func(s *savedState) { s.Engine = "" },
		"has format 3":            func(s *savedState) { s.Format = 3 },
		"machine type q3":         func(s *savedState) { s.Machine = "q3" },
		"kvm":                     func(s *savedState) { s.Accel = accelKVM },
		"has 1 CPUs":              func(s *savedState) { s.VCPUs = 1 },
		"bytes of RAM":            func(s *savedState) { s.RAM++ },
		"memory zone":             func(s *savedState) { s.Zone = "" },
		"serial port":             func(s *savedState) { s.Serial = false },
		`"disk root" "disk root"`: func(s *savedState) { s.Devices[3] = s.Devices[0] },
		"and its config":          func(s *savedState) { s.Devices = s.Devices[1:] },
		"net root":                func(s *savedState) { s.Devices[0].Kind = kindNet },
	} {
		s := fresh()
		edit(s)
		if err := s.fits(cfg, accelTCG); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
