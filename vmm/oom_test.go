package vmm

import (
	"os"
	"strings"
	"testing"
)

// When memory runs out, the kernel is to end a guest, not its host's daemon, whose unit
// has it spared, or whatever else there is. Only privileged processes may be spared, so
// here a guest is to be spared less than this process is.
func TestAGuestIsNotSparedWithItsHost(t *testing.T) {
	leastOOMScore = 300
	defer func() { leastOOMScore = 0 }()
	p := startFake(t, fake(t, "serve"))
	score, err := os.ReadFile("/proc/" + itoa(p.PID()) + "/oom_score_adj")
	if err != nil || strings.TrimSpace(string(score)) != "300" {
		t.Errorf("the score of its VMM is %s, %v", score, err)
	}
	// One that is less spared already, as in a session of somebody's, stays so.
	leastOOMScore = 200
	Expendable(p.PID())
	if score, err = os.ReadFile("/proc/" + itoa(p.PID()) + "/oom_score_adj"); err != nil || strings.TrimSpace(string(score)) != "300" {
		t.Errorf("it then is %s, %v", score, err)
	}
}
