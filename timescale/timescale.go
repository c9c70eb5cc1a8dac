// Package timescale stretches time limits for slow machines. Limits on guests, VMMs
// and other machines suit a machine of today; one that is many times slower, such as
// an emulated one, sets BERTH_TIME_SCALE. What users ask for (time-outs, times to
// live) is never stretched.
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

// most bounds a stretched limit, so that it fits a time.Duration.
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

// Check returns an error if the setting is no such number; limits are not stretched
// then.
func Check() error {
	_, err := setting()
	return err
}

// Default stretches another setting if it has its default value.
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
