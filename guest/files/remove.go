package files

import (
	"context"
	"errors"
	"io"
	"net/http"

	"golang.org/x/sys/unix"
)

// maxDepth is as deep as a path can reach. What lies deeper was made step by
// step, and would have a descriptor and a stack frame of ours for each step.
const maxDepth = unix.PathMax / 2

// maxPasses bounds the passes over a directory that is filled while it is
// emptied.
const maxPasses = 16

// Remove removes a file, a link, an empty directory or, with recursive, a
// directory with all that is in it. It stops at the first error.
func Remove(ctx context.Context, path string, recursive bool) error {
	if path == "/" {
		return &Refusal{Status: http.StatusBadRequest, Text: TextInvalidPath, Detail: "the root cannot be deleted"}
	}
	if recursive {
		return removeTree(ctx, unix.AT_FDCWD, path, 0)
	}
	err := unix.Unlink(path)
	if errors.Is(err, unix.EISDIR) {
		err = rmdir(unix.AT_FDCWD, path)
	}
	return err
}

func rmdir(parent int, name string) error {
	err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.EEXIST) {
		err = unix.ENOTEMPTY
	}
	return err
}

// removeTree goes by descriptors: a directory that is swapped for a link
// meanwhile does not lead it out of the tree.
func removeTree(ctx context.Context, parent int, name string, depth int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if depth > maxDepth {
		return errTooDeep
	}
	err := unix.Unlinkat(parent, name, 0)
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	for range maxPasses {
		if err = empty(ctx, parent, name, depth); err != nil {
			return err
		}
		if err = rmdir(parent, name); !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return err
}

func empty(ctx context.Context, parent int, name string, depth int) error {
	dir, err := openDir(parent, name, unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(readBatch)
		for _, entry := range names {
			err := removeTree(ctx, int(dir.Fd()), entry, depth+1)
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
