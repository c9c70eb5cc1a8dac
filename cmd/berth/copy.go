package main

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/controlplane/api"
)

func (a *app) copy() *cobra.Command {
	return &cobra.Command{
		Use:   "cp SOURCE DESTINATION",
		Short: "Copy files and directories into and out of a sandbox",
		Long: `Copy a file or a directory between this machine and a sandbox. A path in a sandbox
is written ID:/path. A destination that ends in / is a directory; the copy keeps
its name in it. "-" stands for stdin or stdout.

A file appears when all of it has been copied: an interrupted copy leaves the
former file in place. Directories are copied with their contents, and links in them
as links; the sandbox needs tar for that. A link that is named itself stands for what
it leads to.`,
		Example: `  berth cp report.csv $id:/root/
  berth cp $id:/var/log/app.log .
  berth cp ./src $id:/app/src
  pg_dump shop | berth cp - $id:/tmp/shop.sql`,
		Args: wants(2, 2, "SOURCE and DESTINATION"),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, to := parsePlace(args[0]), parsePlace(args[1])
			for i, p := range []place{from, to} {
				if why := misspelt(p, args[i]); why != "" {
					return usage(cmd, "%s", why)
				}
			}
			if (from.id == "") == (to.id == "") {
				return usage(cmd, "exactly one side must be in a sandbox, written ID:/path")
			}
			if p := from.path + to.path; strings.ContainsRune(p, 0) {
				return usage(cmd, "a path cannot contain a NUL character")
			}
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			if to.id != "" {
				return a.upload(cmd.Context(), c, from.path, to)
			}
			return a.download(cmd.Context(), c, from, to.path)
		},
	}
}

// place is one side of a copy; id is empty for a local path.
type place struct{ id, path string }

var inSandbox = regexp.MustCompile(`^([a-z2-7]{26}):(/.*)$`)

// What may have been meant as a place in a sandbox: an id without an absolute path, and an
// absolute path without an id.
var (
	relative  = regexp.MustCompile(`^[a-z2-7]{26}:`)
	noSandbox = regexp.MustCompile(`^([A-Za-z0-9_-]*):/`)
)

// misspelt says what is wrong with an argument that looks like a place in a sandbox, and
// names no local file; else "".
func misspelt(p place, text string) string {
	if _, err := os.Lstat(text); p.id != "" || err == nil {
		return ""
	}
	if relative.MatchString(text) {
		return fmt.Sprintf("%s: a path in a sandbox is absolute: ID:/path", text)
	}
	if m := noSandbox.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("%s: %q is not the id of a sandbox, which has 26 characters", text, m[1])
	}
	return ""
}

func parsePlace(text string) place {
	if m := inSandbox.FindStringSubmatch(text); m != nil {
		return place{m[1], m[2]}
	}
	return place{path: text}
}

// bar shows the progress of a copy on a terminal.
func (a *app) bar(what string, total int64) *progressbar.ProgressBar {
	if a.json || !isTerminal(a.stderr) {
		return progressbar.DefaultSilent(total)
	}
	return progressbar.NewOptions64(total, progressbar.OptionSetWriter(a.stderr), progressbar.OptionSetDescription(what),
		progressbar.OptionShowBytes(true), progressbar.OptionSetWidth(24), progressbar.OptionThrottle(100_000_000),
		progressbar.OptionClearOnFinish(), progressbar.OptionFullWidth())
}

func (a *app) upload(ctx context.Context, c *api.Client, from string, to place) error {
	if from == "-" {
		if strings.HasSuffix(to.path, "/") {
			return errors.New("stdin has no name: give the full path of the file to write")
		}
		bar := a.bar("stdin", -1)
		defer func() { _ = bar.Close() }()
		_, err := c.WriteFile(ctx, to.id, to.path, "", io.TeeReader(a.stdin, bar), -1)
		return err
	}
	st, err := os.Stat(from)
	if err != nil {
		return err
	}
	if st.IsDir() {
		return a.uploadDir(ctx, c, from, to)
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%s is neither a file nor a directory", from)
	}
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	if strings.HasSuffix(to.path, "/") {
		to.path += filepath.Base(from)
	}
	bar := a.bar(filepath.Base(from), st.Size())
	defer func() { _ = bar.Close() }()
	_, err = c.WriteFile(ctx, to.id, to.path, fmt.Sprintf("%04o", st.Mode().Perm()), io.TeeReader(f, bar), st.Size())
	return err
}

// uploadDir streams a tar to tar in the sandbox.
func (a *app) uploadDir(ctx context.Context, c *api.Client, from string, to place) error {
	if strings.HasSuffix(to.path, "/") {
		abs, err := filepath.Abs(from)
		if err != nil {
			return err
		}
		to.path = path.Join(to.path, filepath.Base(abs))
	}
	if err := c.MakeDir(ctx, to.id, to.path); err != nil {
		return err
	}
	s, err := c.OpenExec(ctx, to.id, api.Exec{Cmd: api.Argv("tar", "-x", "-p", "-C", to.path), TimeoutSeconds: new(int64(3600))})
	if err != nil {
		return err
	}
	defer s.Close()
	bar := a.bar(from, -1)
	defer func() { _ = bar.Close() }()
	type sending struct{ local, remote error }
	sent := make(chan sending, 1)
	go func() {
		out := &sink{w: s}
		err := writeTar(io.MultiWriter(out, bar), from)
		switch {
		case err == nil:
			err = s.CloseInput()
		case out.err == nil:
			s.Close() // tar in the sandbox would wait for the rest
			sent <- sending{local: err}
			return
		}
		sent <- sending{remote: err}
	}()
	err = ended(s, nil)
	s.Close()
	// How the session ended says more than that it could not be written to, and less
	// than why its end was brought about here.
	how := <-sent
	return cmp.Or(how.local, err, how.remote)
}

// sink remembers whether writing failed.
type sink struct {
	w   io.Writer
	err error
}

// Write implements io.Writer.
func (s *sink) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	if err != nil {
		s.err = err
	}
	return n, err
}

// ended reads a session to its end. If the exit code is not 0, it fails with the
// session's stderr.
func ended(s *api.Session, stdout io.Writer) error {
	var complaint strings.Builder
	for {
		stream, data, exit, err := s.Next()
		switch {
		case err != nil:
			return err
		case exit != nil && exit.ExitCode != 0:
			return fmt.Errorf("tar in the sandbox: exit code %d: %s", exit.ExitCode, strings.TrimSpace(complaint.String()))
		case exit != nil:
			return nil
		case stream == "stderr" && complaint.Len() < 4<<10:
			complaint.Write(data)
		case stream == "stdout" && stdout != nil:
			if _, err := stdout.Write(data); err != nil {
				return err
			}
		}
	}
}

// writeTar writes the contents of a directory.
func writeTar(w io.Writer, dir string) error {
	tw := tar.NewWriter(w)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		target := ""
		switch {
		case st.Mode()&fs.ModeSymlink != 0:
			if target, err = root.Readlink(name); err != nil {
				return err
			}
		case !st.Mode().IsRegular() && !st.IsDir():
			return nil // sockets, pipes and devices are not copied
		}
		h, err := tar.FileInfoHeader(st, target)
		if err != nil {
			return err
		}
		h.Name, h.Uid, h.Gid, h.Uname, h.Gname = name, 0, 0, "", ""
		if err := tw.WriteHeader(h); err != nil || !st.Mode().IsRegular() {
			return err
		}
		f, err := root.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.CopyN(tw, f, h.Size)
		return err
	})
	return errors.Join(err, tw.Close())
}

// maxLinks is how many links Linux follows.
const maxLinks = 40

// statTarget describes what a path leads to: StatFile describes a link itself.
func statTarget(ctx context.Context, c *api.Client, p place) (*api.FileStat, error) {
	at := path.Clean(p.path)
	for range maxLinks {
		st, err := c.StatFile(ctx, p.id, at)
		if err != nil || st.Type != api.FileSymlink {
			return st, err
		}
		if path.IsAbs(st.Target) {
			at = path.Clean(st.Target)
		} else {
			at = path.Join(path.Dir(at), st.Target)
		}
	}
	return nil, fmt.Errorf("%s: too many levels of symbolic links", p.path)
}

func (a *app) download(ctx context.Context, c *api.Client, from place, to string) error {
	st, err := statTarget(ctx, c, from)
	if err != nil {
		return err
	}
	if st.Type == api.FileDir {
		if to == "-" {
			return errors.New("a directory cannot go to stdout")
		}
		return a.downloadDir(ctx, c, from, to)
	}
	body, err := c.ReadFile(ctx, from.id, from.path)
	if err != nil {
		return err
	}
	defer body.Close()
	bar := a.bar(path.Base(from.path), body.Size)
	defer func() { _ = bar.Close() }()
	if to == "-" {
		_, err := io.Copy(a.stdout, io.TeeReader(body, bar))
		return err
	}
	if into, err := os.Stat(to); strings.HasSuffix(to, "/") || (err == nil && into.IsDir()) {
		to = filepath.Join(to, path.Base(from.path))
	}
	return replace(to, st.Mode, io.TeeReader(body, bar))
}

// replace replaces a file with body, once all of it has arrived.
func replace(name, mode string, body io.Reader) error {
	perm := fs.FileMode(0o644)
	if _, err := fmt.Sscanf(mode, "%o", &perm); err != nil {
		perm = 0o644
	}
	return atomicfile.SwapFrom(name, perm&fs.ModePerm, func(w io.Writer) error {
		_, err := io.Copy(w, body)
		return err
	})
}

// downloadDir unpacks a tar that tar in the sandbox writes. The sandbox is not
// trusted: nothing is written outside the directory.
func (a *app) downloadDir(ctx context.Context, c *api.Client, from place, to string) error {
	if into, err := os.Stat(to); strings.HasSuffix(to, "/") || (err == nil && into.IsDir()) {
		to = filepath.Join(to, path.Base(from.path))
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	s, err := c.OpenExec(ctx, from.id, api.Exec{Cmd: api.Argv("tar", "-c", "-C", from.path, "."), TimeoutSeconds: new(int64(3600))})
	if err != nil {
		return err
	}
	defer s.Close()
	bar := a.bar(from.path, -1)
	defer func() { _ = bar.Close() }()
	r, w := io.Pipe()
	unpacked := make(chan error, 1)
	go func() {
		err := readTar(io.TeeReader(r, bar), to)
		_ = r.CloseWithError(err) // tar's output is no longer read
		unpacked <- err
	}()
	err = ended(s, w)
	_ = w.CloseWithError(err)
	if local := <-unpacked; local != nil {
		return local
	}
	return err
}

// readTar unpacks an untrusted archive.
func readTar(r io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			// The padding at the end of an archive.
			_, err = io.Copy(io.Discard, r)
			return err
		}
		if err != nil {
			return fmt.Errorf("unpack: %w", err)
		}
		if err := unpack(root, filepath.FromSlash(path.Clean(h.Name)), h, tr); err != nil {
			return fmt.Errorf("unpack %s: %w", h.Name, err)
		}
	}
}

func unpack(root *os.Root, name string, h *tar.Header, body io.Reader) error {
	if name == "." {
		return nil
	}
	perm := h.FileInfo().Mode().Perm()
	switch h.Typeflag {
	case tar.TypeDir:
		if err := root.MkdirAll(name, perm|0o700); err != nil {
			return err
		}
		return nil
	case tar.TypeSymlink:
		_ = root.Remove(name)
		return root.Symlink(h.Linkname, name)
	case tar.TypeReg:
		_ = root.Remove(name)
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, perm)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, body)
		return errors.Join(err, f.Close())
	case tar.TypeLink:
		_ = root.Remove(name)
		return root.Link(filepath.FromSlash(path.Clean(h.Linkname)), name)
	}
	return nil // devices, pipes
}
