package template

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-cloud/berth/controlplane/apierror"
)

// Unknown is the error for a name that no template has. It tells those that there are, of
// which some may be yet to be built, and the nearest.
func Unknown(name string, known []string) *apierror.Error {
	known = slices.DeleteFunc(slices.Clone(known), func(name string) bool { return IsKey(name) || reserved(name) })
	slices.Sort(known)
	known = slices.Compact(known)
	detail := fmt.Sprintf("no template %q", name)
	if near := nearest(name, known); near != "" {
		detail += fmt.Sprintf("; did you mean %q?", near)
	}
	if len(known) == 0 {
		known = []string{"none"}
	}
	return apierror.Invalid("unknown template", "%s; available: %s", detail, strings.Join(known, ", "))
}

// nearest returns the name of the least edit distance, if that is at most two, or a third
// of the name's length; else "".
func nearest(name string, names []string) string {
	best, near := max(2, len(name)/3)+1, ""
	for _, n := range names {
		if d := distance(name, n); d < best {
			best, near = d, n
		}
	}
	return near
}

// distance is the Levenshtein distance of two names.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
