package main

import (
	"context"
	"math"
	"time"
)

const (
	restFor = 40 * time.Second
	periods = 12 // at most
)

// measureRest measures the CPU time that the daemons take while nothing is asked of them
// and no sandbox exists. The hosts of a fresh stack first store templates for one another,
// a part of a second at a time: what counts is a period that differs from the one before
// by less than a tenth.
func measureRest(ctx context.Context, b *bench) error {
	last, before := 0.0, math.Inf(1)
	for range periods {
		var err error
		if last, err = rest(ctx, b); err != nil {
			return err
		}
		if math.Abs(last-before) < before/10 {
			break
		}
		before = last
	}
	b.r.want("rest_cpu", last, "%", atMost, 2)
	return nil
}

// rest returns the CPU time of the daemons in one period, in percent of one core.
func rest(ctx context.Context, b *bench) (float64, error) {
	progress("%s at rest", restFor)
	before, err := b.cpuTime()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := pause(ctx, restFor); err != nil {
		return 0, err
	}
	after, err := b.cpuTime()
	if err != nil {
		return 0, err
	}
	return 100 * (after - before).Seconds() / time.Since(start).Seconds(), nil
}
