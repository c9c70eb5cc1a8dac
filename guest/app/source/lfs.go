package source

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os/exec"
	"strconv"
	"strings"

	"github.com/berth-cloud/berth/guest/appapi"
)

// lfs fetches large files that are kept in Git LFS, or says that it cannot. It does so as
// the clone does: by https, and with the credential for the repository's own host alone,
// which git-lfs asks git's helper for.
func (r *repository) lfs(ctx context.Context, c content) error {
	if !c.attributes {
		return nil
	}
	raw, err := r.run(ctx, "grep", "-l", "-e", "filter=lfs", "--", ".gitattributes", ":(glob)**/.gitattributes")
	if err != nil || strings.TrimSpace(raw) == "" {
		return nil // grep without a match
	}
	if _, err := exec.LookPath("git-lfs"); err != nil {
		fmt.Fprintln(r.out, "The repository keeps files in Git LFS, which this guest has not: they are only pointers here, a few lines of text each.")
		return nil
	}
	if err := r.lfsSizes(ctx, c); err != nil {
		return err
	}
	server, err := r.lfsServer(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(r.out, "Fetching files of Git LFS.")
	with := *r
	with.env = withConfig(r.env, [][2]string{
		{"lfs.url", server}, // over all that the repository says
		{"lfs.basictransfersonly", "true"}, {"lfs.concurrenttransfers", "4"}, {"lfs.transfer.maxretries", "3"}, {"lfs.activitytimeout", "60"}, {"lfs.dialtimeout", "30"},
		// Without these git-lfs leaves pointers in the tree.
		{"filter.lfs.clean", "git-lfs clean -- %f"}, {"filter.lfs.smudge", "git-lfs smudge -- %f"}, {"filter.lfs.required", "true"},
	})
	if _, err := with.run(ctx, "lfs", "pull", "origin"); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("%w: files of Git LFS could not be fetched from %s: %w", ErrRefused, server, err)
	}
	return nil
}

// lfsSizes adds what the pointers say of their files to what the tree has, before any is
// fetched. What is fetched is watched on the disk, too: a server may send more.
func (r *repository) lfsSizes(ctx context.Context, c content) error {
	files, size := c.files, c.size
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	err := r.stream(ctx, func(line []byte) {
		text, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "size: ")
		n, err := strconv.ParseInt(text, 10, 64)
		if !ok || err != nil || n < 0 {
			return
		}
		size = min(size+n, maxSize)
		if err := r.cloner.Limits.check(files, size); err != nil {
			stop(err)
		}
	}, "lfs", "ls-files", "--debug", "HEAD")
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%w: its pointers to files of Git LFS cannot be read: %w", ErrRefused, err)
	}
	return nil
}

// maxSize keeps a sum of sizes from an overflow.
const maxSize = 1 << 60

// lfsServer is where the repository's large files are: at the repository, or where its
// .lfsconfig says, which is held to what holds for the repository's own address.
func (r *repository) lfsServer(ctx context.Context) (string, error) {
	said, err := r.run(ctx, "config", "--blob", "HEAD:.lfsconfig", "--get", "lfs.url")
	if said = strings.TrimSpace(said); err == nil && said != "" {
		if err := CheckGit(appapi.Git{URL: said, AllowHTTP: r.git.AllowHTTP}); err != nil {
			return "", fmt.Errorf("lfs.url in .lfsconfig: %w", err)
		}
		return said, nil
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	u, err := url.Parse(r.git.URL)
	if err != nil {
		return "", err
	}
	u.Path = strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), ".git") + ".git/info/lfs"
	u.RawPath = ""
	return u.String(), nil
}

// withConfig adds settings to git's environment.
func withConfig(env map[string]string, config [][2]string) map[string]string {
	env = maps.Clone(env)
	n, _ := strconv.Atoi(env["GIT_CONFIG_COUNT"]) // it is this package's own
	for _, kv := range config {
		env[fmt.Sprintf("GIT_CONFIG_KEY_%d", n)], env[fmt.Sprintf("GIT_CONFIG_VALUE_%d", n)] = kv[0], kv[1]
		n++
	}
	env["GIT_CONFIG_COUNT"] = strconv.Itoa(n)
	return env
}
