package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRender(t *testing.T) {
	text := "before\n<!-- bench:data -->\nold\n<!-- /bench -->\nafter\n<!-- bench:raft -->\n<!-- /bench -->\n"
	numbers := map[string]entry{
		"upload_64_mib": {12.34, "MB/s"}, "event_latency_p50": {1.5, "ms"}, "direct_requests": {12345, "1/s"}, "direct_p99": {7, "ms"},
	}
	out, err := render([]byte(text), numbers)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"before\n<!-- bench:data -->\n| | measured |", "| Upload of 64 MiB | 12.3 MB/s |  |", "p50 1.50 ms, p95 ?", "| 12,345 /s, p99 7 ms |",
		"| Download of 64 MiB | not measured |", "<!-- /bench -->\nafter\n",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("there is no %q in\n%s", want, out)
		}
	}
	if strings.Contains(string(out), "old") {
		t.Error("the old table is still there")
	}
	again, err := render(out, numbers)
	if err != nil || string(again) != string(out) {
		t.Errorf("once more it is another: %v\n%s", err, again)
	}
	kept := "<!-- bench:transitions -->\nof another run\n<!-- /bench -->"
	if out, err := render([]byte(kept), map[string]entry{"upload_64_mib": {1, "MB/s"}}); err != nil || string(out) != kept {
		t.Errorf("a table of which nothing was measured: %v\n%s", err, out)
	}
	if _, err := render([]byte("<!-- bench:nothing -->\n<!-- /bench -->"), numbers); err == nil {
		t.Error("a table that there is not: no error")
	}
}

// The document has a place for every table.
func TestDocumentHasEveryTable(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "benchmarks.md"))
	if err != nil {
		t.Fatal(err)
	}
	for name := range tables {
		if !strings.Contains(string(text), "<!-- bench:"+name+" -->\n") {
			t.Errorf("no place for %s", name)
		}
	}
	if _, err := render(text, nil); err != nil {
		t.Error(err)
	}
}

func TestRAMIsToldFromOtherMappings(t *testing.T) {
	path := filepath.Join(t.TempDir(), "smaps")
	smaps := `7f0000000000-7f0020000000 rw-p 00000000 fe:00 12 /d/captures/snap-a/memory-ranges (deleted)
Size:             524288 kB
Rss:                3000 kB
Pss:                1000 kB
Pss_Dirty:           400 kB
Anonymous:           300 kB
VmFlags: rd wr mr mw me ac
7f0030000000-7f0030001000 r-xp 00000000 fe:00 13 /usr/lib/program
Rss:                 100 kB
Pss:                  50 kB
Anonymous:             4 kB
7f0040000000-7f0040001000 rw-p 00000000 00:00 0
Pss:                   7 kB
`
	if err := os.WriteFile(path, []byte(smaps), 0o600); err != nil {
		t.Fatal(err)
	}
	var f footprint
	if err := f.addProcess(path); err != nil {
		t.Fatal(err)
	}
	if want := (footprint{pss: 1057, ramPSS: 1000, ramTouched: 3000, ramWritten: 300}); f != want {
		t.Errorf("got %+v, want %+v", f, want)
	}
	for head, want := range map[string]bool{
		"1-2 rw-p 0 fe:00 1 /vm/33f9326a7e921bde/ram0": true, "1-2 rw-p 0 fe:00 1 /lib/libram": false,
		"1-2 rw-p 0 00:00 0": false,
	} {
		if isRAM(head) != want {
			t.Errorf("%s: %t", head, !want)
		}
	}
}
