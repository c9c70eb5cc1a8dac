// Command notes prints what CHANGELOG.md says of a version: the text of its release. It
// fails if that is nothing, so that no version is released that the changelog lacks.
package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: notes v1.2.3")
		os.Exit(2)
	}
	raw, err := os.ReadFile("CHANGELOG.md")
	if err == nil {
		var text string
		if text, err = notes(string(raw), os.Args[1]); err == nil {
			fmt.Println(text)
			return
		}
	}
	fmt.Fprintln(os.Stderr, "notes:", err)
	os.Exit(1)
}

var heading = regexp.MustCompile(`^## \[([^]]+)\](?: - \d{4}-\d\d-\d\d)?$`)

// notes returns a version's section, without its heading and without the links at the
// end of the file.
func notes(changelog, version string) (string, error) {
	var out []string
	in := false
	for line := range strings.Lines(changelog) {
		line = strings.TrimRight(line, "\r\n")
		if m := heading.FindStringSubmatch(line); m != nil {
			in = m[1] == strings.TrimPrefix(version, "v")
			if in && !strings.Contains(line, " - ") {
				return "", fmt.Errorf("CHANGELOG.md gives no date for %s: want ## [%s] - YYYY-MM-DD", version, m[1])
			}
			continue
		}
		if in && !strings.HasPrefix(line, "[") {
			out = append(out, line)
		}
	}
	text := strings.TrimSpace(strings.Join(out, "\n"))
	if text == "" {
		return "", fmt.Errorf("CHANGELOG.md says nothing of %s: move what is under Unreleased to ## [%s] - YYYY-MM-DD", version, strings.TrimPrefix(version, "v"))
	}
	return text, nil
}
