package kernel

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// image makes an ELF file with one note and one section.
func image(machine elf.Machine, note []byte, section string, data []byte) []byte {
	const head, prog, sect = 64, 56, 64
	names := "\x00" + section + "\x00.shstrtab\x00"
	noteAt := head + prog
	dataAt := noteAt + len(note)
	namesAt := dataAt + len(data)
	sectsAt := namesAt + len(names)
	var b bytes.Buffer
	put := func(v any) {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			panic(err)
		}
	}
	h := elf.Header64{
		Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: 1, Phoff: head, Shoff: uint64(sectsAt),
		Ehsize: head, Phentsize: prog, Phnum: 1, Shentsize: sect, Shnum: 3, Shstrndx: 2,
	}
	copy(h.Ident[:], "\x7fELF\x02\x01\x01")
	put(h)
	put(elf.Prog64{Type: uint32(elf.PT_NOTE), Off: uint64(noteAt), Filesz: uint64(len(note)), Memsz: uint64(len(note))})
	b.Write(note)
	b.Write(data)
	b.WriteString(names)
	put(elf.Section64{})
	put(elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: uint64(dataAt), Size: uint64(len(data))})
	put(elf.Section64{Name: uint32(len(section) + 2), Type: uint32(elf.SHT_STRTAB), Off: uint64(namesAt), Size: uint64(len(names))})
	return b.Bytes()
}

func note(name string, kind uint32) []byte {
	var b bytes.Buffer
	for _, v := range []uint32{uint32(len(name) + 1), 4, kind} {
		_ = binary.Write(&b, binary.LittleEndian, v)
	}
	b.WriteString(name + "\x00")
	for b.Len()%4 != 0 {
		b.WriteByte(0)
	}
	b.Write([]byte{0, 0, 0, 1})
	return b.Bytes()
}

func pvhKernel() []byte {
	notes := append(note("GNU", 1), note("Xen", pvhNote)...)
	return image(elf.EM_X86_64, notes, ".rodata", []byte("Linux version %s\x00Linux version 6.12.117+deb12-cloud-amd64 (x) #1\x00"))
}

// bzImage packs a kernel as the kernel's build does.
func bzImage(t testing.TB, payload []byte, size int) []byte {
	t.Helper()
	raw := make([]byte, 2*sectorSize)
	raw[setupSectsOffset] = 1
	copy(raw[headerMagicOffset:], "HdrS")
	binary.LittleEndian.PutUint32(raw[payloadOffsetOffset:], 16)
	binary.LittleEndian.PutUint32(raw[payloadLengthOffset:], uint32(len(payload)+4))
	raw = append(raw, make([]byte, 16)...)
	raw = append(raw, payload...)
	return binary.LittleEndian.AppendUint32(raw, uint32(size))
}

func compressed(t testing.TB, how string, raw []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var w interface {
		Write([]byte) (int, error)
		Close() error
	}
	var err error
	switch how {
	case "gzip":
		w = gzip.NewWriter(&b)
	case "xz":
		w, err = xz.NewWriter(&b)
	case "zstd":
		w, err = zstd.NewWriter(&b)
	}
	if err == nil {
		_, err = w.Write(raw)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestKernelIsUnpacked(t *testing.T) {
	want := pvhKernel()
	for _, how := range []string{"gzip", "xz", "zstd"} {
		got, err := Vmlinux(bzImage(t, compressed(t, how, want), len(want)))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v", how, len(got), err)
		}
	}
	if got, err := Vmlinux(want); err != nil || !bytes.Equal(got, want) {
		t.Errorf("not packed: %d bytes, %v", len(got), err)
	}
}

func TestOtherFilesAreNoKernels(t *testing.T) {
	good := bzImage(t, compressed(t, "gzip", pvhKernel()), len(pvhKernel()))
	for name, c := range map[string]struct {
		raw  []byte
		says string
	}{
		"empty":                 {nil, "neither"},
		"text":                  {[]byte(strings.Repeat("hello ", 1000)), "neither"},
		"truncated":             {good[:len(good)-10], "past its end"},
		"damaged":               {bzImage(t, []byte("\x1f\x8b damaged"), 100), ""},
		"unknown compression":   {bzImage(t, []byte("LZ4 or so"), 100), "unknown way"},
		"larger than it says":   {bzImage(t, compressed(t, "gzip", pvhKernel()), 1<<20), "decompress"},
		"a bomb":                {bzImage(t, compressed(t, "gzip", pvhKernel()), 1<<31), "payload of"},
		"no PVH entry":          {image(elf.EM_X86_64, note("GNU", 1), ".x", nil), "PVH"},
		"PVH note of others":    {image(elf.EM_X86_64, note("Yen", pvhNote), ".x", nil), "PVH"},
		"another architecture":  {image(elf.EM_AARCH64, note("Xen", pvhNote), ".x", nil), "AARCH64"},
		"half an ELF":           {pvhKernel()[:80], ""},
		"note that is too long": {image(elf.EM_X86_64, []byte{255, 255, 255, 255, 255, 255, 255, 255, 18, 0, 0, 0}, ".x", nil), "PVH"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Vmlinux(c.raw); !errors.Is(err, ErrNotKernel) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want it to say %q", err, c.says)
			}
		})
	}
}

// module makes a kernel module that depends on others.
func module(depends string) []byte {
	return image(elf.EM_X86_64, note("Linux", 1), ".modinfo", []byte("license=GPL\x00depends="+depends+"\x00name=x\x00"))
}

// kernelPackage makes an unpacked kernel package.
func kernelPackage(t *testing.T, modules map[string][]byte) string {
	t.Helper()
	root := t.TempDir()
	put := func(name string, raw []byte) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, raw, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("boot/vmlinuz-6.12.1-test", bzImage(t, compressed(t, "zstd", pvhKernel()), len(pvhKernel())))
	put("lib/modules/6.12.1-test/modules.order", nil)
	for name, raw := range modules {
		put("lib/modules/6.12.1-test/kernel/"+name, raw)
	}
	return root
}

func TestNeededModulesAreExtractedInOrder(t *testing.T) {
	root := kernelPackage(t, map[string][]byte{
		"net/failover.ko.xz":     compressed(t, "xz", module("")),
		"net/net_failover.ko.xz": compressed(t, "xz", module("failover")),
		"net/virtio_net.ko.xz":   compressed(t, "xz", module("net_failover,failover")),
		"char/virtio-rng.ko":     module("rng-core"),
		"char/rng-core.ko":       module(""),
		"fs/unrelated.ko":        module(""),
	})
	dir := t.TempDir()
	release, err := Extract(root, dir)
	if err != nil || release != "6.12.1-test" {
		t.Fatalf("got %q, %v", release, err)
	}
	order, err := os.ReadFile(filepath.Join(dir, "modules", release, "modules.order"))
	if err != nil {
		t.Fatal(err)
	}
	want := "failover.ko\nnet_failover.ko\nvirtio_net.ko\nrng-core.ko\nvirtio-rng.ko\n"
	if diff := cmp.Diff(want, string(order)); diff != "" {
		t.Error(diff)
	}
	for name := range strings.FieldsSeq(want) {
		raw, err := os.ReadFile(filepath.Join(dir, "modules", release, name))
		if err != nil || !bytes.HasPrefix(raw, []byte("\x7fELF")) {
			t.Errorf("%s: %v", name, err)
		}
	}
	raw, err := os.ReadFile(filepath.Join(dir, "vmlinux"))
	if err != nil || !bytes.Equal(raw, pvhKernel()) {
		t.Errorf("vmlinux: %d bytes, %v", len(raw), err)
	}
	if got, err := Release(filepath.Join(dir, "vmlinux")); err != nil || got != "6.12.117+deb12-cloud-amd64" {
		t.Errorf("its release is %q, %v", got, err)
	}
}

func TestPackageWithoutAKernel(t *testing.T) {
	if _, err := Extract(t.TempDir(), t.TempDir()); err == nil {
		t.Error("extracted")
	}
}

func TestDamagedModule(t *testing.T) {
	root := kernelPackage(t, map[string][]byte{"overlay.ko.xz": []byte("no xz")})
	dir := t.TempDir()
	if _, err := Extract(root, dir); err == nil || !strings.Contains(err.Error(), "overlay.ko.xz") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "vmlinux")); err == nil {
		t.Error("a kernel without its modules is left as if it were whole")
	}
}

func FuzzVmlinux(f *testing.F) {
	f.Add(pvhKernel())
	f.Add(bzImage(f, compressed(f, "gzip", pvhKernel()), len(pvhKernel())))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if got, err := Vmlinux(raw); err == nil && !bytes.HasPrefix(got, []byte(elf.ELFMAG)) {
			t.Errorf("unpacked to %d bytes that are no ELF", len(got))
		}
	})
}

func FuzzDependencies(f *testing.F) {
	f.Add(module("a,b"))
	f.Fuzz(func(_ *testing.T, raw []byte) { _, _ = dependencies(raw) })
}
