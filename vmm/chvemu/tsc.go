package chvemu

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

const cpuinfoPath = "/proc/cpuinfo"

// withTSC tells the kernel the frequency of its time stamp counter. An emulated
// guest reads the host's counter, and can otherwise find its frequency only by
// counting while the PC's timer runs down. A guest that does not get the CPU
// meanwhile counts too little, and its clock then runs several times too fast, for
// its whole life and in every copy of its state.
//
// The name is of the kernel's admin-guide/kernel-parameters. The kernel corrects
// the value later, by up to a hundredth.
func withTSC(line, cpuinfo string) string {
	const name = "tsc_early_khz="
	raw, err := os.ReadFile(cpuinfo)
	khz := tscKHz(string(raw))
	if err != nil || khz == 0 || strings.Contains(line, name) {
		return line
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s%d", line, name, khz))
}

// tscKHz is the frequency of the host's counter by its /proc/cpuinfo: where the
// counter is steady the kernel derives its bogomips from it, two a MHz. It is 0
// where that is not so.
func tscKHz(cpuinfo string) int {
	var steady bool
	for line := range strings.Lines(cpuinfo) {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "flags":
			flags := " " + strings.TrimSpace(value) + " "
			steady = strings.Contains(flags, " constant_tsc ") && strings.Contains(flags, " nonstop_tsc ")
		case "bogomips":
			f, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if khz := int(f * 1000 / 2); err == nil && steady && khz >= 500_000 && khz <= 10_000_000 {
				return khz
			}
			return 0
		}
	}
	return 0
}
