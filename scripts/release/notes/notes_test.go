package main

import (
	"os"
	"strings"
	"testing"
)

const changelog = `# Changelog

## [Unreleased]

## [1.1.0] - 2026-12-01

### Fixed

- A thing.

## [1.0.0]

- Undated.

[1.1.0]: https://example.com
`

func TestNotes(t *testing.T) {
	got, err := notes(changelog, "v1.1.0")
	if err != nil || got != "### Fixed\n\n- A thing." {
		t.Errorf("%q, %v", got, err)
	}
	for _, version := range []string{"v1.0.0", "v2.0.0", "Unreleased"} {
		if got, err := notes(changelog, version); err == nil {
			t.Errorf("%s: %q", version, got)
		}
	}
}

// Every heading of a version has the form that notes looks for.
func TestTheChangelogsHeadings(t *testing.T) {
	raw, err := os.ReadFile("../../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	known := 0
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "## ") && !heading.MatchString(line) {
			t.Errorf("CHANGELOG.md: %q", line)
		}
		if line == "## [Unreleased]" {
			known++
		}
	}
	if known != 1 {
		t.Errorf("CHANGELOG.md has %d headings Unreleased", known)
	}
}
