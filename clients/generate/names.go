package main

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
)

const notice = "Generated from the service's OpenAPI document by `make clients`. Do not edit."

// snake is a camelCase name in snake_case.
func snake(s string) string {
	var b strings.Builder
	for i, r := range s {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return strings.ReplaceAll(b.String(), "-", "_")
}

var identifier = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

// nameable refuses a name that no client could give to a field or a parameter.
func nameable(name string) error {
	if name == "" || !identifier.MatchString(pythonName(name)) {
		return fmt.Errorf("%q cannot be made a name", name)
	}
	return nil
}

// camel is a snake_case name in camelCase.
func camel(s string) string {
	parts := strings.FieldsFunc(s, func(r rune) bool { return r == '_' || r == '-' })
	for i, p := range parts {
		if i > 0 {
			parts[i] = strings.ToUpper(p[:1]) + p[1:]
		}
	}
	return strings.Join(parts, "")
}

// wrap breaks text into lines of at most width characters, each with the prefix.
func wrap(text, prefix string, width int) string {
	var b strings.Builder
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(prefix)+len(line)+1+len(word) > width {
			b.WriteString(strings.TrimRight(prefix+line, " ") + "\n")
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	b.WriteString(strings.TrimRight(prefix+line, " ") + "\n")
	return b.String()
}
