package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/berth-cloud/berth/hostd/image/oci"
)

// pullTime limits the fetch of an image, because builds run one after another.
const pullTime = 20 * time.Minute

// baseLayers returns the layers below a definition's own, and builds those that are
// missing. The definition inherits from them.
func (s *Store) baseLayers(ctx context.Context, d *Definition, o Options, r *reporter) ([]string, error) {
	if name, ok := d.fromTemplate(); ok {
		rec, err := s.readName(name)
		if err != nil {
			return nil, fmt.Errorf("from: %w", err)
		}
		m, err := s.readManifest(rec.BuildID)
		if err != nil {
			return nil, fmt.Errorf("from: %w", err)
		}
		d.inherit(m.Definition)
		return s.byContent(ctx, m.Layers)
	}
	var key string
	var err error
	if d.From != "" {
		key, err = s.imageBase(ctx, d, o, r)
	} else {
		key, err = s.bootstrapBase(ctx, d, r)
	}
	return []string{key}, err
}

// filesFromStart reports whether a definition's files are part of its bootstrap. If
// there are no steps to run in a guest, none needs to be booted, and sandboxes have
// one disk less.
func (d *Definition) filesFromStart() bool { return d.Bootstrap != nil && len(d.Run) == 0 }

func (s *Store) bootstrapBase(ctx context.Context, d *Definition, r *reporter) (string, error) {
	cas, err := authorities(s.cfg.GuestCAs)
	if err != nil {
		return "", err
	}
	inputs := bootstrapInputs{Format: layerRecipe, Bootstrap: *d.Bootstrap}
	for _, ca := range cas {
		inputs.CAs = append(inputs.CAs, ca.digest)
	}
	if d.filesFromStart() {
		inputs.Files = d.Files
	}
	return s.ensureLayer(ctx, inputs, func(ctx context.Context, dir, image string) error {
		return s.bootstrapLayer(ctx, inputs.Bootstrap, cas, inputs.Files, dir, image, r)
	})
}

// putFiles writes a definition's files into a root file system on the host. It
// follows links that stay in it.
func putFiles(dir string, files map[string]string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for name, content := range files {
		name = name[1:]
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := root.WriteFile(name, []byte(content), fileMode(content)); err != nil {
			return err
		}
		if err := root.Chmod(name, fileMode(content)); err != nil {
			return err
		}
	}
	return nil
}

// imageBase resolves an image's tag for every build. It builds what the tag means
// now; the layer's key is the image's digest.
func (s *Store) imageBase(ctx context.Context, d *Definition, o Options, r *reporter) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, pullTime, fmt.Errorf("it was not fetched within %s", pullTime))
	defer cancel()
	limits := oci.Limits{Bytes: oci.DefaultMaxMB << 20, Entries: oci.DefaultEntries}
	limits.Room = o.Room
	if s.cfg.OCIMaxMB > 0 {
		limits.Bytes = int64(s.cfg.OCIMaxMB) << 20
	}
	r.step(StepPull, 0, d.From)
	img, err := oci.Resolve(ctx, d.From, oci.Policy{Trusted: o.Workspace == "", Allow: s.cfg.OCIAllow}, limits)
	if err != nil {
		return "", err
	}
	defer img.Close()
	r.step(StepPull, 0, img.Pinned)
	d.From = img.Pinned
	d.Env = under(img.Env, d.Env)
	return s.ensureLayer(ctx, imageInputs{Format: layerRecipe, Digest: img.Digest}, func(ctx context.Context, dir, image string) error {
		return s.imageLayer(ctx, img, limits, dir, image, r)
	})
}

// imageLayer creates the root image of an OCI image.
func (s *Store) imageLayer(ctx context.Context, img *oci.Image, limits oci.Limits, dir, image string, r *reporter) error {
	if limits.Room != nil {
		if err := limits.Room(2 * img.Size); err != nil { // unpacked, and as a file system: no less
			return err
		}
	}
	// Only root may enter it while it is unpacked on the host, because it may
	// contain setuid programs.
	closed := filepath.Join(dir, "oci")
	root := filepath.Join(closed, "root")
	if err := os.Mkdir(closed, 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(closed) }() // the work directory is removed later anyway
	began := time.Now()
	err := img.Unpack(ctx, root, limits, func(done int64) {
		if time.Since(began) < time.Second && done < img.Size {
			return
		}
		began = time.Now()
		r.step(StepPull, float64(done)/float64(max(img.Size, 1)), fmt.Sprintf("%d of %d MB", done>>20, img.Size>>20))
	})
	if err != nil {
		return err
	}
	r.step(StepImage, 0, "")
	if err := makeImage(ctx, root, image); err != nil {
		return fmt.Errorf("make the root image: %w", err)
	}
	return nil
}

// authority is a CA certificate that guests trust because their host does.
type authority struct{ path, digest string }

// authorities returns the certificates in a directory, by name. On a network that
// inspects TLS, nothing can be installed in a guest without its CA.
func authorities(dir string) ([]authority, error) {
	if dir == "" {
		return nil, nil
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*.crt"))
	if err != nil {
		return nil, fmt.Errorf("certificate authorities of guests: %w", err)
	}
	var all []authority
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("certificate authorities of guests: %w", err)
		}
		if !OnlyCertificates(raw) || !plainPath.MatchString(path) {
			return nil, fmt.Errorf("certificate authorities of guests: %s is not a file of PEM certificates alone with a plain name", path)
		}
		sum := sha256.Sum256(raw)
		all = append(all, authority{path, hex.EncodeToString(sum[:])})
	}
	return all, nil
}

// plainPath matches paths that need no quoting.
var plainPath = regexp.MustCompile(`^[A-Za-z0-9._/+-]+$`)

// OnlyCertificates reports whether a file may be shown to every tenant. It must not
// contain a key.
func OnlyCertificates(raw []byte) bool {
	for n := 0; ; n++ {
		var block *pem.Block
		if block, raw = pem.Decode(raw); block == nil {
			return n > 0
		}
		if block.Type != "CERTIFICATE" {
			return false
		}
	}
}

// trustHooks returns mmdebstrap's arguments that copy the certificates to where the
// package ca-certificates finds them when it is configured.
func trustHooks(cas []authority) []string {
	if len(cas) == 0 {
		return nil
	}
	const dir = "/usr/local/share/ca-certificates"
	args := []string{`--essential-hook=mkdir -p "$1` + dir + `"`}
	for _, ca := range cas {
		args = append(args, "--essential-hook=copy-in "+ca.path+" "+dir)
	}
	return args
}
