package proc

import (
	"slices"
	"strings"
)

const (
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	defaultTerm = "xterm-256color"
)

// Environ is the environment of a user's process: a sane base, then each of
// over in turn, the later over the earlier. It is sorted, so that equal inputs
// give equal environments.
func Environ(user User, tty bool, over ...map[string]string) []string {
	name := user.Name
	if name == "" {
		name = "user"
	}
	merged := map[string]string{
		"PATH": defaultPath, "HOME": user.Home, "USER": name, "LOGNAME": name,
		"SHELL": user.Shell, "LANG": "C.UTF-8",
	}
	if tty {
		merged["TERM"] = defaultTerm
	}
	for _, env := range over {
		for k, v := range env {
			merged[k] = v
		}
	}
	list := make([]string, 0, len(merged))
	for k, v := range merged {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return list
}

// lookEnv returns a variable of an environment made by Environ.
func lookEnv(env []string, key string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, key+"="); ok {
			return v
		}
	}
	return ""
}
