package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Limits bound an image.
type Limits struct {
	Bytes   int64 // of files, unpacked; also of the layers as they are sent
	Entries int   // of all layers
}

// The bounds that nobody has a reason to set.
const (
	DefaultMaxMB   = 8 << 10
	DefaultEntries = 1_000_000
	maxLayers      = 256
	maxConfig      = 1 << 20
	maxReference   = 512
)

// ErrReference is wrapped by errors about an image reference itself.
var ErrReference = errors.New("invalid image reference")

// IsReference tells an image reference from a template's name: it names a
// registry, a repository with a path, a tag or a digest.
func IsReference(from string) bool { return strings.ContainsAny(from, "/:@") }

// Check says what is wrong with a reference, without looking it up.
func Check(reference string) error {
	_, err := parse(reference)
	return err
}

func parse(reference string) (name.Reference, error) {
	if len(reference) > maxReference || strings.ContainsFunc(reference, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, fmt.Errorf("%w: at most %d printable characters", ErrReference, maxReference)
	}
	ref, err := name.ParseReference(reference, name.WeakValidation)
	if err != nil || strings.Contains(reference, "..") || strings.HasPrefix(reference, ".") {
		return nil, fmt.Errorf("%w: %q is neither registry/repository:tag nor repository@digest", ErrReference, reference)
	}
	return ref, nil
}

// Image is an image of a registry, of which the layers are yet to be read.
type Image struct {
	Reference string
	Pinned    string            // the reference, by digest
	Digest    string            // of the manifest for this platform: what a tag meant at this moment
	Env       map[string]string // of its configuration
	Size      int64             // of its layers, as they are sent
	layers    []v1.Layer
	close     func()
}

// Close ends the connections to the registry.
func (i *Image) Close() { i.close() }

// Resolve looks an image up, for linux/amd64. ctx is that of the whole pull:
// the layers are read under it.
func Resolve(ctx context.Context, reference string, p Policy, limits Limits) (_ *Image, err error) {
	ref, err := parse(reference)
	if err != nil {
		return nil, err
	}
	rt, closeAll := p.transport()
	defer func() {
		if err != nil {
			closeAll()
			err = fmt.Errorf("image %s: %w", reference, clean(ctx, err))
		}
	}()
	keys := authn.NewMultiKeychain()
	if p.Trusted {
		keys = authn.DefaultKeychain
	}
	img, err := remote.Image(ref, remote.WithContext(ctx), remote.WithTransport(rt), remote.WithAuthFromKeychain(keys),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "amd64"}))
	if err != nil {
		return nil, err
	}
	out, err := describe(img, limits)
	if err != nil {
		return nil, err
	}
	out.Reference, out.Pinned, out.close = reference, ref.Context().Name()+"@"+out.Digest, closeAll
	return out, nil
}

// describe reads an image's manifest and configuration.
func describe(img v1.Image, limits Limits) (*Image, error) {
	manifest, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	// Of one whose size is not told, all that comes would be held.
	if manifest.Config.Size < 0 || manifest.Config.Size > maxConfig {
		return nil, fmt.Errorf("its configuration has %d bytes, at most %d", manifest.Config.Size, maxConfig)
	}
	if len(manifest.Layers) > maxLayers {
		return nil, fmt.Errorf("it has %d layers, at most %d", len(manifest.Layers), maxLayers)
	}
	out := &Image{}
	for _, l := range manifest.Layers {
		if l.Size < 0 || l.Size > limits.Bytes-out.Size {
			return nil, fmt.Errorf("%w: its layers have more than %d bytes", ErrTooLarge, limits.Bytes)
		}
		out.Size += l.Size
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	if config.OS != "linux" || config.Architecture != "amd64" {
		return nil, fmt.Errorf("it is for %s/%s, guests are linux/amd64", config.OS, config.Architecture)
	}
	digest, err := img.Digest()
	if err != nil {
		return nil, err
	}
	if out.layers, err = img.Layers(); err != nil {
		return nil, err
	}
	out.Digest, out.Env = digest.String(), environment(config.Config.Env)
	return out, nil
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// environment leaves out what a shell could not have set. PATH is kept: an
// image may have its programs in a place of its own.
func environment(list []string) map[string]string {
	out := map[string]string{}
	for _, kv := range list {
		k, v, ok := strings.Cut(kv, "=")
		if ok && envName.MatchString(k) && !strings.ContainsRune(v, 0) {
			out[k] = v
		}
	}
	return out
}

// clean keeps what a registry said short, and says why a context ended.
func clean(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var u *url.Error // without the URL: it may carry a token
	if errors.As(err, &u) {
		err = u.Err
	}
	const limit = 600
	if text := err.Error(); len(text) > limit && !errors.Is(err, ErrForbidden) {
		return errors.New(text[:limit] + "…")
	}
	return err
}

// Unpack fills the directory with the image's files. tell is told how many
// bytes of Size have come.
func (i *Image) Unpack(ctx context.Context, dir string, limits Limits, tell func(done int64)) error {
	u, err := newUnpacker(dir, limits)
	if err != nil {
		return err
	}
	defer u.root.Close()
	var before int64
	for n, l := range i.layers {
		size, err := l.Size()
		if err == nil {
			err = u.fromRegistry(ctx, l, func(done int64) { tell(before + min(done, size)) })
		}
		if err != nil {
			return fmt.Errorf("image %s: layer %d of %d: %w", i.Reference, n+1, len(i.layers), clean(ctx, err))
		}
		before += size
	}
	return u.finish()
}

func (u *unpacker) fromRegistry(ctx context.Context, l v1.Layer, tell func(done int64)) error {
	kind, err := l.MediaType()
	if err != nil {
		return err
	}
	if !slices.Contains(readable, kind) {
		// Others are no file systems, or lie where their manifest's author says.
		return fmt.Errorf("its media type is %q, not one of %v", string(kind), readable)
	}
	packed, err := l.Compressed() // checked against its digest as it is read
	if err != nil {
		return err
	}
	defer packed.Close()
	plain, err := decompress(&counter{ctx: ctx, r: packed, tell: tell})
	if err != nil {
		return err
	}
	defer plain.Close()
	if err := u.layer(plain); err != nil {
		return err
	}
	// To the end: only then is the digest compared.
	_, err = io.Copy(io.Discard, io.LimitReader(plain, maxManifest))
	if err == nil {
		_, err = io.Copy(io.Discard, packed)
	}
	return err
}

// readable are the media types of layers that a registry itself serves.
var readable = []types.MediaType{
	types.OCILayer, types.OCILayerZStd, types.OCIUncompressedLayer, types.DockerLayer, types.DockerUncompressedLayer,
}

type counter struct {
	ctx  context.Context
	r    io.Reader
	n    int64
	tell func(int64)
}

func (c *counter) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	n, err := c.r.Read(p)
	c.n += int64(n)
	c.tell(c.n)
	return n, err
}
