package core

import (
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,255}$`)

// OneOf reports whether v is one of the values, or nil, which means the default.
func OneOf[T comparable](v *T, values ...T) bool { return v == nil || slices.Contains(values, *v) }

// OrZero returns *v, or the zero value if v is nil.
func OrZero[T any](v *T) (out T) {
	if v != nil {
		out = *v
	}
	return out
}

// OrNull returns nil for the zero value, which becomes null in JSON.
func OrNull[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// Each converts a list. The result of an empty one is not nil, and so [] in JSON.
func Each[A, B any](in []A, convert func(A) B) []B {
	out := make([]B, len(in))
	for i, v := range in {
		out[i] = convert(v)
	}
	return out
}

// ValidEnv checks an environment of at most limit bytes. Errors never contain values,
// which may be secrets.
func ValidEnv(env map[string]string, limit int) error {
	for name, value := range env {
		if !envName.MatchString(name) {
			return apierror.Invalid("invalid env", "%q is no name of a variable: letters, digits and '_', not beginning with a digit", shortened(name))
		}
		if strings.ContainsRune(value, 0) {
			return apierror.Invalid("invalid env", "the value of %s contains a NUL character", shortened(name))
		}
	}
	switch name, exceeded := hostapi.EnvExcess(env, limit); {
	case name == "":
		return nil
	case exceeded < limit || len(env) == 1:
		return apierror.Invalid("invalid env", "%s has more than %d bytes, with its name", shortened(name), exceeded)
	default:
		return apierror.Invalid("invalid env", "names and values are at most %d bytes together; the largest is %s", limit, shortened(name))
	}
}

// shortened returns a name of any length and content for an error.
func shortened(name string) string {
	if len(name) > 40 || !utf8.ValidString(name) {
		return strings.ToValidUTF8(name[:min(len(name), 40)], "\uFFFD") + "…"
	}
	return name
}
