package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-cloud/berth/controlplane/api"
)

// maxSource is what the service takes of a source, in bytes of its tar.gz.
const maxSource = 512 << 20

// neverPacked are the directories that are made anew by a build.
var neverPacked = []string{".git", "node_modules", ".venv", "__pycache__"}

// ignoreFile names, in a folder, what is not deployed of it.
const ignoreFile = ".berthignore"

// uploadSource packs a folder and uploads it.
func (a *app) uploadSource(ctx context.Context, c *api.Client, one *api.App, dir string) (out *api.SourceUpload, err error) {
	err = a.sendFolder(ctx, dir, maxSource, func(tarball io.Reader, length int64) error {
		out, err = c.PutAppSource(ctx, one.ID, tarball, length)
		return err
	})
	return out, err
}

// sendFolder packs a folder, of at most so many bytes, and has it sent.
func (a *app) sendFolder(ctx context.Context, dir string, most int64, send func(tarball io.Reader, length int64) error) error {
	if err := isFolder(dir); err != nil {
		return err
	}
	names, err := a.sourceFiles(ctx, dir)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return fmt.Errorf("%s has nothing to deploy", dir)
	}
	// In a file first: its size is known before it is sent, and a file that changes
	// meanwhile breaks nothing off.
	packed, err := os.CreateTemp("", "berth-source-*.tar.gz")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(packed.Name()) }()
	defer packed.Close()
	stop := spin(a.stderr, "packing "+filepath.Base(dir))
	err = pack(packed, dir, names)
	stop()
	if err != nil {
		return fmt.Errorf("pack %s: %w", dir, err)
	}
	length, err := packed.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if length > most {
		return fmt.Errorf("%s is %s packed, and a source has at most %s: name what is not needed in %s", dir, size(length), size(most), ignoreFile)
	}
	if _, err := packed.Seek(0, io.SeekStart); err != nil {
		return err
	}
	bar := a.bar("uploading", length)
	defer func() { _ = bar.Close() }()
	if err := send(io.TeeReader(packed, bar), length); err != nil {
		return err
	}
	files := "files"
	if len(names) == 1 {
		files = "file"
	}
	a.note("uploaded %d %s, %s", len(names), files, size(length))
	return nil
}

// sourceFiles are the files of a folder that are deployed, relative to it with slashes.
func (a *app) sourceFiles(ctx context.Context, dir string) ([]string, error) {
	names, ok := gitFiles(ctx, dir)
	if !ok {
		if _, err := os.Lstat(filepath.Join(dir, ".gitignore")); err == nil {
			a.note("warning: git does not know %s: what .gitignore names is deployed too", filepath.Base(dir))
		}
		var err error
		if names, err = walkFiles(dir); err != nil {
			return nil, err
		}
	}
	ignored, err := readIgnore(filepath.Join(dir, ignoreFile))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(names, func(name string) bool {
		return name == ignoreFile || name == rememberedApp || ignored.match(name)
	}), nil
}

// gitFiles are those that git tracks, or would; ok is false where git does not know the
// folder.
func gitFiles(ctx context.Context, dir string) (names []string, ok bool) {
	cmd := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return nil, false
	}
	for name := range bytes.SplitSeq(out, []byte{0}) {
		if len(name) == 0 {
			continue
		}
		name := string(name)
		st, err := os.Lstat(filepath.Join(dir, name))
		switch {
		case err != nil: // it is only in the index
		case !st.IsDir():
			names = append(names, name)
		case !strings.HasSuffix(name, "/"): // a submodule; with a slash, a repository that git does not track
			of, _ := gitFiles(ctx, filepath.Join(dir, name))
			for _, sub := range of {
				names = append(names, path.Join(name, sub))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), true // one in conflict is listed for each side
}

func walkFiles(dir string) (names []string, err error) {
	err = filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && p != dir && slices.Contains(neverPacked, e.Name()):
			return fs.SkipDir
		case e.IsDir():
			return nil
		}
		rel, err := filepath.Rel(dir, p)
		names = append(names, filepath.ToSlash(rel))
		return err
	})
	return names, err
}

// pack writes a tar.gz of files of a folder. Nobody's name and no owner is in it.
func pack(w io.Writer, dir string, names []string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	zip := gzip.NewWriter(w)
	tw := tar.NewWriter(zip)
	for _, name := range names {
		if err := packFile(tw, root, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return errors.Join(tw.Close(), zip.Close())
}

func packFile(tw *tar.Writer, root *os.Root, name string) error {
	local := filepath.FromSlash(name)
	st, err := root.Lstat(local)
	if err != nil {
		return err
	}
	target := ""
	switch {
	case st.Mode()&fs.ModeSymlink != 0:
		if target, err = root.Readlink(local); err != nil {
			return err
		}
	case !st.Mode().IsRegular():
		return nil // sockets, pipes and devices are no source
	}
	h, err := tar.FileInfoHeader(st, target)
	if err != nil {
		return err
	}
	h.Name, h.Uid, h.Gid, h.Uname, h.Gname = name, 0, 0, "", ""
	if err := tw.WriteHeader(h); err != nil || !st.Mode().IsRegular() {
		return err
	}
	f, err := root.Open(local)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyN(tw, f, h.Size)
	return err
}

// ignoring are patterns, one a line of a file: of names, as *.log, anywhere; or of
// paths, as docs/*.pdf or /build, from the folder. A directory's is of all in it.
type ignoring []string

// readIgnore reads a file that may not be there. Blank lines and those that begin with
// '#' are none.
func readIgnore(file string) (ignoring, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out ignoring
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSuffix(strings.TrimSpace(lines.Text()), "/")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if _, err := path.Match(line, ""); err != nil || strings.HasPrefix(line, "!") || strings.Contains(line, "**") {
			return nil, fmt.Errorf("%s: line %d: %q is no pattern: want names or paths, with * and ?", file, n, line)
		}
		out = append(out, line)
	}
	return out, lines.Err()
}

// match reports whether a file, or a directory that it is in, is ignored.
func (g ignoring) match(name string) bool {
	for p := name; p != "." && p != "/"; p = path.Dir(p) {
		for _, pattern := range g {
			of := path.Base(p)
			if strings.Contains(pattern, "/") {
				of, pattern = p, strings.TrimPrefix(pattern, "/")
			}
			if ok, _ := path.Match(pattern, of); ok {
				return true
			}
		}
	}
	return false
}
