package service

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Bounds of a create.
const (
	MaxTTLSeconds     = 365 * 24 * 60 * 60
	maxMetadata       = 16 << 10
	maxIdempotencyKey = 255
)

var (
	templateName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)
	envName      = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,255}$`)
)

// validate checks what can be checked without the control store.
func (in CreateSandbox) validate() error {
	switch {
	case in.Template == "":
		return &apierror.Error{Code: apierror.EInvalid, Message: "template is required"}
	case !templateName.MatchString(in.Template):
		return apierror.Invalid("unknown template", "a template's name has up to 63 of a-z, 0-9, '.', '_' and '-'")
	case in.TTLSeconds != nil && (*in.TTLSeconds < 1 || *in.TTLSeconds > MaxTTLSeconds):
		return apierror.Invalid("invalid ttl_seconds", "ttl_seconds must be from 1 to %d", MaxTTLSeconds)
	case !oneOf(in.Boot, string(hostapi.BootRestore), string(hostapi.BootCold)):
		return apierror.Invalid("invalid boot", `boot is "restore" or "cold"`)
	case !oneOf(in.Preview, string(record.PreviewPublic), string(record.PreviewToken)):
		return apierror.Invalid("invalid preview", `preview is "public" or "token"`)
	}
	if err := in.idempotency().validate(); err != nil {
		return err
	}
	if err := validMounts(in.Volumes); err != nil {
		return err
	}
	if err := validMetadata(in.Metadata); err != nil {
		return err
	}
	return validEnv(in.Env)
}

// oneOf reports whether a choice is one of those that there are, or not given:
// only then the default is meant.
func oneOf(v *string, values ...string) bool { return v == nil || slices.Contains(values, *v) }

func validMetadata(raw json.RawMessage) error {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	if len(raw) > maxMetadata {
		return apierror.Invalid("invalid metadata", "metadata is at most %d bytes", maxMetadata)
	}
	if t := bytes.TrimLeft(raw, " \t\r\n"); len(t) == 0 || t[0] != '{' || !json.Valid(raw) {
		return apierror.Invalid("invalid metadata", "metadata must be an object")
	}
	return nil
}

// validEnv checks an environment. The values are never part of an error: they
// may be secrets.
func validEnv(env map[string]string) error {
	size := 0
	for name, value := range env {
		size += len(name) + len(value) + 2
		if !envName.MatchString(name) {
			shown := name
			if len(shown) > 40 || !utf8.ValidString(shown) {
				shown = strings.ToValidUTF8(shown[:min(len(shown), 40)], "\uFFFD") + "…"
			}
			return apierror.Invalid("invalid env", "%q is no name of a variable: letters, digits and '_', not beginning with a digit", shown)
		}
		if strings.ContainsRune(value, 0) {
			return apierror.Invalid("invalid env", "the value of %s contains a NUL character", name)
		}
	}
	if size > maxEnvSize {
		return apierror.Invalid("invalid env", "names and values are at most %d bytes together", maxEnvSize)
	}
	return nil
}
