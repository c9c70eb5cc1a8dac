package vmm

import (
	"encoding/binary"
	"strings"
	"testing"
)

// cpu is a processor that offers some features, with changes.
func cpu(change ...cpuidEntry) string {
	entries := []cpuidEntry{
		{function: 1, regs: [4]uint32{0xf00, 0x800, 0xff00, 0xff00}},
		{function: 7, regs: [4]uint32{1, 0xff, 0xff, 0xff}},
		{function: 7, index: 1, regs: [4]uint32{0x30}},
		{function: 0x8000_0001, regs: [4]uint32{0, 0, 0x121, 0x2c10_0800}},
		{function: 0x4000_0000, regs: [4]uint32{0x4000_0001}},
		{function: 0x4000_0001, regs: [4]uint32{0x100_7efb}},
	}
	for _, c := range change {
		for i, e := range entries {
			if e.function == c.function && e.index == c.index {
				entries[i] = c
			}
		}
	}
	return "cloud-hypervisor v53.0" + cpuVersion(entries)
}

func TestASavedStateNeedsTheProcessorsFeatures(t *testing.T) {
	more := cpu(cpuidEntry{function: 7, regs: [4]uint32{1, 0x1ff, 0xff, 0xff}})
	other := cpu(cpuidEntry{function: 1, regs: [4]uint32{0xf00, 0x800, 0x7f00, 0x1ff00}})
	larger := cpu(cpuidEntry{function: 7, regs: [4]uint32{2, 0xff, 0xff, 0xff}})
	// What no guest gets, and what every guest gets, makes no difference.
	amx := cpu(
		cpuidEntry{function: 7, regs: [4]uint32{1, 0xff, 0xff, 0xff | 1<<24}},
		cpuidEntry{function: 7, index: 1, regs: [4]uint32{0x30 | 1<<21}},
		cpuidEntry{function: 1, regs: [4]uint32{0xb00, 0x1800, 0xff00 | 1<<31, 0xff00}},
	)
	if amx != cpu() {
		t.Errorf("%s is not %s", amx, cpu())
	}
	for name, c := range map[string]struct {
		own, saved string
		taken      bool
	}{
		"the same":                      {cpu(), cpu(), true},
		"a processor that has more":     {more, cpu(), true},
		"one that has less":             {cpu(), more, false},
		"one that has another":          {cpu(), other, false},
		"one with a larger number":      {larger, cpu(), true},
		"one with a smaller number":     {cpu(), larger, false},
		"saved before processors count": {cpu(), "cloud-hypervisor v53.0", true},
		"without KVM":                   {"cloud-hypervisor v53.0", cpu(), true},
		"another version":               {strings.Replace(cpu(), "v53.0", "v54.0", 1), cpu(), false},
		"another engine":                {"chvemu v53.0+qemu-7.2.22", cpu(), false},
		"one that cannot be read":       {cpu(), "cloud-hypervisor v53.0+cpu-00000000:1.2", false},
		"one that is no number":         {cpu(), cpu() + "x", false},
		"chvemu's":                      {"chvemu v53.0+qemu-7.2.22", "chvemu v53.0+qemu-7.2.22", true},
		"another QEMU":                  {"chvemu v53.0+qemu-7.2.22", "chvemu v53.0+qemu-10.0.2", false},
	} {
		err := Restores(c.own, c.saved)
		if (err == nil) != c.taken {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), ":") {
			t.Errorf("%s: not for people: %v", name, err)
		}
	}
	if short := ShortEngine(cpu()); !strings.HasPrefix(short, "cloud-hypervisor v53.0+cpu-") || len(short) != len("cloud-hypervisor v53.0+cpu-")+8 || short == ShortEngine(more) {
		t.Errorf("in short %s, and %s", short, ShortEngine(more))
	}
	if short := ShortEngine("chvemu v53.0+qemu-7.2.22"); short != "chvemu v53.0+qemu-7.2.22" {
		t.Errorf("in short %s", short)
	}
}

func TestWhatKVMOffers(t *testing.T) {
	buf := make([]byte, kvmCPUIDHeader+4*kvmCPUIDEntry)
	binary.NativeEndian.PutUint32(buf, 2)
	for i, word := range []uint32{1, 0, 0, 10, 11, 12, 13, 0, 0, 0, 7, 1, 1, 20, 21, 22, 23} {
		binary.NativeEndian.PutUint32(buf[kvmCPUIDHeader+4*i:], word)
	}
	got, err := cpuidEntries(buf)
	if err != nil || len(got) != 2 || got[0] != (cpuidEntry{1, 0, [4]uint32{10, 11, 12, 13}}) || got[1] != (cpuidEntry{7, 1, [4]uint32{20, 21, 22, 23}}) {
		t.Errorf("got %+v, %v", got, err)
	}
	binary.NativeEndian.PutUint32(buf, 5)
	if got, err := cpuidEntries(buf); err == nil {
		t.Errorf("more than there are: %+v", got)
	}
}

func TestAKernelThatCannotSetTheClock(t *testing.T) {
	for flags, works := range map[uintptr]bool{0: false, 2: false, 2 | 4 | 8: true, 4: true} {
		if err := checkClock(flags); (err == nil) != works {
			t.Errorf("flags %d: %v", flags, err)
		}
	}
	if err := (Engine{Kind: KindChvemu}).CheckHost(); err != nil {
		t.Errorf("chvemu needs no KVM: %v", err)
	}
}

// The real engine's version has the processor, where KVM works.
func TestTheVersionHasTheProcessor(t *testing.T) {
	offered, err := kvmSupportedCPUID()
	if err != nil {
		t.Skipf("KVM does not work here: %v", err)
	}
	e, err := Detect(t.Context(), program(t, t.TempDir(), "cloud-hypervisor", "cloud-hypervisor v53.0"))
	if want := "v53.0" + cpuVersion(offered); err != nil || e.Version != want {
		t.Errorf("version %s, %v, want %s", e.Version, err, want)
	}
	if _, ok := cpuWords(strings.TrimPrefix(cpuVersion(offered), cpuMark)); !ok {
		t.Errorf("%s cannot be read", e.Version)
	}
}
