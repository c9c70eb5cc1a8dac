package pgarchive

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// alter changes an object of the first archive, and returns it as it is then.
func alter(t *testing.T, dir, object string, change func([]byte) []byte) []byte {
	t.Helper()
	path := filepath.Join(dir, root, first, object)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	raw = change(raw)
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return raw
}

func flip(at int) func([]byte) []byte {
	return func(raw []byte) []byte {
		raw[(at+len(raw))%len(raw)] ^= 1
		return raw
	}
}

// The guest keeps a file until it hears that it is archived. What is damaged until then
// must not stop all that comes after it, nor be taken for what was stored.
func TestAWriterMendsWhatIsDamaged(t *testing.T) {
	each(t, func(t *testing.T, s *Store, dir string) {
		a := open(t, s, first, key)
		for n := range uint64(3) {
			putWAL(t, a, seg(n+1), segment(n+1))
		}
		for what, damage := range map[string]func([]byte) []byte{
			"its header":  flip(preambleSize + 10),
			"its content": flip(-1000),
			"cut off":     func(raw []byte) []byte { return raw[:len(raw)/2] },
			"empty":       func([]byte) []byte { return nil },
			"foreign":     func([]byte) []byte { return []byte("somebody else's") },
		} {
			was := alter(t, dir, walDir+seg(2), damage)
			stored, err := a.PutWAL(t.Context(), walFile(seg(2), segment(2)), bytes.NewReader(segment(2)))
			if err != nil || stored.Bytes == 0 {
				t.Errorf("%s: %+v, %v", what, stored, err)
			}
			damaged(t, stored.Mended, walDir+seg(2))
			if got, _, err := a.WAL(t.Context(), seg(2)); err != nil || !bytes.Equal(got, segment(2)) {
				t.Errorf("%s: %d bytes, %v", what, len(got), err)
			}
			aside := filepath.Join(dir, root, first, asideDir, seg(2))
			if raw, err := os.ReadFile(aside); err != nil || !bytes.Equal(raw, was) {
				t.Errorf("%s: %d bytes are kept aside, %v", what, len(raw), err)
			}
			if err := os.Remove(aside); err != nil {
				t.Fatal(err)
			}
		}
		if stored, err := a.PutWAL(t.Context(), walFile(seg(2), segment(2)), bytes.NewReader(segment(2))); err != nil || stored.Mended != nil || stored.Bytes != 0 {
			t.Errorf("of what is whole: %+v, %v", stored, err)
		}
	})
}

func TestWhatIsKeptAsideGoesWithTheRest(t *testing.T) {
	b, dir := directory(t)
	a := open(t, New(b), first, key)
	putWAL(t, a, seg(1), segment(1)) // there is no other one that would prove the key
	alter(t, dir, walDir+seg(1), flip(100))
	putWAL(t, a, seg(1), segment(1))
	for _, c := range []struct {
		before time.Time
		want   int
	}{{time.Now().Add(-time.Hour), 2}, {time.Now().Add(time.Hour), 1}} {
		if _, err := a.Prune(t.Context(), c.before); err != nil {
			t.Error(err)
		}
		if left := objects(t, dir); len(left) != c.want {
			t.Errorf("before %s: %v", c.before, left)
		}
	}
}

// With a wrong key all looks damaged, and a later Berth may have another format.
func TestWhatIsNotKnownToBeDamagedStays(t *testing.T) {
	b, dir := directory(t)
	a := open(t, New(b), first, key)
	putWAL(t, a, seg(1), segment(1))
	putWAL(t, a, seg(2), segment(2))
	before := strings.Join(objects(t, dir), " ")
	_, err := open(t, New(b), first, otherKey).PutWAL(t.Context(), walFile(seg(1), segment(1)), bytes.NewReader(segment(1)))
	damaged(t, err, walDir+seg(1))
	if !errors.Is(err, errOtherKey) {
		t.Error(err)
	}
	if got, _, err := a.WAL(t.Context(), seg(1)); err != nil || !bytes.Equal(got, segment(1)) {
		t.Error(err)
	}
	alter(t, dir, walDir+seg(2), func(raw []byte) []byte { raw[len(magic)]++; return raw })
	if _, err := a.PutWAL(t.Context(), walFile(seg(2), segment(2)), bytes.NewReader(segment(2))); !errors.Is(err, ErrOtherFormat) {
		t.Error(err)
	}
	if after := strings.Join(objects(t, dir), " "); after != before {
		t.Errorf("objects: %s", after)
	}
}
