package githost

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of what is kept of a git host's words, in bytes.
const (
	maxBranch  = 255
	maxMessage = 1024
	maxAuthor  = 200
)

var (
	fullName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}$`)
	commitID = regexp.MustCompile(`^(?:[0-9a-f]{40}|[0-9a-f]{64})$`)
	numberID = regexp.MustCompile(`^[1-9][0-9]{0,18}$`)
)

// validFullName reports whether a text is owner/name, and can be part of a path.
func validFullName(s string) bool {
	owner, name, _ := strings.Cut(s, "/")
	return fullName.MatchString(s) && strings.Trim(owner, ".") != "" && strings.Trim(name, ".") != ""
}

// validBranch reports whether git allows a branch of this name (git check-ref-format),
// and no program takes it for an option.
func validBranch(s string) bool {
	if s == "" || len(s) > maxBranch || !utf8.ValidString(s) || strings.HasPrefix(s, "-") || s == "@" {
		return false
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`~^:?*[\`, r) }) {
		return false
	}
	if strings.Contains(s, "..") || strings.Contains(s, "@{") || strings.HasSuffix(s, ".") {
		return false
	}
	for part := range strings.SplitSeq(s, "/") {
		if part == "" || strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	return true
}

// oneLine is the first line of a text, with at most so many bytes, and nothing in it that
// a terminal would obey.
func oneLine(s string, most int) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "")
	}
	return strings.TrimSpace(s)
}

// zeros reports whether a commit is none: of a branch that was made or deleted.
func zeros(s string) bool { return s == "" || strings.Trim(s, "0") == "" }
