package chvemu

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

const cpuinfoPath = "/proc/cpuinfo"

// withTSC tells the kernel how fast its time stamp counter runs. An emulated
// guest reads the host's, and has no other way to know its frequency than to
// count while the timer of the PC runs down: a guest that the host did not let
// run in between has counted too little, takes the least of what it counted, and
// its clock then runs several times too fast, for as long as it lives and in
// every copy of its state.
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
