package hostapi

// Limits of an environment, in bytes. A variable counts with its name, "=" and the NUL
// that ends it.
const (
	MaxEnv      = 1 << 20   // of a box
	MaxExecEnv  = 1 << 20   // of an exec, beside the box's
	MaxBuildEnv = 64 << 10  // of a template's build, which the control store keeps with its files
	MaxVariable = 128 << 10 // Linux allows no more (MAX_ARG_STRLEN)

	// MaxVariables is how many variables the guest's identity has room for.
	MaxVariables = 1<<16 - 1
)

// EnvExcess returns the largest variable of an environment that is too large, with the
// limit that it exceeds: alone, or else (the limit is limit) together with the others.
// Without excess the name is "", which no variable has.
func EnvExcess(env map[string]string, limit int) (name string, exceeded int) {
	total, largest := 0, ""
	size := func(name string) int { return len(name) + len(env[name]) + len("=\x00") }
	for k := range env {
		total += size(k)
		if largest == "" || size(k) > size(largest) || size(k) == size(largest) && k < largest {
			largest = k
		}
	}
	switch {
	case largest == "":
		return "", 0
	case size(largest) > min(MaxVariable, limit):
		return largest, min(MaxVariable, limit)
	case total > limit:
		return largest, limit
	}
	return "", 0
}
