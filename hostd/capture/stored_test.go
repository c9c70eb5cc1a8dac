package capture

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/berth-cloud/berth/hostd/build"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/hostd/snapshot"
	"github.com/berth-cloud/berth/vmm"
)

var captureEngine = vmm.Engine{Kind: "chvemu", Version: "v1"}

// buildID names the build that storedHost.build writes, which is the digest of its
// content: a change of that content gives another.
const buildID = "3ff4b9ac4e49524d385a93c4cc0194e8"

// storedHost is a host's side of the snapshot store, with real stores and boxes
// that are only a directory.
type storedHost struct {
	*Stored
	builds *build.Stored
	images *image.Store
	store  *snapshot.Store
	dir    string // of captures

	mu       sync.Mutex
	marked   []string
	opened   int
	hold     chan struct{} // if set, OpenCapture waits for it
	makeRoom func(missing int64)
	lost     bool // what is opened is deleted before it is marked
}

func newStoredHost(t *testing.T, store string) *storedHost {
	t.Helper()
	h := &storedHost{dir: t.TempDir()}
	images, err := image.Open(t.Context(), image.Config{Dir: filepath.Join(h.dir, "templates"), Engine: captureEngine})
	if err != nil {
		t.Fatal(err)
	}
	h.store, err = snapshot.Open(t.Context(), "file://"+store, snapshot.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h.images = images
	h.builds = build.NewStored(build.StoredConfig{
		Snapshots: h.store, Images: images, Engine: "chvemu v1", Log: slog.New(slog.DiscardHandler),
		Admit: func(m *snapshot.Manifest) error { return h.Admit(m) },
	})
	h.Stored = NewStored(StoredConfig{
		Snapshots: h.store, Builds: h.builds, Images: images, Engine: "chvemu v1", Log: slog.New(slog.DiscardHandler),
		Room: func() (int64, error) { return 1 << 40, nil },
	})
	h.captures = h
	t.Cleanup(func() {
		h.Close()
		if err := h.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h *storedHost) Open(id string) (info hostapi.Capture, dir string, release func(), err error) {
	h.mu.Lock()
	h.opened++
	h.mu.Unlock()
	if h.hold != nil {
		<-h.hold
	}
	dir = filepath.Join(h.dir, id)
	raw, err := os.ReadFile(filepath.Join(dir, "capture.json"))
	if err != nil {
		return info, "", nil, hosterr.ErrNoSnapshot
	}
	return info, dir, func() {}, json.Unmarshal(raw, &info)
}

func (h *storedHost) MarkStored(id string, stored bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.marked = append(h.marked, fmt.Sprint(id, " ", stored))
	if _, err := os.Stat(filepath.Join(h.dir, id)); err != nil || h.lost {
		return hosterr.ErrNoSnapshot
	}
	return nil
}

func (h *storedHost) MakeRoom(check func() (missing int64, err error)) error {
	missing, err := check()
	if missing <= 0 || h.makeRoom == nil {
		return err
	}
	h.makeRoom(missing)
	_, err = check()
	return err
}

// capture makes one, of a build that it makes too.
func (h *storedHost) capture(t *testing.T, id string) {
	t.Helper()
	h.build(t)
	dir := filepath.Join(h.dir, id)
	put(t, filepath.Join(dir, "memory-ranges"), bytes.Repeat([]byte("memory of "+id), 1000))
	put(t, filepath.Join(dir, "overlay.img"), bytes.Repeat([]byte("disk of "+id), 1000))
	put(t, filepath.Join(dir, "config.json"), []byte("{}"))
	put(t, filepath.Join(dir, "state.json"), []byte("{}"))
	put(t, filepath.Join(dir, ".capture.json"), []byte("half a write"))
	raw, err := json.Marshal(hostapi.Capture{ID: id, BuildID: buildID, Template: "base", Engine: "chvemu v1", Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "capture.json"), raw)
}

// build writes one as the template store has it.
func (h *storedHost) build(t *testing.T) {
	t.Helper()
	root := filepath.Join(h.dir, "templates")
	file := func(path, content string) map[string]any {
		put(t, filepath.Join(root, path), []byte(content))
		sum := sha256.Sum256([]byte(content))
		return map[string]any{"size": len(content), "sha256": fmt.Sprintf("%x", sum)}
	}
	document := func(path string, v map[string]any) {
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(root, path), raw)
	}
	const layerKey = "f40bccc9ab4ad17a94ed50c2836dc6de"
	layer := file("layers/"+layerKey+"/layer.ext4", "root file system")
	layer["format"], layer["key"] = 1, layerKey
	document("layers/"+layerKey+"/layer.json", layer)
	kernel := file("kernel", "vmlinux")
	file("kernels/"+kernel["sha256"].(string)+"/vmlinux", "vmlinux")
	kernel["release"] = "6.12"
	files := map[string]any{}
	for _, name := range []string{"initramfs.cpio", "overlay.ext4", "ram", "state/config.json", "state/state.json"} {
		files[name] = file("builds/"+buildID+"/"+name, "content of "+name)
	}
	document("builds/"+buildID+"/template.json", map[string]any{
		"format": 3, "build_id": buildID, "definition": map[string]any{"name": "base", "cpu": 1, "memory_mb": 512, "disk_mb": 1024},
		"engine": map[string]any{"kind": captureEngine.Kind, "version": captureEngine.Version},
		"kernel": kernel, "layers": []string{layerKey}, "files": files,
	})
	if _, err := h.images.Build(buildID); err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// fetch brings a capture to where a box's host would have it.
func (h *storedHost) fetch(t *testing.T, id, digest string) (dir string, err error) {
	t.Helper()
	dir = filepath.Join(h.dir, ".tmp-"+id)
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	return dir, h.Fetch(t.Context(), id, digest, dir)
}

func TestACaptureIsFetchedOnAHostThatHasNothing(t *testing.T) {
	store := t.TempDir()
	a, b := newStoredHost(t, store), newStoredHost(t, store)
	a.capture(t, "snap-1")
	info, err := a.Upload(t.Context(), "snap-1")
	if err != nil || !info.Stored || info.ID != "snap-1" || strings.Join(a.marked, ",") != "snap-1 true" {
		t.Fatalf("stored %+v, %v, marked %v", info, err, a.marked)
	}
	dir, err := b.fetch(t, "snap-1", info.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"memory-ranges", "overlay.img", "config.json", "state.json", "capture.json"} {
		want, errA := os.ReadFile(filepath.Join(a.dir, "snap-1", name))
		got, errB := os.ReadFile(filepath.Join(dir, name))
		if err := errors.Join(errA, errB); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 5 {
		t.Errorf("directory has %v, %v", entries, err)
	}
	tpl, err := b.images.Build(buildID)
	if err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(tpl.Layers[0]); err != nil || string(raw) != "root file system" {
		t.Errorf("layer = %q, %v", raw, err)
	}
	// With the build there, a second capture brings only its own.
	a.capture(t, "snap-2")
	if _, err := a.Upload(t.Context(), "snap-2"); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(store, "shared")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.fetch(t, "snap-2", ""); err != nil {
		t.Error(err)
	}
}

func TestACaptureThatCannotBeUsedIsRefusedByName(t *testing.T) {
	for name, c := range map[string]struct {
		id     string
		change func(t *testing.T, store string, h *storedHost)
		want   error
		says   string
	}{
		"unknown":        {"snap-9", nil, hosterr.ErrNoSnapshot, "snap-9"},
		"another engine": {"snap-1", func(_ *testing.T, _ string, h *storedHost) { h.cfg.Engine = "cloud-hypervisor v53.0" }, hosterr.ErrBadSnapshot, "v53.0"},
		"chunks are missing": {"snap-1", func(t *testing.T, store string, _ *storedHost) {
			if err := os.RemoveAll(filepath.Join(store, "chunks")); err != nil {
				t.Fatal(err)
			}
		}, hosterr.ErrBadSnapshot, "chunk 0"},
		"the build is missing": {"snap-1", func(t *testing.T, store string, _ *storedHost) {
			if err := os.RemoveAll(filepath.Join(store, "shared")); err != nil {
				t.Fatal(err)
			}
		}, hosterr.ErrBadSnapshot, "build/"},
		"chunks are damaged": {"snap-1", func(t *testing.T, store string, _ *storedHost) {
			err := filepath.WalkDir(filepath.Join(store, "chunks"), func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.Type().IsRegular() {
					err = os.Truncate(path, 3)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}, hosterr.ErrBadSnapshot, "chunk 0"},
		"no room": {"snap-1", func(_ *testing.T, _ string, h *storedHost) {
			h.cfg.Room = func() (int64, error) { return 10, nil }
		}, hosterr.ErrNoDisk, "room for"},
	} {
		t.Run(name, func(t *testing.T) {
			store := t.TempDir()
			a, b := newStoredHost(t, store), newStoredHost(t, store)
			a.capture(t, "snap-1")
			if _, err := a.Upload(t.Context(), "snap-1"); err != nil {
				t.Fatal(err)
			}
			if c.change != nil {
				c.change(t, store, b)
			}
			_, err := b.fetch(t, c.id, "")
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("fetch = %v, want %v that names %q", err, c.want, c.says)
			}
			if _, err := b.images.Build(buildID); !errors.Is(err, image.ErrNoTemplate) {
				t.Errorf("build = %v", err)
			}
		})
	}
}

// What is fetched may take the place of what can be fetched again.
func TestRoomIsMadeForWhatIsFetched(t *testing.T) {
	store := t.TempDir()
	a, b := newStoredHost(t, store), newStoredHost(t, store)
	a.capture(t, "snap-1")
	if _, err := a.Upload(t.Context(), "snap-1"); err != nil {
		t.Fatal(err)
	}
	room := int64(10)
	b.cfg.Room = func() (int64, error) { return room, nil }
	b.makeRoom = func(missing int64) { room += missing }
	if _, err := b.fetch(t, "snap-1", ""); err != nil {
		t.Error(err)
	}
}

// Whoever can write to the store can put a manifest there whose checksums are all
// right. The control plane has the digest of the one that was stored.
func TestAManifestInTheStoredOnesPlaceIsRefused(t *testing.T) {
	store := t.TempDir()
	a, b, evil := newStoredHost(t, store), newStoredHost(t, store), newStoredHost(t, store)
	a.capture(t, "snap-1")
	info, err := a.Upload(t.Context(), "snap-1")
	if err != nil {
		t.Fatal(err)
	}
	evil.capture(t, "snap-1")
	put(t, filepath.Join(evil.dir, "snap-1", "memory-ranges"), []byte("another memory"))
	put(t, filepath.Join(evil.dir, "snap-1", "config.json"), []byte("another machine"))
	planted, err := evil.Upload(t.Context(), "snap-1")
	if err != nil || planted.Manifest == info.Manifest {
		t.Fatalf("planted %+v, %v", planted, err)
	}
	if _, err := b.fetch(t, "snap-1", info.Manifest); !errors.Is(err, hosterr.ErrBadSnapshot) || !strings.Contains(err.Error(), "manifest") {
		t.Errorf("fetch of what was planted = %v", err)
	}
	if _, err := b.fetch(t, "snap-1", ""); err != nil { // the manifest is sound
		t.Errorf("fetch without a digest = %v", err)
	}
	// What is in the store is not believed by an upload either.
	again, err := a.Upload(t.Context(), "snap-1")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := b.fetch(t, "snap-1", again.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "config.json")); err != nil || string(got) != "{}" {
		t.Errorf("config.json = %q, %v", got, err)
	}
	if same, err := a.Upload(t.Context(), "snap-1"); err != nil || same.Manifest != again.Manifest {
		t.Errorf("stored once more: %+v, %v", same, err)
	}
}

func TestOneUploadOfACaptureAtATime(t *testing.T) {
	h := newStoredHost(t, t.TempDir())
	h.capture(t, "snap-1")
	h.hold = make(chan struct{})
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := h.Upload(gone, "snap-1"); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that leaves: %v", err)
	}
	var group sync.WaitGroup
	for range 8 {
		up, err := h.begin(t.Context(), "snap-1")
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			<-up.done
			if up.err != nil || !up.info.Stored {
				t.Errorf("upload: %+v, %v", up.info, up.err)
			}
		})
	}
	close(h.hold)
	group.Wait()
	if h.opened != 1 || len(h.marked) != 1 {
		t.Errorf("opened %d times, marked %v", h.opened, h.marked)
	}
	if _, err := h.Upload(t.Context(), "snap-2"); !errors.Is(err, hosterr.ErrNoSnapshot) {
		t.Errorf("a capture that is not here: %v", err)
	}
}

func TestADeleteEndsTheUpload(t *testing.T) {
	h := newStoredHost(t, t.TempDir())
	h.capture(t, "snap-1")
	h.hold = make(chan struct{})
	up, err := h.begin(t.Context(), "snap-1")
	if err != nil {
		t.Fatal(err)
	}
	deleted := make(chan error, 1)
	go func() { deleted <- h.Delete(context.WithoutCancel(t.Context()), "snap-1") }()
	// Which one comes first does not matter: nothing is stored afterwards.
	close(h.hold)
	<-up.done
	if err := <-deleted; err != nil {
		t.Errorf("delete = %v", err)
	}
	if there, err := h.store.Has(t.Context(), "snap-1"); err != nil || there {
		t.Errorf("has = %v, %v", there, err)
	}
	if err := h.Delete(t.Context(), "snap-1"); err != nil {
		t.Errorf("again: %v", err)
	}
}

// What is deleted here while it is uploaded is not left in the store.
func TestAnUploadOfWhatIsGone(t *testing.T) {
	h := newStoredHost(t, t.TempDir())
	h.capture(t, "snap-1")
	h.lost = true
	if _, err := h.Upload(t.Context(), "snap-1"); !errors.Is(err, hosterr.ErrNoSnapshot) {
		t.Errorf("store = %v", err)
	}
	if there, err := h.store.Has(t.Context(), "snap-1"); err != nil || there {
		t.Errorf("has = %v, %v", there, err)
	}
}

func TestAStoppingHostUploadsNoMore(t *testing.T) {
	h := newStoredHost(t, t.TempDir())
	h.Close()
	if _, err := h.Upload(t.Context(), "snap-1"); !errors.Is(err, hosterr.ErrDraining) {
		t.Errorf("store = %v", err)
	}
}
