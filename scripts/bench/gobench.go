package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// goBenchmarked is what one benchmark of a package has reported, by unit.
type goBenchmarked struct {
	name   string // "BenchmarkPgbench/64_clients"
	values map[string]float64
}

// goBenchmark runs benchmarks of a package for so many rounds. They need what tests have,
// and that is not for programs.
func goBenchmark(ctx context.Context, root, pkg, pattern, rounds string) ([]goBenchmarked, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", pattern, "-benchtime", rounds, "-timeout", "30m", pkg)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "BERTH_TEST_ROOT=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("benchmarks %s of %s: %w: %s", pattern, pkg, err, bytes.TrimSpace(out))
	}
	found := parseBenchmarks(string(out))
	if len(found) == 0 {
		return nil, fmt.Errorf("benchmarks %s of %s: there is none: %s", pattern, pkg, bytes.TrimSpace(out))
	}
	return found, nil
}

// parseBenchmarks reads the lines of benchmarks: name, rounds, and values with their units.
func parseBenchmarks(out string) (all []goBenchmarked) {
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		name := fields[0]
		if i := strings.LastIndexByte(name, '-'); i > 0 { // how many processors
			name = name[:i]
		}
		b := goBenchmarked{name: name, values: map[string]float64{}}
		for i := 2; i+1 < len(fields); i += 2 {
			if v, err := strconv.ParseFloat(fields[i], 64); err == nil {
				b.values[fields[i+1]] = v
			}
		}
		all = append(all, b)
	}
	return all
}
