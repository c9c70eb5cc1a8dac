// Package timescale stretches time limits for slow machines. Limits on what a
// guest, a VMM or another machine may take are chosen for a machine of today;
// one that is many times slower, such as one that is emulated, sets
// BERTH_TIME_SCALE. What users ask for (time-outs, times to live) is never
// stretched.
package timescale

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"sync"
	"time"
)

// Env names the environment variable: a number from 1, by which every limit is
// multiplied; 1 when it is not set.
const Env = "BERTH_TIME_SCALE"

// most keeps a limit of hours from becoming one that no clock can hold.
const most = 1000

var setting = sync.OnceValues(func() (float64, error) { return parse(os.Getenv(Env)) })

func parse(s string) (float64, error) {
	if s == "" {
		return 1, nil
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(n) || n < 1 || n > most {
		return 1, fmt.Errorf("%s is %q: want a number from 1 to %d", Env, s, most)
	}
	return n, nil
}

// Check returns an error when the setting is no such number; limits are then as
// they are without it.
func Check() error {
	_, err := setting()
	return err
}

// Default stretches a setting of another name that was left at its default.
func Default(d *time.Duration, name string) {
	if os.Getenv(name) == "" {
		*d = Limit(*d)
	}
}

// Limit stretches a time limit.
func Limit(d time.Duration) time.Duration {
	scale, _ := setting() // Check tells
	return time.Duration(float64(d) * scale)
}
