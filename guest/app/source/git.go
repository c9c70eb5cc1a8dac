// Package source brings an app's source into its guest: a clone of a repository, or a
// tar.gz that was handed over. Both are hostile.
package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/berth-cloud/berth/guest/app/command"
	"github.com/berth-cloud/berth/guest/appapi"
)

// Limits of a source.
const (
	MaxFiles = 200_000
	MaxBytes = 2 << 30 // of the files; and of what is downloaded for them
)

// ErrRefused is wrapped by errors that say what is wrong with a source, in words for the
// tenant.
var ErrRefused = errors.New("the source cannot be used")

// Cloner clones repositories.
type Cloner struct {
	Runner *command.Runner
	User   string // whom git runs as: not the tenant's commands' user. "": the Runner's
	Home   string // an empty directory that is made for each clone
	Limits Limits
}

// Limits bound a source; the zero value is the package's constants.
type Limits struct {
	Files int
	Bytes int64
}

func (l Limits) files() int {
	if l.Files > 0 {
		return l.Files
	}
	return MaxFiles
}

func (l Limits) bytes() int64 {
	if l.Bytes > 0 {
		return l.Bytes
	}
	return MaxBytes
}

// Commit is what was checked out.
type Commit struct{ ID, Message, Author string }

var (
	commitID = regexp.MustCompile(`^(?:[0-9a-f]{40}|[0-9a-f]{64})$`)
	shortID  = regexp.MustCompile(`^[0-9a-f]{7,63}$`)
	// A ref's name, as git check-ref-format has it, without what no host of
	// repositories allows either.
	refName = regexp.MustCompile(`^[^\x00-\x20\x7f~^:?*\[\\]+$`)
)

// CheckGit refuses what is no repository or ref that is fetched.
func CheckGit(g appapi.Git) error {
	if strings.ContainsFunc(g.URL, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return fmt.Errorf("%w: the repository's URL contains white space or control characters", ErrRefused)
	}
	u, err := url.Parse(g.URL)
	switch {
	case err != nil || u.Opaque != "":
		return fmt.Errorf("%w: the repository's address is not a URL", ErrRefused)
	case u.Scheme != "https" && (u.Scheme != "http" || !g.AllowHTTP):
		return fmt.Errorf("%w: the repository's URL begins with %.20q: only https:// is supported", ErrRefused, u.Scheme+":")
	case u.User != nil:
		return fmt.Errorf("%w: the repository's URL contains credentials: connect the repository instead", ErrRefused)
	case u.Hostname() == "" || strings.HasPrefix(u.Hostname(), "-"):
		return fmt.Errorf("%w: the repository's URL has no host", ErrRefused)
	case u.Fragment != "":
		return fmt.Errorf("%w: the repository's URL has a fragment", ErrRefused)
	}
	if strings.ContainsAny(g.Token+g.Username, "\r\n\x00") {
		return fmt.Errorf("%w: its credentials contain control characters", ErrRefused)
	}
	if err := checkRef(g.Within); err != nil {
		return err
	}
	return checkRef(g.Ref)
}

func checkRef(ref string) error {
	if ref == "" {
		return nil
	}
	bad := len(ref) > 255 || !refName.MatchString(ref) || strings.HasPrefix(ref, "-") || strings.HasPrefix(ref, "/") || strings.HasSuffix(ref, "/") ||
		strings.HasSuffix(ref, ".") || strings.Contains(ref, "..") || strings.Contains(ref, "//") || strings.Contains(ref, "@{") || ref == "@"
	for part := range strings.SplitSeq(ref, "/") {
		bad = bad || strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".lock")
	}
	if bad {
		return fmt.Errorf("%w: %.80q is not the name of a branch or tag, or a commit", ErrRefused, ref)
	}
	return nil
}

// endLimit is how long what is left of a clone may take to end.
const endLimit = 10 * time.Second

// Clone clones a repository into a new directory. What git says goes to out; the token
// does not, for git is not given it on its command line, and says none of it.
func (c *Cloner) Clone(ctx context.Context, g appapi.Git, dir string, out io.Writer) (Commit, error) {
	if err := CheckGit(g); err != nil {
		return Commit{}, err
	}
	if err := os.RemoveAll(c.Home); err != nil {
		return Commit{}, err
	}
	for _, made := range []string{c.Home, dir} {
		if err := c.mkdir(made); err != nil {
			return Commit{}, err
		}
	}
	defer os.RemoveAll(c.Home)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	watching := watch(ctx, dir, c.Limits, stop)
	defer watching()
	r := &repository{cloner: c, git: g, dir: dir, out: out, env: c.environment(g)}
	commit, err := r.clone(ctx)
	// What a helper of git's has left knows the token, and may still change the tree
	// that is about to be given away.
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), endLimit)
	defer cancel()
	err = errors.Join(err, (&command.Runner{User: c.User}).EndAll(ending))
	if cause := context.Cause(ctx); errors.Is(cause, ErrRefused) {
		err = cause
	}
	return commit, err
}

func (c *Cloner) mkdir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return c.chown(dir)
}

// environment is what git is told beside its arguments. Nothing of the machine's
// configuration, and nothing of a repository's, runs a program.
func (c *Cloner) environment(g appapi.Git) map[string]string {
	env := map[string]string{
		"HOME": c.Home, "XDG_CONFIG_HOME": filepath.Join(c.Home, "config"), "LC_ALL": "C.UTF-8",
		"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.DevNull, "GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "/bin/false",
		"GIT_LFS_SKIP_SMUDGE": "1", "GIT_ALLOW_PROTOCOL": "https", "GIT_PROTOCOL_FROM_USER": "0",
	}
	if g.AllowHTTP {
		env["GIT_ALLOW_PROTOCOL"] = "https:http"
	}
	config := [][2]string{
		{"core.hooksPath", os.DevNull}, {"core.fsmonitor", "false"}, {"init.templateDir", ""}, {"init.defaultBranch", "main"}, {"gc.auto", "0"}, {"maintenance.auto", "false"},
		{"advice.detachedHead", "false"}, {"http.lowSpeedLimit", "1000"}, {"http.lowSpeedTime", "60"}, {"fetch.fsckObjects", "true"},
		{"transfer.bundleURI", "false"}, {"submodule.recurse", "false"}, {"safe.directory", "*"},
		// Messages that only look like those of missing zeros in dates: old histories
		// have them, and they harm nobody.
		{"fetch.fsck.zeroPaddedFilemode", "ignore"}, {"fetch.fsck.missingSpaceBeforeDate", "ignore"}, {"fetch.fsck.badTimezone", "ignore"},
		{"fetch.fsck.missingEmail", "ignore"}, {"fetch.fsck.zeroPaddedDate", "ignore"},
	}
	u, _ := url.Parse(g.URL) // it was checked
	// Submodules have the addresses by which people push: git@host:owner/name.
	for _, ssh := range []string{"git@" + u.Hostname() + ":", "ssh://git@" + u.Hostname() + "/"} {
		config = append(config, [2]string{"url." + u.Scheme + "://" + u.Host + "/.insteadOf", ssh})
	}
	if g.Token != "" {
		// Asked for by git when the host wants it, and for this host alone: neither one
		// that it redirects to nor that of a submodule is given it. (A header of git's
		// configuration would go with a redirect.)
		env["BERTH_GIT_USERNAME"], env["BERTH_GIT_TOKEN"] = g.Username, g.Token
		if g.Username == "" {
			env["BERTH_GIT_USERNAME"] = "x-access-token"
		}
		config = append(config, [2]string{
			"credential." + u.Scheme + "://" + u.Host + ".helper",
			`!f() { test "$1" = get && printf 'username=%s\npassword=%s\n' "$BERTH_GIT_USERNAME" "$BERTH_GIT_TOKEN"; }; f`,
		})
	}
	env["GIT_CONFIG_COUNT"] = fmt.Sprint(len(config))
	for i, kv := range config {
		env[fmt.Sprintf("GIT_CONFIG_KEY_%d", i)], env[fmt.Sprintf("GIT_CONFIG_VALUE_%d", i)] = kv[0], kv[1]
	}
	return env
}
