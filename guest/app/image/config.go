package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Bounds on what is taken over from an image.
const (
	maxInspect = 4 << 20 // bytes that buildah says of it
	maxWords   = 1000    // of its command, and variables
	maxBytes   = 1 << 20 // of all of them
)

// ErrBad is wrapped by errors that say what is wrong with an image, in words for the tenant.
var ErrBad = errors.New("the image cannot be run")

// parse reads what buildah says of an image.
func parse(raw []byte, over bool) (Image, error) {
	var said struct {
		Docker struct {
			Config struct {
				User       string
				Env        []string
				Entrypoint []string
				Cmd        []string
				WorkingDir string
			} `json:"config"`
		}
	}
	if over {
		return Image{}, fmt.Errorf("%w: its configuration has more than %d MB", ErrBad, maxInspect>>20)
	}
	if err := json.Unmarshal(raw, &said); err != nil {
		return Image{}, fmt.Errorf("%w: its configuration: %w", ErrBad, err)
	}
	c := said.Docker.Config
	i := Image{Entrypoint: c.Entrypoint, Cmd: c.Cmd, Dir: c.WorkingDir, User: c.User}
	for _, kv := range c.Env {
		if name, _, ok := strings.Cut(kv, "="); ok && name != "" {
			i.Env = append(i.Env, kv)
		}
	}
	words := append(slices.Concat(i.Entrypoint, i.Cmd, i.Env), i.Dir, i.User)
	size := 0
	for _, word := range words {
		size += len(word)
		if strings.ContainsRune(word, 0) {
			return Image{}, fmt.Errorf("%w: its configuration contains a NUL byte", ErrBad)
		}
	}
	if len(words) > maxWords || size > maxBytes {
		return Image{}, fmt.Errorf("%w: its command and variables have more than %d words or %d KB", ErrBad, maxWords, maxBytes>>10)
	}
	if i.Dir != "" && !path.IsAbs(i.Dir) {
		i.Dir = "/" + i.Dir
	}
	return i, nil
}
