package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/template"
)

// Limits of a create.
const (
	MaxTTLSeconds = 365 * 24 * 60 * 60
	maxMetadata   = 16 << 10
)

// validateCreate checks what does not need the control store.
func validateCreate(in api.CreateSandbox) error {
	switch {
	case in.Template == "":
		return &apierror.Error{Code: apierror.EInvalid, Message: "template is required"}
	case !template.IsName(in.Template):
		return apierror.Invalid("unknown template", "a template's name has up to 63 of a-z, 0-9, '.', '_' and '-'")
	case in.TTLSeconds != nil && (*in.TTLSeconds < 1 || *in.TTLSeconds > MaxTTLSeconds):
		return apierror.Invalid("invalid ttl_seconds", "ttl_seconds must be from 1 to %d", MaxTTLSeconds)
	case !core.OneOf(in.Boot, api.BootRestore, api.BootCold):
		return apierror.Invalid("invalid boot", `boot is "restore" or "cold"`)
	case !core.OneOf(in.Preview, api.PreviewPublic, api.PreviewToken):
		return apierror.Invalid("invalid preview", `preview is "public" or "token"`)
	}
	if err := validMounts(in.Volumes); err != nil {
		return err
	}
	if err := ValidMetadata(in.Metadata); err != nil {
		return err
	}
	return validEnv(in.Env)
}

// ValidMetadata checks the metadata of a sandbox.
func ValidMetadata(raw api.Object) error {
	if len(raw) == 0 {
		return nil
	}
	if len(raw) > maxMetadata {
		return apierror.Invalid("invalid metadata", "metadata is at most %d bytes", maxMetadata)
	}
	if t := bytes.TrimLeft(raw, " \t\r\n"); len(t) == 0 || t[0] != '{' || !json.Valid(raw) {
		return apierror.Invalid("invalid metadata", "metadata must be an object")
	}
	// Readers of JSON that hold numbers as doubles refuse a whole list for one that they
	// cannot hold.
	var wrong *json.UnmarshalTypeError
	var all any
	if err := json.Unmarshal(raw, &all); errors.As(err, &wrong) {
		return apierror.Invalid("invalid metadata", "metadata contains a %.60s, which is outside the range of a double", wrong.Value)
	}
	return nil
}
