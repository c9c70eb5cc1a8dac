package pgapi

import (
	"fmt"
	"strconv"
	"strings"
)

// ParseLSN reads a position in the WAL as PostgreSQL writes it: two numbers of 32 bits.
func ParseLSN(s string) (uint64, error) {
	high, low, ok := strings.Cut(s, "/")
	h, err1 := strconv.ParseUint(high, 16, 32)
	l, err2 := strconv.ParseUint(low, 16, 32)
	if !ok || err1 != nil || err2 != nil || len(high) > 8 || len(low) > 8 { // a guest may put any number of zeros before it
		return 0, fmt.Errorf("%.40q is no position in the WAL", s)
	}
	return h<<32 | l, nil
}
