package cpio

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	reader "github.com/cavaliergopher/cpio"
)

func TestOthersReadWhatIsWritten(t *testing.T) {
	var raw bytes.Buffer
	w := NewWriter(&raw)
	content := map[string]string{"a": "", "ab": "1", "abc": "12", "abcd": "123", "abcde": strings.Repeat("x", 5000)}
	err := w.Directory("dev", 0o755)
	err = errors.Join(err, w.CharDevice("dev/console", 0o600, 5, 1))
	for _, name := range []string{"a", "ab", "abc", "abcd", "abcde"} {
		err = errors.Join(err, w.File(name, 0o640, []byte(content[name])))
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	if raw.Len()%4 != 0 {
		t.Errorf("%d bytes: no whole words", raw.Len())
	}
	r := reader.NewReader(&raw)
	for inode, want := range []struct {
		name string
		mode reader.FileMode
	}{
		{"dev", 0o40755}, {"dev/console", 0o20600}, {"a", 0o100640}, {"ab", 0o100640}, {"abc", 0o100640}, {"abcd", 0o100640}, {"abcde", 0o100640},
	} {
		got, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if got.Name != want.name || got.Mode != want.mode || got.Inode != int64(inode+1) || got.Links != 1 || got.ModTime.Unix() != 0 || got.Uid != 0 {
			t.Errorf("%+v, want %+v", got, want)
		}
		if body, err := io.ReadAll(r); err != nil || string(body) != content[want.name] {
			t.Errorf("%s: %q, %v", want.name, body, err)
		}
	}
	if _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last: %v", err)
	}
}

// The reader above does not know devices.
func TestADeviceHasItsNumber(t *testing.T) {
	var raw bytes.Buffer
	if err := NewWriter(&raw).CharDevice("dev/console", 0o600, 5, 1); err != nil {
		t.Fatal(err)
	}
	const want = "070701" + "00000001" + "00002180" + "00000000" + "00000000" + "00000001" + "00000000" + "00000000" +
		"00000000" + "00000000" + "00000005" + "00000001" + "0000000c" + "00000000" + "dev/console\x00" + "\x00\x00"
	if raw.String() != want {
		t.Errorf("%q, want %q", raw.String(), want)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestWhatCannotBeWrittenIsAnError(t *testing.T) {
	w := NewWriter(full{})
	for _, err := range []error{w.Directory("a", 0), w.File("b", 0, nil), w.CharDevice("c", 0, 1, 1), w.Close()} {
		if !errors.Is(err, io.ErrShortWrite) {
			t.Error(err)
		}
	}
}
