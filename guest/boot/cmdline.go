package boot

import (
	"fmt"
	"strconv"
	"strings"
)

// maxLower bounds the read-only disks: virtio disks are named vda to vdz here,
// and the overlay needs one of them.
const maxLower = 25

// params are Berth's own words on the kernel command line.
type params struct {
	lower int // read-only disks before the overlay
}

func parseCmdline(line string) (params, error) {
	p := params{lower: 1}
	for word := range strings.FieldsSeq(line) {
		value, ok := strings.CutPrefix(word, "berth.lower=")
		if !ok {
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 || n > maxLower {
			return p, fmt.Errorf("kernel command line: berth.lower=%s is not a number from 1 to %d", value, maxLower)
		}
		p.lower = n
	}
	return p, nil
}

// disk returns the device of the i-th virtio disk.
func disk(i int) string { return "/dev/vd" + string(rune('a'+i)) }
