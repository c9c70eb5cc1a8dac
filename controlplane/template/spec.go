package template

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Limits of a build.
const (
	maxTemplateName  = 50
	maxReference     = 512
	maxPath          = 1024
	maxCmd           = 128<<10 - 1 // Linux's MAX_ARG_STRLEN
	maxBuildSteps    = 100
	maxBuildFiles    = 1000
	maxBuildSpec     = 256 << 10 // all texts together: they are stored in the control store
	maxSealedSpec    = 360 << 10 // 480 KiB in its row, in base64: a transaction may have 512, and the row grows
	maxTemplateCPU   = 32
	minTemplateMB    = 256
	maxTemplateMB    = 256 << 10
	maxTemplateDisk  = 4 << 20
	maxReadySeconds  = 3600
	maxTemplates     = 200 // per workspace
	maxTemplateBuild = 4   // at once, per workspace
)

var templateName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// IsName reports whether name is a valid name of a template.
func IsName(name string) bool { return templateName.MatchString(name) }

// isImage reports whether from is an image reference and not a template's name.
func isImage(from string) bool { return strings.ContainsAny(from, "/:@") }

// validateBuild checks what does not need the control store.
func validateBuild(in api.BuildTemplate) error {
	switch {
	case in.Name == "":
		return &apierror.Error{Code: apierror.EInvalid, Message: "name is required"}
	case len(in.Name) > maxTemplateName || !IsName(in.Name) || IsKey(in.Name):
		return apierror.Invalid("invalid name", "a template's name has up to %d of a-z, 0-9, '.', '_' and '-', and begins with a letter or digit", maxTemplateName)
	case in.Name == "build": // /v1/templates/build is a route of its own
		return apierror.Invalid("invalid name", "build is no name of a template")
	case in.From == "":
		return &apierror.Error{Code: apierror.EInvalid, Message: "from is required"}
	case isImage(in.From):
		if len(in.From) > maxReference || strings.ContainsFunc(in.From, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return apierror.Invalid("invalid from", "an image reference has up to %d printable characters", maxReference)
		}
	case !IsName(in.From) || IsKey(in.From):
		return apierror.Invalid("unknown template", "from is neither a template's name nor an image reference, such as docker.io/library/debian:12")
	}
	if err := validSizes(in); err != nil {
		return err
	}
	if err := validSteps(in); err != nil {
		return err
	}
	if err := validReady(in.Ready); err != nil {
		return err
	}
	return core.ValidEnv(in.Env, hostapi.MaxBuildEnv)
}

// outside reports whether a number is given and not between least and most.
func outside(v *int, least, most int) bool { return v != nil && (*v < least || *v > most) }

// validSizes checks the sizes that are given.
func validSizes(in api.BuildTemplate) error {
	for _, v := range []struct {
		field       string
		value       *int
		least, most int
	}{
		{"cpu", in.CPU, 1, maxTemplateCPU}, {"memory_mb", in.MemoryMB, minTemplateMB, maxTemplateMB}, {"disk_mb", in.DiskMB, minTemplateMB, maxTemplateDisk},
	} {
		if outside(v.value, v.least, v.most) {
			return apierror.Invalid("invalid "+v.field, "%s must be from %d to %d", v.field, v.least, v.most)
		}
	}
	return nil
}

func validSteps(in api.BuildTemplate) error {
	size := len(in.Start)
	if len(in.Run) > maxBuildSteps {
		return apierror.Invalid("invalid run", "at most %d steps", maxBuildSteps)
	}
	for i, line := range in.Run {
		size += len(line)
		if strings.TrimSpace(line) == "" || strings.ContainsRune(line, 0) {
			return apierror.Invalid("invalid run", "run[%d] is empty or contains a NUL character", i)
		}
		if len(line) > maxCmd {
			return apierror.Invalid("invalid run", "run[%d] has more than %d bytes; put what is longer into files", i, maxCmd)
		}
	}
	if strings.ContainsRune(in.Start, 0) || len(in.Start) > maxCmd {
		return apierror.Invalid("invalid start", "start contains a NUL character or has more than %d bytes", maxCmd)
	}
	if len(in.Files) > maxBuildFiles {
		return apierror.Invalid("invalid files", "at most %d", maxBuildFiles)
	}
	for _, name := range slices.Sorted(maps.Keys(in.Files)) {
		size += len(name) + len(in.Files[name])
		if !path.IsAbs(name) || path.Clean(name) != name || name == "/" || len(name) > maxPath || strings.ContainsRune(name, 0) {
			return apierror.Invalid("invalid files", "%.80q is not a clean absolute path", name)
		}
	}
	if size > maxBuildSpec {
		return &apierror.Error{Code: apierror.ETooLarge, Message: "request too large", Detail: "run, files and start have at most 262144 bytes together; fetch what is larger in a run step"}
	}
	return nil
}

func validReady(r *api.TemplateCheck) error {
	switch {
	case r == nil:
		return nil
	case r.Port == nil && r.Cmd == "":
		return apierror.Invalid("invalid ready", "neither port nor cmd")
	case outside(r.Port, 1, 65535):
		return apierror.Invalid("invalid ready", "port must be from 1 to 65535")
	case outside(r.TimeoutSeconds, 1, maxReadySeconds):
		return apierror.Invalid("invalid ready", "timeout_seconds must be from 1 to %d", maxReadySeconds)
	case strings.ContainsRune(r.Cmd, 0) || len(r.Cmd) > maxCmd:
		return apierror.Invalid("invalid ready", "cmd contains a NUL character or is too long")
	}
	return nil
}

// specOf returns the build that the host is to run. key and from are names on hosts.
func specOf(in api.BuildTemplate, key, from string) hostapi.BuildSpec {
	out := hostapi.BuildSpec{
		Template: key, From: from, FromOCI: isImage(in.From), Run: in.Run, Files: in.Files, Env: in.Env, Start: in.Start,
		CPU: core.OrZero(in.CPU), MemoryMB: core.OrZero(in.MemoryMB), DiskMB: core.OrZero(in.DiskMB),
	}
	if r := in.Ready; r != nil {
		out.Ready = &hostapi.BuildReady{Port: core.OrZero(r.Port), Cmd: r.Cmd, TimeoutSeconds: core.OrZero(r.TimeoutSeconds)}
	}
	return out
}
