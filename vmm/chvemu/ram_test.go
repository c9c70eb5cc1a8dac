package chvemu

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// RAM of this very process, mapped like a guest's: what it wrote is saved over
// what the file holds, zeroes as holes, and the file stays as it is.
func TestSaveRAM(t *testing.T) {
	const pages = 600
	dir := t.TempDir()
	base, err := os.Create(filepath.Join(dir, "base"))
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	const size = pages * pageSize
	if err := base.Truncate(size); err != nil {
		t.Fatal(err)
	}
	want := make([]byte, size)
	fill := func(page int, b byte) { copy(want[page*pageSize:], bytes.Repeat([]byte{b}, pageSize)) }
	for _, p := range []int{0, 1, 100, 101, 300} {
		fill(p, 'b')
		if _, err := base.WriteAt(want[p*pageSize:(p+1)*pageSize], int64(p*pageSize)); err != nil {
			t.Fatal(err)
		}
	}
	ram, err := unix.Mmap(int(base.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(ram) }()
	write := func(page int, b byte) {
		fill(page, b)
		copy(ram[page*pageSize:], want[page*pageSize:(page+1)*pageSize])
	}
	write(1, 'w')         // over the file's data
	write(100, 0)         // the file's data made zero
	write(599, 'w')       // at the end
	_ = ram[301*pageSize] // read, so mapped, and still the file's
	for p := 200; p < 300; p += 2 {
		write(p, 'o') // every other one
	}
	image, err := os.Create(filepath.Join(dir, "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	if err := saveRAM(os.Getpid(), size, base, image); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(image.Name())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("the image is not the RAM")
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(image.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	if st.Blocks*512 > 70*pageSize {
		t.Errorf("the image takes %d KiB, and 55 pages of it are not zero", st.Blocks/2)
	}
	runtime.KeepAlive(ram)
}

const sampleMaps = `7f0000000000-7f0000100000 rw-p 00000000 fd:01 77 /ram
7f0000100000-7f0000101000 ---p 00000000 00:00 0
7f0001000000-7f0001002000 r--p 00000000 fd:01 5 /lib/libc.so.6
7f0001002000-7f0001003000 rw-p 00002000 fd:01 5 /lib/libc.so.6
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0 [stack]
`

func TestFindRAM(t *testing.T) {
	got, err := findRAM(sampleMaps, 1<<20)
	if err != nil || len(got) != 1 || got[0] != (mapping{addr: 0x7f0000000000, length: 1 << 20}) {
		t.Errorf("found %+v, %v", got, err)
	}
	split := strings.Replace(sampleMaps, "7f0000000000-7f0000100000 rw-p 00000000", "7f0000000000-7f0000080000 rw-p 00000000 fd:01 77 /ram (deleted)\n7f0000080000-7f0000100000 rw-p 00080000", 1)
	if got, err := findRAM(split, 1<<20); err != nil || len(got) != 2 || got[1].offset != 0x80000 {
		t.Errorf("found %+v, %v", got, err)
	}
	for name, maps := range map[string]string{
		"nothing":     "",
		"a hole":      strings.Replace(split, "00080000", "00081000", 1),
		"shared":      strings.Replace(sampleMaps, "rw-p 00000000 fd:01 77", "rw-s 00000000 fd:01 77", 1),
		"two of them": sampleMaps + "7f1000000000-7f1000100000 rw-p 00000000 fd:01 78 /other\n",
	} {
		if got, err := findRAM(maps, 1<<20); err == nil {
			t.Errorf("%s: found %+v", name, got)
		}
	}
}

func FuzzFindRAM(f *testing.F) {
	f.Add(sampleMaps, uint64(1<<20))
	f.Add("7f-80 rw-p 0 a b", uint64(1))
	f.Fuzz(func(t *testing.T, maps string, size uint64) {
		parts, err := findRAM(maps, size)
		if err != nil {
			return
		}
		var total uint64
		for _, p := range parts {
			total += p.length
		}
		if total != size {
			t.Fatalf("%d bytes of %d", total, size)
		}
	})
}

func TestCompleteStream(t *testing.T) {
	head := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, streamMagic), streamVersion)
	raw := append(append([]byte{}, head...), 0x04, 'x', 0x00)
	got, err := completeStream(raw, "board")
	if err != nil {
		t.Fatal(err)
	}
	want := string(head) + "\x07\x00\x00\x00\x05board\x04x\x00\x06\x00\x00\x00\x02{}"
	if string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for name, bad := range map[string][]byte{
		"nothing": nil, "a header alone": head, "another file": []byte("QEVMxxxxxxxxx"),
		"a configuration": append(append([]byte{}, head...), 0x07, 0, 0), "no end": append(append([]byte{}, head...), 0x04, 'x'),
	} {
		if got, err := completeStream(bad, "board"); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func FuzzCompleteStream(f *testing.F) {
	f.Add([]byte("QEVM\x00\x00\x00\x03\x04x\x00"))
	f.Add([]byte("QEVM\x00\x00\x00\x03\x07"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		out, err := completeStream(raw, "board")
		if err == nil && !bytes.Contains(out, raw[8:]) {
			t.Fatal("part of the stream is gone")
		}
	})
}

// A child that opens the file for writing gets it for reading, and every other
// file as it asked.
func TestOpenGate(t *testing.T) {
	dir := t.TempDir()
	guarded, other := filepath.Join(dir, "guarded"), filepath.Join(dir, "other")
	for _, path := range []string{guarded, other} {
		if err := os.WriteFile(path, []byte("original"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	try := func(path string) string {
		out := make(chan string, 1)
		go func() {
			runtime.LockOSThread() // the filter stays on this thread
			gate, err := installGate(guarded)
			if err != nil {
				out <- err.Error()
				return
			}
			defer gate.close()
			cmd := exec.Command(self)
			cmd.Env = []string{envOpen + "=" + path}
			text, err := cmd.CombinedOutput()
			if err != nil {
				text = fmt.Append(text, err)
			}
			out <- string(text)
		}()
		return <-out
	}
	if got := try(guarded); !strings.Contains(got, "bad file descriptor") {
		t.Errorf("writing to the guarded file: %q", got)
	}
	if got := try(other); got != "write: <nil>" {
		t.Errorf("writing to another file: %q", got)
	}
	if raw, err := os.ReadFile(guarded); err != nil || string(raw) != "original" {
		t.Errorf("the guarded file holds %q, %v", raw, err)
	}
}

func TestCloneSparse(t *testing.T) {
	dir := t.TempDir()
	src, err := os.Create(filepath.Join(dir, "src"))
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dst, err := os.Create(filepath.Join(dir, "dst"))
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	const size = 8 << 20
	for _, f := range []*os.File{src, dst} {
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
	}
	for _, off := range []int64{0, 3 << 20, size - 4096} {
		if _, err := src.WriteAt(bytes.Repeat([]byte{'s'}, 4096), off); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := dst.WriteAt(bytes.Repeat([]byte{'d'}, 1<<20), 2<<20); err != nil {
		t.Fatal(err)
	}
	if err := cloneSparse(dst, src, size); err != nil {
		t.Fatal(err)
	}
	a, err := os.ReadFile(src.Name())
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(dst.Name())
	if err != nil || !bytes.Equal(a, b) {
		t.Errorf("the copy differs: %v", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(dst.Fd()), &st); err != nil || st.Blocks*512 > 1<<20 {
		t.Errorf("the copy takes %d KiB, %v", st.Blocks/2, err)
	}
}
