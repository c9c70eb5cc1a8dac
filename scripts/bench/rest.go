package main

import (
	"context"
	"time"
)

const restFor = 40 * time.Second

// measureRest measures the CPU time that the daemons take while nothing is asked of them
// and no sandbox exists.
func measureRest(ctx context.Context, b *bench) error {
	progress("%s at rest", restFor)
	before, err := b.cpuTime()
	if err != nil {
		return err
	}
	start := time.Now()
	if err := pause(ctx, restFor); err != nil {
		return err
	}
	after, err := b.cpuTime()
	if err != nil {
		return err
	}
	b.r.want("rest_cpu", 100*(after-before).Seconds()/time.Since(start).Seconds(), "%", atMost, 2)
	return nil
}
