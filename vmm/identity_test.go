package vmm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const statTail = " S 1 77 78 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456789 0 0"

func TestParseStat(t *testing.T) {
	for _, comm := range []string{"chvemu", "a b", "a) S 9 9 9", "(", ") ("} {
		st, err := parseStat([]byte("42 (" + comm + ")" + statTail))
		if err != nil {
			t.Errorf("command %q: %v", comm, err)
			continue
		}
		if st != (procStat{State: 'S', StartTime: 123456789}) {
			t.Errorf("command %q: %+v", comm, st)
		}
	}
	for _, line := range []string{"", "42 (x", "42 (x) S 1", "42 (x) S" + strings.Repeat(" y", 20)} {
		if _, err := parseStat([]byte(line)); err == nil {
			t.Errorf("%q is taken for a stat line", line)
		}
	}
	st, err := readStat(os.Getpid())
	if err != nil || st.StartTime == 0 {
		t.Errorf("this process: %+v, %v", st, err)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("42 (x)" + statTail))
	f.Add([]byte(") S"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		st, err := parseStat(raw)
		if err == nil && st.State == 0 {
			t.Fatal("no state, and no error")
		}
	})
}

func TestRecordIsReplacedWhole(t *testing.T) {
	dir := t.TempDir()
	for i := range 3 {
		if err := writeRecord(dir, record{PID: i, BootID: "b"}); err != nil {
			t.Fatal(err)
		}
		r, err := readRecord(dir)
		if err != nil || r.PID != i || r.BootID != "b" {
			t.Errorf("read %+v, %v", r, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// The directory belongs to the VMM, which may have put anything there.
func TestRecordFollowsNoLink(t *testing.T) {
	dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte(`{"pid":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{recordName, "." + recordName} {
		if err := os.Symlink(victim, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := readRecord(dir); err == nil {
		t.Errorf("read %+v through a link", r)
	}
	if err := writeRecord(dir, record{PID: 2}); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(victim)
	if err != nil || string(raw) != `{"pid":1}` {
		t.Errorf("written through a link: %s, %v", raw, err)
	}
}

func TestUserOf(t *testing.T) {
	uid, err := userOf(os.Getpid())
	if err != nil || uid != os.Geteuid() {
		t.Errorf("got %d, %v, want %d", uid, err, os.Geteuid())
	}
	if _, err := userOf(1 << 30); err == nil {
		t.Error("a process that cannot be has a user")
	}
}
