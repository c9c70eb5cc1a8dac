package sandbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// The errors of creates, for errors.Is; each occurrence has its own detail. The
// others are core.ErrNoHost and core.ErrUnreachable.
var (
	ErrNotStarted = &apierror.Error{Code: apierror.EInternal, Message: "sandbox failed to start", Detail: "report the request id if a retry does not help"}
	// ErrSnapshot means that a sandbox cannot be created from its snapshot, or woken,
	// because the snapshot or its saved memory is gone, damaged, or from another engine.
	ErrSnapshot = &apierror.Error{Code: apierror.EUnprocessable, Message: "snapshot cannot be restored"}
)

// invalidMount converts the refusal of a path that only the guest could find wrong.
func invalidMount(err error) *apierror.Error {
	e := &apierror.Error{Code: apierror.EInvalid, Message: "invalid volumes", Err: err}
	var refusal *hostapi.Error
	if errors.As(err, &refusal) {
		e.Detail = whatIsWrong(refusal)
	}
	return e
}

// whatIsWrong returns the detail of a refusal without what the host was doing.
func whatIsWrong(refusal *hostapi.Error) string {
	if _, what, found := strings.Cut(refusal.Detail, refusal.Message+": "); found {
		return what
	}
	return refusal.Detail
}

// NoHost converts the reason why no host can take a sandbox. If no host has the
// template, the caller has probably misspelled its name.
func NoHost(none *placement.Error) *apierror.Error {
	if none.Reason != placement.UnknownTemplate {
		return core.NoNode(none)
	}
	known := slices.DeleteFunc(slices.Clone(none.Templates), func(name string) bool { return template.IsKey(name) || template.Reserved(name) })
	e := apierror.Invalid("unknown template", "%s", available(known))
	e.Err = none
	return e
}

// unknownTemplate adds to an error about an unknown template those that are yet to be
// built, and the name that is nearest.
func unknownTemplate(e *apierror.Error, name string, usable []string) *apierror.Error {
	none := (*placement.Error)(nil)
	if !errors.As(e.Err, &none) || none.Reason != placement.UnknownTemplate {
		return e
	}
	known := slices.DeleteFunc(append(usable, none.Templates...), func(name string) bool { return template.IsKey(name) || template.Reserved(name) })
	slices.Sort(known)
	known = slices.Compact(known)
	detail := fmt.Sprintf("no template %q", name)
	if near := nearest(name, known); near != "" {
		detail += fmt.Sprintf("; did you mean %q?", near)
	}
	return e.With(detail+"; "+available(known), e.Err)
}

func available(names []string) string {
	if len(names) == 0 {
		return "available: none"
	}
	return "available: " + strings.Join(names, ", ")
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
