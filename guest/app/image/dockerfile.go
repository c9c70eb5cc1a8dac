package image

import (
	"regexp"
	"slices"
	"strings"
)

// Bounds on a Dockerfile.
const (
	maxDockerfile = 1 << 20 // bytes
	maxArgs       = 200     // as many as an app has variables
)

var (
	argName   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	directive = regexp.MustCompile(`(?i)^#\s*escape\s*=\s*(\S)\s*$`)
)

// Args are the names that a Dockerfile declares with ARG, each once: an app's variable of
// such a name is its value. What is in a here-document may be taken for one; then a value
// is given that nothing asks for.
func Args(dockerfile string) []string {
	var names []string
	escape, line := `\`, ""
	for i, raw := range slices.Collect(strings.Lines(dockerfile)) {
		raw = strings.TrimSpace(raw)
		if m := directive.FindStringSubmatch(raw); m != nil && i == 0 {
			escape = m[1]
		}
		if raw == "" || raw[0] == '#' {
			continue // also between the lines of one instruction
		}
		if rest, more := strings.CutSuffix(raw, escape); more {
			line += rest + " "
			continue
		}
		words := strings.Fields(line + raw)
		line = ""
		if !strings.EqualFold(words[0], "ARG") {
			continue
		}
		for _, word := range words[1:] {
			name, _, _ := strings.Cut(word, "=")
			if argName.MatchString(name) && !slices.Contains(names, name) && len(names) < maxArgs {
				names = append(names, name)
			}
		}
	}
	return names
}
