package agent

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// putFile writes the body to a file, which is the old one until it is the new.
func (s *Server) putFile(w http.ResponseWriter, r *http.Request) {
	path, mode, err := fileParams(r.URL.Query().Get("path"), r.URL.Query().Get("mode"))
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	if err := receiveFile(path, mode, r.Body); err != nil {
		status := http.StatusInternalServerError
		switch {
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
			status = http.StatusInsufficientStorage
		case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR), errors.Is(err, unix.EEXIST),
			errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.ELOOP), errors.Is(err, io.ErrUnexpectedEOF):
			status = http.StatusBadRequest
		}
		fail(w, status, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func fileParams(path, octal string) (string, os.FileMode, error) {
	if !filepath.IsAbs(path) || strings.ContainsRune(path, 0) {
		return "", 0, fmt.Errorf("path %q is not an absolute path", path)
	}
	if octal == "" {
		octal = "0644"
	}
	mode, err := strconv.ParseUint(octal, 8, 32)
	if err != nil || mode > 0o777 {
		return "", 0, fmt.Errorf("mode %q is not an octal number up to 0777", octal)
	}
	return filepath.Clean(path), os.FileMode(mode), nil
}

func receiveFile(path string, mode os.FileMode, body io.Reader) error {
	dir, base := filepath.Split(path)
	if base == "" {
		return fmt.Errorf("%s: %w", path, unix.EISDIR)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		return fmt.Errorf("%s: %w", path, unix.EISDIR)
	}
	f, err := os.CreateTemp(dir, ".berth-*")
	if err != nil {
		return err
	}
	_, err = io.Copy(f, body)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
