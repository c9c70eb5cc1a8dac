package oci

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// serve serves a registry on localhost and returns its host:port.
func serve(t *testing.T, wrap func(http.Handler) http.Handler) string {
	t.Helper()
	h := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if wrap != nil {
		h = wrap(h)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// push pushes an image with the layers to a registry and returns its reference.
func push(t *testing.T, host string, config v1.ConfigFile, layers ...[]byte) string {
	t.Helper()
	img, err := mutate.ConfigFile(empty.Image, &config)
	for _, l := range layers {
		if err == nil {
			img, err = mutate.AppendLayers(img, static.NewLayer(l, types.OCIUncompressedLayer))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	reference := host + "/team/app:v1"
	ref, err := name.ParseReference(reference)
	if err == nil {
		err = remote.Write(ref, img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return reference
}

var forGuests = v1.ConfigFile{OS: "linux", Architecture: "amd64"}

func pull(t *testing.T, reference string, p Policy, limits Limits) (*Image, string, error) {
	t.Helper()
	img, err := Resolve(t.Context(), reference, p, limits)
	if err != nil {
		return nil, "", err
	}
	defer img.Close()
	dir := t.TempDir()
	var last int64
	err = img.Unpack(t.Context(), dir, limits, func(done int64) { last = done })
	if err == nil && last != img.Size {
		t.Errorf("told %d bytes of %d", last, img.Size)
	}
	return img, dir, err
}

func TestImageIsPulled(t *testing.T) {
	needRoot(t)
	host := serve(t, nil)
	config := forGuests
	config.Config.Env = []string{"PATH=/opt/bin:/bin", "A=b=c", "not a variable=x"}
	reference := push(t, host, config, layerOf(t, entry{name: "a", body: "1"}), layerOf(t, entry{name: "b", body: "2"}, entry{name: ".wh.a"}))
	img, dir, err := pull(t, reference, Policy{Allow: []string{host}}, small)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(img.Digest, "sha256:") || len(img.Env) != 2 || img.Env["A"] != "b=c" {
		t.Errorf("got %+v", img)
	}
	if raw, err := os.ReadFile(filepath.Join(dir, "b")); err != nil || string(raw) != "2" {
		t.Errorf("b: %q, %v", raw, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "a")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a: %v", err)
	}
	t.Run("by its digest", func(t *testing.T) {
		byDigest := host + "/team/app@" + img.Digest
		if again, _, err := pull(t, byDigest, Policy{Allow: []string{"127.0.0.0/8"}}, small); err != nil || again.Digest != img.Digest {
			t.Errorf("%+v, %v", again, err)
		}
	})
}

func TestAnImageNeedNotSayWhatItIsFor(t *testing.T) {
	needRoot(t)
	host := serve(t, nil)
	reference := push(t, host, v1.ConfigFile{}, layerOf(t, entry{name: "a", body: "1"}))
	if _, dir, err := pull(t, reference, Policy{Allow: []string{host}}, small); err != nil {
		t.Error(err)
	} else if raw, err := os.ReadFile(filepath.Join(dir, "a")); err != nil || string(raw) != "1" {
		t.Errorf("a: %q, %v", raw, err)
	}
}

func TestImagesThatAreNotTaken(t *testing.T) {
	host := serve(t, nil)
	allow := Policy{Allow: []string{host}}
	file := layerOf(t, entry{name: "a", body: strings.Repeat("0", 4096)})
	arm := v1.ConfigFile{OS: "linux", Architecture: "arm64"}
	for name, c := range map[string]struct {
		reference string
		policy    Policy
		limits    Limits
		is        error
		says      string
	}{
		"none of this name":    {host + "/no/such:v1", allow, small, nil, "NAME_UNKNOWN"},
		"a broken reference":   {host + "/UPPER//x", allow, small, ErrReference, "UPPER"},
		"a long reference":     {strings.Repeat("a/", 400) + "b", allow, small, ErrReference, "512"},
		"a reference with NUL": {"a/b\x00", allow, small, ErrReference, "printable"},
		"another processor's":  {"", allow, small, nil, "linux/arm64"},
		"too large":            {"", allow, Limits{Bytes: 100, Entries: 10}, ErrTooLarge, "100 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			reference := c.reference
			switch name {
			case "another processor's":
				reference = push(t, host, arm, file)
			case "too large":
				reference = push(t, host, forGuests, file)
			}
			_, _, err := pull(t, reference, c.policy, c.limits)
			if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want it to say %q", err, c.says)
			}
		})
	}
}

// TestTenantsDoNotReachTheHost tests against server-side request forgery: the host
// connects to addresses that tenants name.
func TestTenantsDoNotReachTheHost(t *testing.T) {
	reached := false
	host := serve(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { reached = true; next.ServeHTTP(w, r) })
	})
	_, port, _ := net.SplitHostPort(host)
	for _, reference := range []string{
		host + "/a/b:v1", "localhost:" + port + "/a/b", "[::1]:" + port + "/a/b:v1", "169.254.169.254/latest/meta-data",
		"10.0.0.1:5000/a/b", "192.168.1.1/a/b", "[fd00::1]:5000/a/b",
	} {
		_, err := Resolve(t.Context(), reference, Policy{Allow: []string{"registry.example.com", "10.99.0.0/16"}}, small)
		if err == nil || reached {
			t.Errorf("%s: %v, reached: %v", reference, err, reached)
		}
	}
	t.Run("by a redirect", func(t *testing.T) {
		front := serve(t, func(http.Handler) http.Handler {
			return http.RedirectHandler("http://localhost:"+port+"/v2/", http.StatusTemporaryRedirect)
		})
		_, err := Resolve(t.Context(), front+"/a/b:v1", Policy{Allow: []string{front}}, small)
		if err == nil || reached {
			t.Errorf("%v, reached: %v", err, reached)
		}
	})
	t.Run("by the place where tokens are had", func(t *testing.T) {
		front := serve(t, func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("WWW-Authenticate", `Bearer realm="http://localhost:`+port+`/token",service="x"`)
				w.WriteHeader(http.StatusUnauthorized)
			})
		})
		if _, err := Resolve(t.Context(), front+"/a/b:v1", Policy{Allow: []string{front}}, small); err == nil || reached {
			t.Errorf("%v, reached: %v", err, reached)
		}
	})
}

func TestAddressesThatAreClosed(t *testing.T) {
	p := Policy{Allow: []string{"10.1.0.0/16", "fd00:1::/32", "registry.local", "mirror:5000"}}
	for addr, want := range map[string]bool{
		"93.184.216.34": true, "2606:2800:220:1::1": true, "10.1.2.3": true, "fd00:1::5": true,
		"10.2.0.1": false, "127.0.0.1": false, "::1": false, "::ffff:127.0.0.1": false, "::ffff:10.2.0.1": false, "169.254.169.254": false,
		"172.20.0.1": false, "192.168.0.1": false, "100.64.0.1": false, "0.0.0.0": false, "::": false, "fe80::1%eth0": false, "fd00::1": false,
		"224.0.0.1": false, "64:ff9b::7f00:1": false, "2002:7f00:1::": false, "198.18.0.2": false,
	} {
		if got := p.allowsAddr(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %v", addr, got)
		}
	}
	for address, want := range map[string]bool{
		"registry.local:443": true, "mirror:5000": true, "mirror:80": false, "other:443": false, "xregistry.local:443": false,
	} {
		if got := p.allowsHost(address); got != want {
			t.Errorf("%s: %v", address, got)
		}
	}
	for _, bad := range []string{"10.0.0.0/99", "", "a b", "user@host"} {
		if (Policy{Allow: []string{bad}}).Check() == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestOnlyLocalhostIsSpokenToWithoutTLS(t *testing.T) {
	rt, end := Policy{Trusted: true}.transport()
	defer end()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://192.0.2.1/v2/", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := rt.RoundTrip(r)
	if !errors.Is(err, ErrForbidden) {
		t.Errorf("got %v, %v", resp, err)
	}
}

func TestHugeAnswersEnd(t *testing.T) {
	host := serve(t, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/manifests/") {
				w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
				_, _ = io.CopyN(w, zeroReader{}, 64<<20)
			}
		})
	})
	_, err := Resolve(t.Context(), host+"/a/b:v1", Policy{Allow: []string{host}}, small)
	if err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("got %v", err)
	}
}

func TestManifestsThatWouldTakeMuchMemory(t *testing.T) {
	const head = `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",`
	digest := `"sha256:` + strings.Repeat("0", 64) + `"`
	layers := head + `"config":{"size":0,"digest":` + digest + `},"layers":[{}` + strings.Repeat(",{}", 400_000) + `]}`
	for name, c := range map[string]struct{ manifest, repository, says string }{
		"a configuration of any size": {head + `"config":{"size":-1,"digest":` + digest + `},"layers":[]}`, "a/b", "its configuration has -1 bytes"},
		"a large configuration":       {head + `"config":{"size":1048577,"digest":` + digest + `},"layers":[]}`, "a/b", "its configuration has 1048577 bytes"},
		"layers of a few bytes":       {layers, "a/b", "larger than 1048576 bytes"},
		"in a repository of a name":   {layers, "a/blobs/b", "larger than 1048576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			host := serve(t, func(http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					switch {
					case strings.Contains(r.URL.Path, "/manifests/"):
						w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
						_, _ = io.WriteString(w, c.manifest)
					case strings.Contains(r.URL.Path, "/blobs/sha256:"):
						t.Error("its configuration is asked for")
					}
				})
			})
			_, err := Resolve(t.Context(), host+"/"+c.repository+":v1", Policy{Allow: []string{host}}, small)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Registries redirect to blobs elsewhere, at addresses of any form.
func TestALargeLayerIsPulledFromElsewhere(t *testing.T) {
	needRoot(t)
	const size = maxManifest + 1
	host := serve(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			at, elsewhere := strings.CutPrefix(r.URL.Path, "/elsewhere/")
			if elsewhere {
				r.URL.Path = "/v2/team/app/blobs/" + at
			} else if at, ok := strings.CutPrefix(r.URL.Path, "/v2/team/app/blobs/sha256:"); ok && r.Method == http.MethodGet {
				http.Redirect(w, r, "/elsewhere/sha256:"+at, http.StatusTemporaryRedirect)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	reference := push(t, host, forGuests, layerOf(t, entry{name: "big", body: strings.Repeat("0", size)}))
	_, dir, err := pull(t, reference, Policy{Allow: []string{host}}, Limits{Bytes: 32 << 20, Entries: 10})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(dir, "big")); err != nil || st.Size() != size {
		t.Errorf("got %v, %v", st, err)
	}
}

func TestPullEndsWithItsContext(t *testing.T) {
	host := serve(t, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	})
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := Resolve(ctx, host+"/a/b:v1", Policy{Allow: []string{host}}, small); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
}

func TestReferences(t *testing.T) {
	for from, want := range map[string]bool{
		"base": false, "my.template-2": false, "alpine:3": true, "library/alpine": true, "ghcr.io/a/b@sha256:00": true, "localhost:5000/a": true,
	} {
		if IsReference(from) != want {
			t.Errorf("%s", from)
		}
	}
}

// A connection that was switched to another protocol does not end with the context.
func TestARegistryThatSwitchesProtocolsIsGivenUp(t *testing.T) {
	host := serve(t, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			defer conn.Close()
			_, _ = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"))
			_, _ = conn.Read(make([]byte, 1)) // until the client leaves
		})
	})
	if _, _, err := pull(t, host+"/team/app:v1", Policy{Allow: []string{host}}, small); err == nil {
		t.Error("it was pulled")
	}
}

// The entries of a layer take longer than its bytes.
func TestUnpackingEndsWithItsContext(t *testing.T) {
	host := serve(t, nil)
	reference := push(t, host, forGuests, layerOf(t, entry{name: "a", uid: os.Getuid(), gid: os.Getgid()}, entry{name: "b", uid: os.Getuid(), gid: os.Getgid()}))
	ctx, cancel := context.WithCancelCause(t.Context())
	img, err := Resolve(ctx, reference, Policy{Allow: []string{host}}, small)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	why := errors.New("enough")
	asked := small
	asked.Room = func(int64) error { cancel(why); return nil }
	u, err := newUnpacker(t.TempDir(), asked)
	if err != nil {
		t.Fatal(err)
	}
	defer u.root.Close()
	u.unasked = roomStep // so that the first entry asks for room
	if err := u.fromRegistry(ctx, img.layers[0], func(int64) {}); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	if _, err := u.root.Lstat("b"); err == nil {
		t.Error("the next entry is unpacked")
	}
}
