package oci

import (
	"cmp"
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

// Limits limit an image.
type Limits struct {
	Bytes   int64 // of unpacked files; also of the layers as sent
	Entries int   // in all layers
	// Room, if not nil, refuses if so many bytes more have no room: those that are
	// unpacked next, and a file system of all that were.
	Room func(bytes int64) error
}

// Fixed limits and defaults.
const (
	DefaultMaxMB   = 8 << 10
	DefaultEntries = 1_000_000
	maxLayers      = 256
	maxConfig      = 1 << 20
	maxReference   = 512
)

// ErrReference is wrapped by errors about an image reference itself.
var ErrReference = errors.New("invalid image reference")

// IsReference reports whether from is an image reference and not a template's name:
// it contains a registry, a path, a tag or a digest.
func IsReference(from string) bool { return strings.ContainsAny(from, "/:@") }

// Check checks a reference without looking it up.
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

// Image is an image in a registry. Its layers have not been read yet.
type Image struct {
	Reference string
	Pinned    string            // the reference, with its digest
	Digest    string            // of the manifest for this platform, resolved now
	Env       map[string]string // from its configuration
	Size      int64             // of its layers, as sent
	layers    []v1.Layer
	close     func()
}

// Close ends the connections to the registry.
func (i *Image) Close() { i.close() }

// Resolve looks up an image for linux/amd64. ctx must live until the layers have
// been read.
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
	// If its size were not declared, all of it would be kept in memory.
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
	// Tools that append layers to nothing do not say what an image is for.
	if system, processor := cmp.Or(config.OS, "linux"), cmp.Or(config.Architecture, "amd64"); system != "linux" || processor != "amd64" {
		return nil, fmt.Errorf("it is for %s/%s, guests are linux/amd64", system, processor)
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

// environment omits variables that a shell could not set. It keeps PATH, because an
// image may have programs in unusual directories.
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

// clean shortens a registry's error, and returns why the context ended, if it did.
func clean(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var u *url.Error // omit the URL, which may contain a token
	if errors.As(err, &u) {
		err = u.Err
	}
	const limit = 600
	if text := err.Error(); len(text) > limit && !errors.Is(err, ErrForbidden) {
		return errors.New(text[:limit] + "…")
	}
	return err
}

// Unpack writes the image's files into the directory. It calls tell with the number
// of bytes of Size that have arrived.
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
		// Other types are not file systems, or are located wherever the manifest's
		// author says.
		return fmt.Errorf("its media type is %q, not one of %v", string(kind), readable)
	}
	packed, err := l.Compressed() // checked against its digest while it is read
	if err != nil {
		return err
	}
	defer packed.Close()
	plain, err := decompress(&counter{ctx: ctx, r: packed, tell: tell})
	if err != nil {
		return err
	}
	defer plain.Close()
	// A piece of the packed stream may have a hundred thousand entries.
	if err := u.layer(&counter{ctx: ctx, r: plain, tell: func(int64) {}}); err != nil {
		return err
	}
	// The digest is compared only at the end of the stream.
	_, err = io.Copy(io.Discard, io.LimitReader(plain, maxManifest))
	if err == nil {
		_, err = io.Copy(io.Discard, packed)
	}
	return err
}

// readable are the media types of layers that the registry itself serves.
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
