package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

const large = 256 << 20

// guestdStatus is /proc/<pid>/status of the guest's agent.
func (c *tenant) guestdStatus(t *testing.T, id string) string {
	t.Helper()
	return c.exec(t, id, "cat /proc/$(pgrep -of 'guestd agent')/status")
}

// A file of 256 MiB goes in and out through a replica that does not lead: past
// two replicas, the host's daemon and the guest's agent, none of which keeps
// more of it than a few buffers.
func TestLargeFileInAndOutThroughAFollower(t *testing.T) {
	c := newTenant(t)
	c.knownEverywhere(t)
	s := c.create(t)
	via := c.through(t, followerIndex(t))

	const most = 64 << 10 // kB more than before
	guestd := statusValue(t, c.guestdStatus(t, s.ID), "VmRSS")
	memory := watchMemory(t)
	random := rand.NewChaCha8([32]byte{'b', 'e', 'r', 't', 'h'})
	up := sha256.New()
	began := time.Now()
	isNew, err := via.WriteFile(t.Context(), s.ID, "/data/big", "0640", io.TeeReader(io.LimitReader(random, large), up), large)
	if err != nil || !isNew {
		t.Fatalf("upload: new %t, %v", isNew, err)
	}
	upTook := time.Since(began)
	if stat, err := c.StatFile(t.Context(), s.ID, "/data/big"); err != nil || stat.SizeBytes != large || stat.Mode != "0640" {
		t.Errorf("it is %+v, %v", stat, err)
	}

	began = time.Now()
	down := sha256.New()
	f, err := via.ReadFile(t.Context(), s.ID, "/data/big")
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(down, f)
	f.Close()
	if err != nil || n != large || f.Size != large {
		t.Errorf("download: %d of %d bytes, %v", n, f.Size, err)
	}
	if sum(up) != sum(down) {
		t.Errorf("sent %s, received %s", sum(up), sum(down))
	}
	t.Logf("in at %.0f MB/s, out at %.0f MB/s", large/1e6/upTook.Seconds(), large/1e6/time.Since(began).Seconds())

	memory.grewAtMost(t, most)
	if peak := statusValue(t, c.guestdStatus(t, s.ID), "VmHWM"); peak-guestd > most {
		t.Errorf("the guest's agent grew from %d kB to %d kB", guestd, peak)
	}
}

func sum(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

func TestInterruptedUploadLeavesTheOldFile(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	s := c.create(t)
	const path, old = "/srv/kept", "what was there\n"
	if _, err := c.WriteFile(t.Context(), s.ID, path, "", strings.NewReader(old), int64(len(old))); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("the client dies")
	for name, size := range map[string]int64{"with a length": 64 << 20, "chunked": -1} {
		for i := range theStack.URLs {
			body := io.MultiReader(io.LimitReader(zeros{}, 8<<20), failing{broken})
			if _, err := c.through(t, i).WriteFile(t.Context(), s.ID, path, "", body, size); err == nil {
				t.Fatalf("%s, replica %d: an upload that broke off succeeded", name, i+1)
			}
		}
	}
	if got := c.exec(t, s.ID, "cat "+path); got != old {
		t.Errorf("the file is %q now", clip(got))
	}
	eventually(t, 10*time.Second, "nothing of the broken uploads is left", func(ctx context.Context) error {
		dir, err := c.ListDir(ctx, s.ID, "/srv")
		if err == nil && len(dir.Entries) != 1 {
			err = fmt.Errorf("there are %+v", dir.Entries)
		}
		return err
	})
	// One that is replaced while it is read is read as it was.
	if _, err := c.WriteFile(t.Context(), s.ID, path, "", strings.NewReader("new"), 3); err != nil {
		t.Fatal(err)
	}
	if got := c.exec(t, s.ID, "cat "+path); got != "new" {
		t.Errorf("after a whole upload the file is %q", got)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestFilesAndDirectories(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	s := c.create(t)
	const path = "/root/a/b/ü ?#.txt"
	content := "0123456789"
	for _, again := range []bool{false, true} {
		isNew, err := c.WriteFile(t.Context(), s.ID, path, "0600", strings.NewReader(content), -1)
		if err != nil || isNew == again {
			t.Fatalf("new %t, %v", isNew, err)
		}
	}
	stat, err := c.StatFile(t.Context(), s.ID, path)
	if err != nil || stat.Type != api.FileRegular || stat.SizeBytes != 10 || stat.Mode != "0600" || stat.UID != 0 || stat.Name != "ü ?#.txt" {
		t.Errorf("stat: %+v, %v", stat, err)
	}
	c.exec(t, s.ID, "ln -s 'ü ?#.txt' /root/a/b/link; mkfifo /root/a/b/pipe")
	if stat, err = c.StatFile(t.Context(), s.ID, "/root/a/b/link"); err != nil || stat.Type != api.FileSymlink || stat.Target != "ü ?#.txt" {
		t.Errorf("stat of a link: %+v, %v", stat, err)
	}
	if err := c.MakeDir(t.Context(), s.ID, "/root/a/b/c/d"); err != nil {
		t.Error(err)
	}
	dir, err := c.ListDir(t.Context(), s.ID, "/root/a/b")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range dir.Entries {
		got = append(got, e.Name+" "+string(e.Type))
	}
	if want := "c dir, link symlink, pipe other, ü ?#.txt file"; strings.Join(got, ", ") != want {
		t.Errorf("listed %q, want %q", got, want)
	}

	// Parts of a file, and a file that has not changed.
	query := "/v1/sandboxes/" + s.ID + "/fs?path=%2Froot%2Fa%2Fb%2Flink"
	for _, tc := range []struct {
		header map[string]string
		status int
		body   string
	}{
		{nil, 200, content},
		{map[string]string{"Range": "bytes=2-4"}, 206, "234"},
		{map[string]string{"Range": "bytes=-3"}, 206, "789"},
		{map[string]string{"Range": "bytes=20-"}, 416, ""},
		{map[string]string{"Range": "lines=2-4"}, 200, content},
		{map[string]string{"If-Modified-Since": time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)}, 304, ""},
	} {
		got := request{method: "GET", path: query, token: c.token, header: tc.header}.send(t)
		if got.status != tc.status || tc.body != "" && got.body != tc.body {
			t.Errorf("%v: %d %q, want %d %q", tc.header, got.status, clip(got.body), tc.status, tc.body)
		}
		if size := got.header.Get("Content-Range"); tc.status == 416 && size != "bytes */10" {
			t.Errorf("%v: the size is told as %q", tc.header, size)
		}
	}
	if got := (request{method: "HEAD", path: query, token: c.token}).send(t); got.status != 200 || got.header.Get("Content-Length") != "10" {
		t.Errorf("HEAD: %d %v", got.status, got.header)
	}

	refusal(t, c.RemoveFile(t.Context(), s.ID, "/root/a", false), 409, "directory not empty")
	if err := c.RemoveFile(t.Context(), s.ID, "/root/a/b/link", false); err != nil {
		t.Error(err)
	}
	if _, err := c.StatFile(t.Context(), s.ID, path); err != nil {
		t.Errorf("what the link pointed to: %v", err)
	}
	if err := c.RemoveFile(t.Context(), s.ID, "/root/a", true); err != nil {
		t.Error(err)
	}
	_, err = c.StatFile(t.Context(), s.ID, "/root/a")
	refusal(t, err, 404, "no such file or directory")
}

// An empty file, one of a byte less and more than the usual buffers, and bytes
// that are no text.
func TestFilesOfOddSizes(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	s := c.create(t)
	random := rand.NewChaCha8([32]byte{7})
	for _, size := range []int{0, 1, 4095, 65537, 1<<20 + 1} {
		in := make([]byte, size)
		_, _ = random.Read(in) // never fails
		for _, length := range []int64{int64(size), -1} {
			if _, err := c.WriteFile(t.Context(), s.ID, "/f", "", bytes.NewReader(in), length); err != nil {
				t.Fatalf("%d bytes, length %d: %v", size, length, err)
			}
			f, err := c.ReadFile(t.Context(), s.ID, "/f")
			if err != nil {
				t.Fatal(err)
			}
			out, err := io.ReadAll(f)
			f.Close()
			if err != nil || !bytes.Equal(in, out) {
				t.Errorf("%d bytes came back as %d, %v", size, len(out), err)
			}
		}
	}
}
