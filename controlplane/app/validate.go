package app

import (
	"net/netip"
	"net/url"
	"path"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/webhook"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/guest/guestapi"
)

// Maximum lengths of fields, in characters, as in the public document.
const (
	maxName    = 100
	maxURL     = 2048
	maxRef     = 255
	maxWord    = 64
	maxCommand = 4096
	maxRoot    = 1024
)

// Maximum values of numbers.
const (
	maxCPU       = 1_000_000
	maxMemoryMB  = 1_000_000_000
	maxPort      = 65535
	maxInstances = 3
)

// MaxIdle is the largest idle_timeout_seconds: a week.
const MaxIdle = 7 * 24 * time.Hour

const defaultPort = 3000

var (
	errNoName   = &apierror.Error{Code: apierror.EInvalid, Message: "name is required"}
	errNoGitURL = &apierror.Error{Code: apierror.EInvalid, Message: "git_url is required"}
)

func validName(name string) error {
	if strings.TrimSpace(name) == "" {
		return errNoName
	}
	return text("name", name, maxName)
}

// text checks a single line for people to read.
func text(field, s string, most int) error {
	switch {
	case !utf8.ValidString(s), strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }):
		return apierror.Invalid("invalid "+field, "it has a character that cannot be shown")
	case utf8.RuneCountInString(s) > most:
		return apierror.Invalid("invalid "+field, "it has at most %d characters", most)
	}
	return nil
}

// validCommand checks a command line. A shell in the guest gets it as its owner wrote it.
func validCommand(field, s string) error {
	switch {
	case !utf8.ValidString(s):
		return apierror.Invalid("invalid "+field, "it is not UTF-8")
	case strings.ContainsRune(s, 0):
		return apierror.Invalid("invalid "+field, "it contains a NUL character")
	case utf8.RuneCountInString(s) > maxCommand:
		return apierror.Invalid("invalid "+field, "it has at most %d characters", maxCommand)
	}
	return nil
}

// validGitURL checks a clone URL. The addresses that its host name resolves to are checked
// by the network of the guest that clones it.
func validGitURL(raw string, allowHTTP bool) error {
	bad := func(why string) error { return apierror.Invalid("invalid git_url", "%s", why) }
	switch {
	case raw == "":
		return errNoGitURL
	case len(raw) > maxURL:
		return bad("it is too long")
	case strings.HasPrefix(raw, "-"), strings.ContainsFunc(raw, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '\\' }):
		return bad("it has a character that a clone URL may not have")
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return bad("it is no URL")
	case u.Scheme != "https" && (u.Scheme != "http" || !allowHTTP):
		return bad("want an https:// clone URL")
	case u.User != nil:
		return bad("it contains credentials: connect the repository's host instead")
	case u.Opaque != "", u.RawQuery != "", u.ForceQuery, u.Fragment != "", strings.Contains(raw, "#"):
		return bad("want a clone URL without a query or a fragment")
	case u.Hostname() == "":
		return bad("it has no host")
	case strings.Trim(u.Path, "/") == "":
		return bad("it has no path to a repository")
	case !allowHTTP && privateHost(u.Hostname()):
		return bad("its host is not one of the public internet")
	}
	return nil
}

func privateHost(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		return !webhook.Public(addr)
	}
	return webhook.PrivateName(host)
}

// validRef checks the name of a branch, a tag or a commit as git check-ref-format does.
func validRef(field, ref string) error {
	if len(ref) > maxRef || !utf8.ValidString(ref) || badRef(ref) {
		return apierror.Invalid("invalid "+field, "it is no name of a branch, a tag or a commit")
	}
	return nil
}

func badRef(ref string) bool {
	switch {
	case ref == "", ref == "@", ref[0] == '-', ref[len(ref)-1] == '.', strings.Contains(ref, ".."), strings.Contains(ref, "@{"):
		return true
	case strings.ContainsFunc(ref, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`~^:?*[\`, r) }):
		return true
	}
	for part := range strings.SplitSeq(ref, "/") {
		if part == "" || part[0] == '.' || strings.HasSuffix(part, ".lock") {
			return true
		}
	}
	return false
}

// validRoot checks a root directory and returns it cleaned; "" is the repository's root.
func validRoot(dir string) (string, error) {
	bad := func(why string) (string, error) { return "", apierror.Invalid("invalid root_directory", "%s", why) }
	switch {
	case !utf8.ValidString(dir), strings.ContainsFunc(dir, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' }):
		return bad("it has a character that it may not have")
	case utf8.RuneCountInString(dir) > maxRoot:
		return bad("it is too long")
	case strings.HasPrefix(dir, "/"):
		return bad("it must be relative to the repository")
	}
	for part := range strings.SplitSeq(dir, "/") {
		switch {
		case part == "..":
			return bad(`it must have no ".." in it`)
		case strings.HasPrefix(part, "-"):
			return bad(`no part of it may begin with "-"`)
		}
	}
	if dir = path.Clean(dir); dir == "." {
		return "", nil
	}
	return dir, nil
}

// freePort refuses the ports of the guest's own programs. These programs would answer
// anyone who reaches them on the path that requests to the app take.
func freePort(port int) error {
	if port == appapi.Port || port == guestapi.Port {
		return apierror.Invalid("invalid port", "%d is a port of the platform", port)
	}
	return nil
}

func inRange(field string, v, least, most int) error {
	if v < least || v > most {
		return apierror.Invalid("invalid "+field, "want an integer from %d to %d", least, most)
	}
	return nil
}
