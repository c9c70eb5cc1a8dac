package vmm

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// leastOOMScore is the score of a process that nobody spares. Replaced by a test.
var leastOOMScore = 0

// Expendable lets the kernel end a process of the host's daemon when memory runs out. The
// daemon itself is spared, and what it starts inherits that: it would be ended after
// everything else on the machine. It is called before the process has others.
func Expendable(pid int) {
	path := fmt.Sprintf("/proc/%d/oom_score_adj", pid)
	raw, err := os.ReadFile(path)
	if err != nil {
		return // it has ended
	}
	if score, err := strconv.Atoi(strings.TrimSpace(string(raw))); err == nil && score < leastOOMScore {
		_ = os.WriteFile(path, []byte(strconv.Itoa(leastOOMScore)), 0) // anybody may give their own less
	}
}
