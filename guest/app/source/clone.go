package source

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/berth-cloud/berth/guest/app/command"
	"github.com/berth-cloud/berth/guest/appapi"
)

// repository is one clone.
type repository struct {
	cloner *Cloner
	git    appapi.Git
	dir    string
	out    io.Writer
	env    map[string]string
}

func (r *repository) clone(ctx context.Context) (Commit, error) {
	if _, err := r.run(ctx, "init", "--quiet"); err != nil {
		return Commit{}, err
	}
	if _, err := r.run(ctx, "remote", "add", "--", "origin", r.git.URL); err != nil {
		return Commit{}, err
	}
	found, err := r.fetch(ctx)
	if err != nil {
		return Commit{}, err
	}
	commit, err := r.commit(ctx, found)
	if err != nil {
		return Commit{}, err
	}
	content, err := r.list(ctx, commit.ID)
	if err != nil {
		return Commit{}, err
	}
	if _, err := r.run(ctx, "checkout", "--quiet", "--force", "--detach", commit.ID); err != nil {
		return Commit{}, err
	}
	if content.submodules {
		if err := r.submodules(ctx); err != nil {
			return Commit{}, err
		}
	}
	return commit, r.lfs(ctx, content)
}

// fetch fetches what is wanted, without its history where the host gives it so, and
// returns how git calls it now.
func (r *repository) fetch(ctx context.Context) (string, error) {
	ref := r.git.Ref
	switch {
	case ref == "":
		return "FETCH_HEAD", r.fetchRef(ctx, "HEAD")
	case strings.HasPrefix(ref, "refs/"):
		return "FETCH_HEAD", r.fetchRef(ctx, ref)
	case commitID.MatchString(ref):
		if r.fetchRef(ctx, ref) == nil {
			return "FETCH_HEAD", nil
		}
		// Some hosts only give what a branch or tag names: all of them then.
		return ref, r.fetchAll(ctx)
	}
	// A branch goes before a tag of its name, as an app is deployed from a branch.
	names := []string{"refs/heads/" + ref, "refs/tags/" + ref}
	raw, err := r.run(ctx, append([]string{"ls-remote", "--", "origin"}, names...)...)
	if err != nil {
		return "", err
	}
	for _, name := range names {
		for line := range strings.Lines(raw) {
			if _, there, _ := strings.Cut(strings.TrimSpace(line), "\t"); there == name {
				return "FETCH_HEAD", r.fetchRef(ctx, name)
			}
		}
	}
	if shortID.MatchString(ref) {
		return ref, r.fetchAll(ctx)
	}
	return "", fmt.Errorf("%w: the repository has no branch or tag %q", ErrRefused, ref)
}

func (r *repository) fetchRef(ctx context.Context, ref string) error {
	_, err := r.run(ctx, "fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--depth", "1", "--", "origin", ref)
	return err
}

func (r *repository) fetchAll(ctx context.Context) error {
	fmt.Fprintln(r.out, "The commit is not a branch's last: fetching the whole history.")
	args := []string{"fetch", "--quiet", "--no-recurse-submodules", "--tags", "--", "origin", "+refs/heads/*:refs/remotes/origin/*"}
	if r.git.Within != "" {
		args = append(args, "+"+r.git.Within+":refs/remotes/within")
	}
	_, err := r.run(ctx, args...)
	return err
}

// Bounds on what is kept of a commit, in bytes.
const (
	maxMessage = 1 << 10
	maxAuthor  = 200
)

func (r *repository) commit(ctx context.Context, name string) (Commit, error) {
	raw, err := r.run(ctx, "log", "-1", "--no-show-signature", "--encoding=UTF-8", "--format=%H%x00%an%x00%B", name, "--")
	if err != nil {
		return Commit{}, fmt.Errorf("%w: the repository has no commit %q", ErrRefused, r.git.Ref)
	}
	f := strings.SplitN(raw, "\x00", 3)
	if len(f) != 3 || !commitID.MatchString(f[0]) {
		return Commit{}, fmt.Errorf("git log: %.100q", raw)
	}
	return Commit{ID: f[0], Author: clip(f[1], maxAuthor), Message: clip(strings.TrimSpace(f[2]), maxMessage)}, nil
}

func clip(s string, n int) string { return strings.ToValidUTF8(s[:min(n, len(s))], "") }

// content is what a commit's tree contains.
type content struct {
	submodules, attributes bool
	files                  int
	size                   int64 // bytes
}

// list looks at a tree before it is written to disk: a small repository can have any
// number of files, of any size.
func (r *repository) list(ctx context.Context, commit string) (content, error) {
	var found content
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	err := r.stream(ctx, func(line []byte) {
		// mode SP type SP object SP size TAB path
		found.files++
		f := bytes.Fields(line)
		if len(f) < 4 {
			return
		}
		if n, err := strconv.ParseInt(string(f[3]), 10, 64); err == nil {
			found.size += n
		}
		found.submodules = found.submodules || string(f[0]) == "160000"
		found.attributes = found.attributes || bytes.HasSuffix(line, []byte(".gitattributes"))
		if err := r.cloner.Limits.check(found.files, found.size); err != nil {
			stop(err)
		}
	}, "ls-tree", "-r", "-l", "--full-tree", commit)
	if cause := context.Cause(ctx); errors.Is(cause, ErrRefused) {
		return found, cause
	}
	return found, err
}

func (l Limits) check(files int, size int64) error {
	switch {
	case files > l.files():
		return fmt.Errorf("%w: it has more than %d files", ErrRefused, l.files())
	case size > l.bytes():
		return fmt.Errorf("%w: its files have more than %d MB", ErrRefused, l.bytes()>>20)
	}
	return nil
}

// submodules clones what the tree refers to. Addresses that are no https are refused by
// git (GIT_ALLOW_PROTOCOL).
func (r *repository) submodules(ctx context.Context) error {
	fmt.Fprintln(r.out, "Fetching submodules.")
	if _, err := r.run(ctx, "submodule", "--quiet", "update", "--init", "--recursive", "--depth", "1"); err != nil {
		return fmt.Errorf("%w: a submodule could not be fetched (only https addresses are, and the token for this repository is for no other): %w", ErrRefused, err)
	}
	return nil
}

// run runs git and returns what it writes; of a failure, the error has the last of it.
func (r *repository) run(ctx context.Context, args ...string) (string, error) {
	var out, said tail
	ended, err := r.cloner.Runner.Run(ctx, r.command(args), &out, &said)
	switch {
	case err != nil:
		return "", fmt.Errorf("git %s: %w", args[0], err)
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case !ended.OK():
		return "", &gitError{verb: args[0], ended: ended, text: said.String()}
	}
	return out.String(), nil
}

func (r *repository) command(args []string) command.Command {
	return command.Command{
		Argv: append([]string{"git", "-C", r.dir}, args...), Dir: r.cloner.Home, User: r.cloner.User, Env: []map[string]string{r.env},
	}
}

// stream passes the lines that git writes to visit.
func (r *repository) stream(ctx context.Context, visit func(line []byte), args ...string) error {
	from, to := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewScanner(from)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			visit(lines.Bytes())
		}
		_, _ = io.Copy(io.Discard, from)
	}()
	ended, err := r.cloner.Runner.Run(ctx, r.command(args), to, io.Discard)
	_ = to.Close()
	<-done
	if err == nil && !ended.OK() {
		err = &gitError{verb: args[0], ended: ended}
	}
	if err != nil {
		return fmt.Errorf("git %s: %w", args[0], err)
	}
	return nil
}

// gitError is a failure of git.
type gitError struct {
	verb  string
	ended command.Ended
	text  string
}

func (e *gitError) Error() string {
	text := strings.TrimSpace(e.text)
	for _, known := range []struct{ said, means string }{
		{"could not read Username", "it does not exist, or is private and not connected"},
		{"Authentication failed", "its host refuses the credentials"},
		{"terminal prompts disabled", "it does not exist, or is private and not connected"},
		{"Could not resolve host", "its host's name cannot be resolved"},
		{"couldn't find remote ref", "it has no such branch, tag or commit"},
		{"not found", "it does not exist, or is private and not connected"},
	} {
		if e.verb != "lfs" && strings.Contains(text, known.said) { // of large files git-lfs says better what is missing
			return "the repository could not be fetched: " + known.means + "\n" + text
		}
	}
	return "git " + e.verb + " " + e.ended.String() + "\n" + text
}

// Is makes every failure of git one that the tenant is told.
func (e *gitError) Is(target error) bool { return target == ErrRefused }

// maxTail is how much is kept of what git writes, in bytes.
const maxTail = 64 << 10

// tail keeps the end of what is written to it.
type tail struct{ bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	n := len(p)
	p = p[max(0, len(p)-maxTail):]
	if over := t.Len() + len(p) - maxTail; over > 0 {
		t.Next(over)
	}
	_, _ = t.Buffer.Write(p) // it never fails
	return n, nil
}
