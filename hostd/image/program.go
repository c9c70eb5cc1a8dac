package image

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-cloud/berth/guest/guestclient"
)

// program returns the path of one of Berth's own programs, which are installed
// together.
func (s *Store) program(name string) string {
	return filepath.Join(filepath.Dir(s.cfg.Guestd), name)
}

// programs returns the SHA-256 of each of a definition's programs, by its path in
// the guest, so that a template is built again when one has changed.
func (s *Store) programs(ctx context.Context, d Definition) (map[string]string, error) {
	out := map[string]string{}
	for path, name := range d.Programs {
		id, err := identify(ctx, s.program(name), false)
		if err != nil {
			return nil, fmt.Errorf("program %s: %w", name, err)
		}
		out[path] = id.SHA256
	}
	return out, nil
}

// putProgram streams a program into a guest, because it may be larger than a
// definition.
func (s *Store) putProgram(ctx context.Context, guest *guestclient.Client, path, name string) error {
	f, err := os.Open(s.program(name))
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	_, err = guest.WriteFile(ctx, path, 0o755, f, st.Size())
	return err
}
