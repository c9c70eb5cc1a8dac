package pgarchive

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/berth-cloud/berth/guest/pgapi"
)

func TestWALComesBackAsItWas(t *testing.T) {
	each(t, func(t *testing.T, s *Store, dir string) {
		a := open(t, s, first, key)
		files := map[string][]byte{
			seg(1): segment(1), seg(2): make([]byte, pgapi.SegmentBytes), seg(3): segment(3),
			"00000002.history":                         []byte("1\t0/3000000\tno recovery target specified\n"),
			"000000010000000000000002.00000028.backup": {},
			"000000010000000000000004.partial":         segment(4),
		}
		for name, content := range files {
			putWAL(t, a, name, content)
		}
		again := open(t, s, first, key) // another host
		for name, content := range files {
			putWAL(t, again, name, content)
			got, sum, err := again.WAL(t.Context(), name)
			if err != nil || !bytes.Equal(got, content) || sum != walFile(name, content).SHA256 {
				t.Errorf("%s: %d bytes, %s, %v", name, len(got), sum, err)
			}
		}
		if all := objects(t, dir); len(all) != len(files) {
			t.Errorf("objects: %v", all)
		}
		other := segment(9)
		if _, err := again.PutWAL(t.Context(), walFile(seg(1), other), bytes.NewReader(other)); !errors.Is(err, ErrOtherBytes) {
			t.Errorf("other bytes: %v", err)
		}
		if got, _, err := a.WAL(t.Context(), seg(1)); err != nil || !bytes.Equal(got, files[seg(1)]) {
			t.Errorf("after other bytes: %v", err)
		}
		info, err := a.Info(t.Context())
		if err != nil || info.LastLSN != "0/4000000" || info.SizeBytes < 9<<20 || info.SizeBytes > 12<<20 || !info.FirstRestorable.IsZero() {
			t.Errorf("%+v, %v", info, err)
		}
	})
}

// Clones have the same names with other bytes.
func TestAnotherArchiveIsAnother(t *testing.T) {
	b, _ := directory(t)
	s := New(b)
	a, c := open(t, s, first, key), open(t, s, second, otherKey)
	putWAL(t, a, seg(1), segment(1))
	putWAL(t, c, seg(1), segment(2))
	if got, _, err := a.WAL(t.Context(), seg(1)); err != nil || !bytes.Equal(got, segment(1)) {
		t.Error(err)
	}
	if _, _, err := c.WAL(t.Context(), seg(2)); !errors.Is(err, ErrNotArchived) {
		t.Error(err)
	}
}

func TestWhatIsNotArchived(t *testing.T) {
	each(t, func(t *testing.T, s *Store, _ string) {
		a := open(t, s, first, key)
		missing := func(name string) {
			t.Helper()
			if _, _, err := a.WAL(t.Context(), name); !errors.Is(err, ErrNotArchived) || errors.Is(err, ErrDamaged) {
				t.Errorf("%s: %v", name, err)
			}
		}
		lost := func(name string) {
			t.Helper()
			_, _, err := a.WAL(t.Context(), name)
			damaged(t, err, walDir+name)
		}
		missing(seg(1))
		missing("00000002.history")
		stub(t, a, 5, epoch)
		putWAL(t, a, "000000010000000000000005.00000028.backup", []byte("x"))
		missing(seg(6))
		lost(seg(4))
		missing(pgapi.SegmentName(2, 5))
		missing(pgapi.SegmentName(2, 4))
		missing("00000001.history") // the first timeline has none
		missing("00000002.history")
		missing("000000010000000000000004.partial")
		stub(t, a, 8, epoch)
		lost(seg(6))
		lost(seg(7))
		missing(seg(9))
		two := pgapi.SegmentName(2, 9)
		putWAL(t, a, two, segment(9))
		missing(seg(9)) // the first timeline ends here
		lost("00000002.history")
		missing("00000003.history")
		putWAL(t, a, "00000002.history", []byte("1\t0/9000000\tx\n"))
		if _, _, err := a.WAL(t.Context(), "00000002.history"); err != nil {
			t.Error(err)
		}
	})
}

func TestWALThatIsNotWhatItSaysIsRefused(t *testing.T) {
	b, dir := directory(t)
	a := open(t, New(b), first, key)
	content := segment(1)
	f := walFile(seg(1), content)
	broken := errors.New("the guest went away")
	for name, c := range map[string]struct {
		change func(*pgapi.WALFile)
		r      io.Reader
		want   error
	}{
		"no name":              {func(f *pgapi.WALFile) { f.Name = "" }, nil, ErrInvalid},
		"a way out":            {func(f *pgapi.WALFile) { f.Name = "../" + f.Name }, nil, ErrInvalid},
		"a lower-case name":    {func(f *pgapi.WALFile) { f.Name = strings.ToLower("00000001000000000000000A") }, nil, ErrInvalid},
		"no digest":            {func(f *pgapi.WALFile) { f.SHA256 = "" }, nil, ErrInvalid},
		"an upper-case digest": {func(f *pgapi.WALFile) { f.SHA256 = strings.ToUpper(f.SHA256) }, nil, ErrInvalid},
		"half a segment":       {func(f *pgapi.WALFile) { f.Size /= 2 }, nil, ErrInvalid},
		"a huge history":       {func(f *pgapi.WALFile) { f.Name, f.Size = "00000002.history", f.Size+1 }, nil, ErrInvalid},
		"a size below zero":    {func(f *pgapi.WALFile) { f.Name, f.Size = "00000002.history", -1 }, nil, ErrInvalid},
		"another digest":       {func(f *pgapi.WALFile) { f.SHA256 = strings.Repeat("0", 64) }, nil, ErrCut},
		"less than announced":  {nil, bytes.NewReader(content[:len(content)-1]), ErrCut},
		"nothing":              {nil, bytes.NewReader(nil), ErrCut},
		"more than announced":  {nil, io.MultiReader(bytes.NewReader(content), strings.NewReader("x")), ErrCut},
		"other bytes":          {nil, bytes.NewReader(segment(2)), ErrCut},
		"cut off":              {nil, io.MultiReader(bytes.NewReader(content[:5<<20]), iotest.ErrReader(broken)), broken},
		"cut off at its end":   {nil, io.MultiReader(bytes.NewReader(content), iotest.ErrReader(broken)), broken},
	} {
		t.Run(name, func(t *testing.T) {
			f, r := f, c.r
			if c.change != nil {
				c.change(&f)
			}
			if r == nil {
				r = bytes.NewReader(content)
			}
			if _, err := a.PutWAL(t.Context(), f, r); !errors.Is(err, c.want) {
				t.Errorf("%v; want %v", err, c.want)
			}
		})
	}
	if all := objects(t, dir); len(all) > 0 {
		t.Errorf("left: %v", all)
	}
	for _, name := range []string{"", "x", "../" + seg(1), seg(1) + "/", strings.ToLower("00000001000000000000000A")} {
		if _, _, err := a.WAL(t.Context(), name); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestTheSameFileByManyWritersAtOnce(t *testing.T) {
	each(t, func(t *testing.T, s *Store, dir string) {
		content, other := segment(1), segment(2)
		var all sync.WaitGroup
		var mu sync.Mutex
		var stored []byte
		for i := range 6 {
			mine := content
			if i%3 == 2 {
				mine = other
			}
			all.Go(func() {
				_, err := open(t, s, first, key).PutWAL(t.Context(), walFile(seg(1), mine), bytes.NewReader(mine))
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil && stored == nil:
					stored = mine
				case err == nil && !bytes.Equal(stored, mine):
					t.Error("two contents were stored under one name")
				case err != nil && !errors.Is(err, ErrOtherBytes):
					t.Error(err)
				}
			})
		}
		all.Wait()
		got, _, err := open(t, s, first, key).WAL(t.Context(), seg(1))
		if err != nil || stored == nil || !bytes.Equal(got, stored) {
			t.Errorf("what is there is not what was said to be stored: %v", err)
		}
		if left := objects(t, dir); len(left) != 1 {
			t.Errorf("objects: %v", left)
		}
	})
}
