package pgapi

import "testing"

func TestNamesOfWALFiles(t *testing.T) {
	for name, want := range map[string]WALName{
		"000000010000000000000002":                 {1, 2, WALSegment},
		"0000000A0000000100000001":                 {10, 257, WALSegment},
		"00000002.history":                         {2, 0, WALHistory},
		"000000010000000000000002.00000028.backup": {1, 2, WALBackup},
		"000000010000000000000002.partial":         {1, 2, WALPartial},
	} {
		if got, err := ParseWALName(name); err != nil || got != want {
			t.Errorf("%s: %v, %v; want %v", name, got, err, want)
		}
	}
	for _, name := range []string{
		"", ".", "..", "x", "00000000.history", "0000000a.history", "000000010000000000000100", "00000001000000000000000g",
		"000000010000000000000002/", "../000000010000000000000002", "000000010000000000000002.", "000000010000000000000002.backup",
		"000000010000000000000002.0000002z.backup", "00000001.history\n", "000000000000000000000002", "000000010000000000000002.00000028.backup.x",
		"RECOVERYXLOG", "+0000001.history",
	} {
		if got, err := ParseWALName(name); err == nil {
			t.Errorf("%q was taken for %v", name, got)
		}
	}
	if got := SegmentName(10, 257); got != "0000000A0000000100000001" {
		t.Errorf("segment 257 of timeline 10 is %s", got)
	}
}

func FuzzWALName(f *testing.F) {
	for _, s := range []string{"000000010000000000000002", "00000002.history", "000000010000000000000002.00000028.backup", "../x", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		w, err := ParseWALName(name)
		if err != nil {
			return
		}
		for _, c := range []byte(name) {
			if c == '/' || c == 0 || c >= 0x80 {
				t.Fatalf("%q was taken", name)
			}
		}
		if w.Kind == WALSegment && SegmentName(w.Timeline, w.Segment) != name {
			t.Fatalf("%q is %v, which is named %s", name, w, SegmentName(w.Timeline, w.Segment))
		}
	})
}
