package detect

import (
	"fmt"

	"github.com/berth-cloud/berth/guest/appapi"
)

// dockerfile is the framework of an app that brings its own image.
const dockerfile = "dockerfile"

const dockerfileName = "Dockerfile"

// image knows an app by its Dockerfile, which goes before all else that is there: who
// writes one wants it used. Another framework that is set turns that off, and so do
// commands that only a build without it has.
func image(s *source) (Result, bool, error) {
	commands := s.set.InstallCommand != "" || s.set.BuildCommand != ""
	switch {
	case !s.has(dockerfileName) || s.set.NoImage:
		return Result{}, false, nil
	case s.set.Framework == dockerfile && commands:
		return Result{}, false, fmt.Errorf("%w: framework is set to dockerfile, whose image is built by the lines of the Dockerfile alone: clear install_command and build_command", ErrUnknown)
	case s.set.Framework != dockerfile && (s.set.Framework != "" || commands):
		return Result{}, false, nil
	}
	return Result{Plan: appapi.Plan{Framework: dockerfile, Dockerfile: dockerfileName}}, true, nil
}

const passedOver = "the Dockerfile is not used, because install_command or build_command is set"

// passedOver reports whether there is a Dockerfile that only commands turn off.
func (s *source) passedOver() bool {
	return s.has(dockerfileName) && !s.set.NoImage && s.set.Framework == "" && (s.set.InstallCommand != "" || s.set.BuildCommand != "")
}
