package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

func TestSharedFilesAreStoredAheadOnce(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(t.Context(), "file://"+filepath.Join(dir, "store"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	content := make([]byte, 3*ChunkSize+17)
	for i := range content {
		content[i] = byte(i / 4096)
	}
	sum := sha256.Sum256(content)
	layer := LocalShared{
		SharedFile: SharedFile{Name: "layer0", SHA256: hex.EncodeToString(sum[:]), Size: int64(len(content))}, Path: filepath.Join(dir, "layer"),
	}
	if err := os.WriteFile(layer.Path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	first, err := s.Share(t.Context(), []LocalShared{layer})
	if err != nil || first.NewChunks == 0 {
		t.Fatalf("%+v, %v", first, err)
	}
	again, err := s.Share(t.Context(), []LocalShared{layer})
	if err != nil || again.Chunks != 0 {
		t.Errorf("it was read again: %+v, %v", again, err)
	}
	own := filepath.Join(dir, "state.json")
	if err := os.WriteFile(own, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, stats, err := s.Upload(t.Context(), "snap-1", Source{Files: []LocalFile{{Name: "state.json", Path: own}}, Shared: []LocalShared{layer}})
	if err != nil || stats.Chunks != 1 {
		t.Errorf("a snapshot with it: %+v, %v", stats, err)
	}
	var rested atomic.Int64
	other := layer
	other.Path = filepath.Join(dir, "other")
	content[0]++
	sum = sha256.Sum256(content)
	if other.SHA256 = hex.EncodeToString(sum[:]); os.WriteFile(other.Path, content, 0o600) != nil {
		t.Fatal("write it")
	}
	stats, err = s.share(t.Context(), []LocalShared{other}, func(context.Context, time.Duration) { rested.Add(1) })
	if err != nil || stats.Chunks == 0 || rested.Load() < stats.Chunks {
		t.Errorf("%+v with %d rests, %v", stats, rested.Load(), err)
	}
	layer.SHA256 = "no digest"
	if _, err := s.Share(t.Context(), []LocalShared{layer}); err == nil {
		t.Error("a file without a digest was stored")
	}
}
