package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"log"
	"net/http/httptest"
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

	"github.com/berth-cloud/berth/guest/guestapi"
)

// ociGuest builds a template from an image in a registry of this process, and tests
// a guest of it.
func ociGuest(t *testing.T, w *world) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	reference := strings.TrimPrefix(server.URL, "http://") + "/team/tiny:v1"
	root := filepath.Join(t.TempDir(), "root")
	must(t, tinyRoot(root))
	lowest, above := tarOf(t, root), new(bytes.Buffer)
	tw := tar.NewWriter(above)
	for name, body := range map[string]string{
		"bin/.wh.yes": "", "bin/.wh.rm": "", "srv/app": "from the image\n", "etc/ssh/ssh_host_rsa_key": "everybody's",
	} {
		must(t, tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(body))}))
		_, err := io.WriteString(tw, body)
		must(t, err)
	}
	must(t, tw.Close())
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: "amd64", Config: v1.Config{
		Env: []string{"COLOUR=blue", "SHAPE=round"}, Entrypoint: []string{"/bin/touch", "/entrypoint-was-run"},
	}})
	must(t, err)
	img, err = mutate.AppendLayers(img, static.NewLayer(lowest, types.OCIUncompressedLayer), static.NewLayer(above.Bytes(), types.OCIUncompressedLayer))
	must(t, err)
	ref, err := name.ParseReference(reference)
	must(t, err)
	must(t, remote.Write(ref, img))

	d := Definition{
		Name: "from-image", From: reference, CPU: 1, MemoryMB: 256, DiskMB: 256, Env: map[string]string{"COLOUR": "green"},
		Start: "echo $COLOUR $SHAPE; exec sleep 100000", Files: map[string]string{"/usr/local/hello": "#!/bin/sh\necho hello\n"},
		Run: []string{"echo everybody\\'s > /etc/ssh/ssh_host_dsa_key", "echo mine > /etc/ssh/ssh_config"}, // as a package's own scripts do
	}
	tpl, err := w.store.EnsureWith(t.Context(), d, Options{Workspace: "ws"})
	must(t, err)
	if len(tpl.Layers) != 2 || !strings.Contains(tpl.Definition.From, "/team/tiny@sha256:") {
		t.Errorf("layers %v from %q", tpl.Layers, tpl.Definition.From)
	}
	b := w.restore(t, tpl, 11)
	for line, want := range map[string]string{
		"cat /srv/app":                  "from the image",
		"test -e /bin/yes || echo gone": "gone",
		"echo $COLOUR $SHAPE":           "green round",
		"while read -r _ stream _ line; do echo $stream $line; done < " + guestapi.StartLogPath: "stdout green round",
		"/usr/local/hello":                                  "hello",
		"test -e /entrypoint-was-run || echo right":         "right",
		"test -e /etc/ssh/ssh_host_rsa_key || echo its own": "its own",
		"test -e /etc/ssh/ssh_host_dsa_key || echo its own": "its own",
		"cat /etc/ssh/ssh_config":                           "mine",
	} {
		if got := b.out(line); got != want {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
	t.Run("again", func(t *testing.T) {
		again, err := w.store.EnsureWith(t.Context(), d, Options{Workspace: "ws"})
		if err != nil || again.BuildID != tpl.BuildID {
			t.Errorf("%s, %v", again.BuildID, err)
		}
	})
	t.Run("a registry that is gone leaves the old build", func(t *testing.T) {
		server.Close()
		if _, err := w.store.EnsureWith(t.Context(), d, Options{Workspace: "ws"}); err == nil {
			t.Error("it was built without its image")
		}
		if kept, err := w.store.Get("from-image"); err != nil || kept.BuildID != tpl.BuildID {
			t.Errorf("%s, %v", kept.BuildID, err)
		}
	})
}

// tarOf archives a tree the way a layer has it.
func tarOf(t *testing.T, root string) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	must(t, filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
		if err != nil || path == root {
			return err
		}
		link, _ := os.Readlink(path) // "" for all but links
		h, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		if h.Name, err = filepath.Rel(root, path); err != nil {
			return err
		}
		if err := w.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
			return err
		}
		raw, err := os.ReadFile(path)
		if err == nil {
			_, err = w.Write(raw)
		}
		return err
	}))
	must(t, w.Close())
	return buf.Bytes()
}

// A tenant chooses the image, and its builds are refused before the disk is full.
func TestImageWithoutRoomIsNotUnpacked(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	reference := strings.TrimPrefix(server.URL, "http://") + "/team/tiny:v1"
	var content bytes.Buffer
	tw := tar.NewWriter(&content)
	must(t, tw.WriteHeader(&tar.Header{Name: "a", Mode: 0o644}))
	must(t, tw.Close())
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: "amd64"})
	must(t, err)
	img, err = mutate.AppendLayers(img, static.NewLayer(content.Bytes(), types.OCIUncompressedLayer))
	must(t, err)
	ref, err := name.ParseReference(reference)
	must(t, err)
	must(t, remote.Write(ref, img))

	s := openStore(t, t.TempDir())
	full := errors.New("the disk is full")
	var asked int64
	room := func(bytes int64) error {
		asked = bytes
		return full
	}
	_, err = s.imageBase(t.Context(), &Definition{From: reference}, Options{Room: room}, newReporter("x", nil))
	if !errors.Is(err, full) || asked != int64(2*content.Len()) {
		t.Errorf("asked for the room of %d bytes, got %v", asked, err)
	}
	for _, sub := range []string{layersDir, tmpDir} {
		if left, err := os.ReadDir(s.path(sub)); err != nil || len(left) > 0 {
			t.Errorf("left in %s: %v, %v", sub, left, err)
		}
	}
}
