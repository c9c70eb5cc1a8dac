package chvemu

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCounterOfTheHost(t *testing.T) {
	const steady = "processor\t: 0\nflags\t\t: fpu tsc constant_tsc rep_good nonstop_tsc cpuid\n"
	for name, c := range map[string]struct{ cpuinfo, line, want string }{
		"steady":              {steady + "bogomips\t: 4600.00\n", "quiet", "quiet tsc_early_khz=2300000"},
		"no command line":     {steady + "bogomips\t: 4399.99\n", "", "tsc_early_khz=2199995"},
		"not steady":          {"flags\t\t: fpu tsc constant_tsc\nbogomips\t: 4600.00\n", "quiet", "quiet"},
		"given by the caller": {steady + "bogomips\t: 4600.00\n", "tsc_early_khz=1", "tsc_early_khz=1"},
		"another processor":   {steady + "BogoMIPS\t: 100.00\n", "quiet", "quiet"},
		"nonsense":            {steady + "bogomips\t: 1e30\n", "quiet", "quiet"},
		"nothing":             {"", "quiet", "quiet"},
	} {
		path := filepath.Join(t.TempDir(), "cpuinfo")
		if err := os.WriteFile(path, []byte(c.cpuinfo), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := withTSC(c.line, path); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	if got := withTSC("quiet", filepath.Join(t.TempDir(), "missing")); got != "quiet" {
		t.Errorf("no cpuinfo: got %q", got)
	}
}
