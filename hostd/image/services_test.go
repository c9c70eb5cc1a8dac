package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
	"github.com/berth-cloud/berth/vmm"
)

// services tests what a host passes on from a guest to clients.
func services(t *testing.T, w *world) {
	b := w.restore(t, w.ensure(Definition{
		Name: "talker", From: "tiny", MemoryMB: 256, DiskMB: 256,
		Files: map[string]string{"/etc/berth/identity.d/talker": "#!/bin/sh\n[ ! -s /run/talker.pid ] || kill -USR1 $(cat /run/talker.pid)\n"},
		Run:   []string{"chmod 755 /etc/berth/identity.d/talker"},
		Start: "trap 'echo reseeded >> /run/seeds' USR1; echo $$ > /run/talker.pid; i=0; while [ $i -lt 200 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done; " +
			"while :; do while [ ! -e /say ]; do sleep 0.1; done; cat /say; rm /say; done",
		Ready: &Ready{Cmd: "test $(wc -l < " + guestapi.StartLogPath + ") -ge 400", TimeoutSeconds: 60},
	}), 5)
	t.Run("reseeding", func(t *testing.T) { guestReseeds(t, b) })
	t.Run("files", func(t *testing.T) { guestFiles(t, b) })
	t.Run("logs", func(t *testing.T) { guestLogs(t, b) })
	t.Run("ports", func(t *testing.T) {
		list, err := b.Ports(t.Context())
		must(t, err)
		if len(list) != 0 {
			t.Errorf("nothing listens but guestd: %+v", list)
		}
	})
	t.Run("terminal", func(t *testing.T) { guestTerminal(t, b) })
	t.Run("volume", func(t *testing.T) { guestVolume(t, w, b) })
}

// guestReseeds tests that a program with a random generator of its own is told of
// each new generation of its guest: by a hook, and by a number that it can watch
// instead.
func guestReseeds(t *testing.T, b *box) {
	// The shell's trap runs some time after the signal.
	b.out("n=0; until [ -s /run/seeds ] || [ $n -ge 200 ]; do sleep 0.1; n=$((n+1)); done")
	before := b.out("cat /run/seeds | wc -l")
	if before == "0" {
		t.Fatal("it was not told of the restore")
	}
	for i, want := range []string{"6", "6", "7"} {
		_, err := b.Identity(t.Context(), guestapi.Identity{
			Generation: 5, Entropy: bytes.Repeat([]byte{byte(1 + i/2)}, 64), Hostname: "box-5", MachineID: fmt.Sprintf("%032x", 5),
		})
		must(t, err)
		if got := b.out("cat " + guestapi.GenerationPath); got != want {
			t.Errorf("after identity %d the number is %s, want %s", i, got, want)
		}
	}
	for end := time.Now().Add(20 * time.Second); b.out("wc -l < /run/seeds") == before; {
		if time.Now().After(end) {
			t.Fatal("it was not told of a new identity")
		}
	}
}

// counted is an endless stream of bytes that depend on their offset.
type counted struct{ n uint32 }

func (c *counted) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(c.n ^ c.n>>8 ^ c.n>>16)
		c.n++
	}
	return len(b), nil
}

func guestFiles(t *testing.T, b *box) {
	const size = 48 << 20
	sent := sha256.New()
	began := time.Now()
	created, err := b.WriteFile(t.Context(), "/srv/new/large", 0o640, io.TeeReader(io.LimitReader(&counted{}, size), sent), size)
	if err != nil || !created {
		t.Fatal(created, err)
	}
	wrote := time.Since(began)
	content, n, err := b.ReadFile(t.Context(), "/srv/new/large")
	must(t, err)
	received := sha256.New()
	if _, err := io.Copy(received, content); err != nil || n != size || !bytes.Equal(received.Sum(nil), sent.Sum(nil)) {
		t.Errorf("%d bytes, %v, %x instead of %x", n, err, received.Sum(nil), sent.Sum(nil))
	}
	content.Close()
	t.Logf("%d MB written in %s, read in %s", size>>20, wrote, time.Since(began)-wrote)
	if d, err := b.ReadDir(t.Context(), "/srv/new"); err != nil || len(d.Entries) != 1 || d.Entries[0].Mode != "0640" {
		t.Errorf("got %+v, %v", d, err)
	}
	var refused *guestclient.Error
	if _, err := b.WriteFile(t.Context(), "/srv/new/large", 0o640, &counted{}, 1<<30); !errors.As(err, &refused) || refused.Status != 507 {
		t.Errorf("more than the disk: %v", err)
	}
	if got := b.out("ls -A /srv/new; stat -c %s /srv/new/large"); got != "large\n"+fmt.Sprint(size) {
		t.Errorf("then there is %q", got)
	}
	must(t, b.Remove(t.Context(), "/srv/new", true))
	// A file of the image: the file and its directory are on the lower layer.
	must(t, b.PutFile(t.Context(), "/etc/passwd", 0o644, []byte("root:x:0:0::/root:/bin/sh\nnew:x:1:1::/:/bin/sh\n")))
	if got := b.out("id -un 1"); got != "new" {
		t.Errorf("a replaced file: %q", got)
	}
	must(t, b.PutFile(t.Context(), "/etc/hosts", 0o644, []byte("127.0.0.1 localhost mine\n")))
	_, err = b.Identity(t.Context(), guestapi.Identity{
		Generation: 5, Entropy: bytes.Repeat([]byte{3}, 64), Hostname: "named-again", MachineID: strings.Repeat("ab", 16),
	})
	must(t, err)
	if got := b.out("cat /etc/hosts"); !strings.Contains(got, "mine") || !strings.Contains(got, "named-again") {
		t.Errorf("a replaced file of the identity: %q", got)
	}
	for path, want := range map[string]string{"/proc/uptime": ".", "/sys/class/net/eth0/address": ":", "/proc/version": "Linux"} {
		content, _, err := b.ReadFile(t.Context(), path)
		must(t, err)
		raw, err := io.ReadAll(content)
		content.Close()
		if err != nil || !strings.Contains(string(raw), want) {
			t.Errorf("%s: %q, %v", path, raw, err)
		}
	}
}

func guestLogs(t *testing.T, b *box) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := map[string]int{} // lines, by stream
	err := b.Logs(ctx, guestclient.LogQuery{Tail: 1000, Follow: true}, func(l guestapi.LogLine) error {
		want := fmt.Sprintf("%s %d", map[string]string{"stdout": "out", "stderr": "err"}[l.Stream], got[l.Stream])
		if got["stdout"]+got["stderr"] == 400 {
			want = "something new"
			cancel()
		}
		if l.Line != want {
			t.Errorf("line %d of %s is %q, want %q", got[l.Stream], l.Stream, l.Line, want)
		}
		got[l.Stream]++
		if got["stdout"]+got["stderr"] == 400 {
			must(t, b.PutFile(t.Context(), "/say", 0o644, []byte("something new\n")))
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || got["stdout"] != 201 || got["stderr"] != 200 {
		t.Errorf("%v lines, %v", got, err)
	}
}

type terminalScreen struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *terminalScreen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(b)
}

func (s *terminalScreen) awaits(t *testing.T, text string) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		s.mu.Lock()
		shown := s.buf.String()
		s.mu.Unlock()
		if strings.Contains(shown, text) {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-deadline:
			t.Fatalf("the terminal never shows %q:\n%s", text, shown)
		}
	}
}

// guestTerminal leaves a login shell whose child ignores SIGHUP.
func guestTerminal(t *testing.T, b *box) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	keys, in := io.Pipe()
	defer in.Close()
	shown := &terminalScreen{}
	done := make(chan error, 1)
	go func() {
		_, err := b.Exec(ctx, guestapi.ExecRequest{TTY: &guestapi.TTY{Cols: 101, Rows: 33}}, guestclient.Streams{Stdin: keys, Stdout: shown})
		done <- err
	}()
	_, err := io.WriteString(in, "echo I am $0 at $HOME in $TERM; stty size; trap '' HUP TERM\n"+
		"setsid sh -c 'echo $$ > /child; exec sleep 4321' & while [ ! -s /child ]; do sleep 0.1; done; echo rea''dy\n")
	must(t, err)
	for _, want := range []string{"I am -sh at /root in xterm-256color", "33 101", "ready"} {
		shown.awaits(t, want)
	}
	lives := func() bool { return b.run("test -d /proc/$(cat /child)", time.Minute).ExitCode == 0 }
	if !lives() {
		t.Fatal("the child does not run")
	}
	cancel()
	<-done
	for end := time.Now().Add(20 * time.Second); lives(); {
		if time.Now().After(end) {
			t.Fatal("a child of the terminal outlived its connection")
		}
	}
}

// guestVolume plugs a disk into a running guest and then moves it to the next.
func guestVolume(t *testing.T, w *world, b *box) {
	image := filepath.Join(filepath.Dir(b.overlay), "volume")
	must(t, os.WriteFile(image, nil, 0o644))
	must(t, os.Truncate(image, 32<<20))
	if out, err := exec.Command("mkfs.ext4", "-q", image).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	st, err := os.Stat(b.overlay)
	must(t, err)
	must(t, os.Chown(image, owner(st), owner(st)))
	mount := guestapi.Mount{Serial: "vol-abcdefghij12345", Path: "/data/one", FSType: "ext4"}
	mounted := make(chan error, 1)
	began := time.Now()
	go func() { mounted <- b.Mount(t.Context(), mount) }()
	_, err = b.process.AddDisk(t.Context(), vmm.DiskConfig{ID: "vol", Path: image, ImageType: vmm.ImageRaw, Serial: mount.Serial})
	must(t, err)
	must(t, <-mounted)
	t.Logf("mounted after %s", time.Since(began))
	must(t, b.Mount(t.Context(), mount))
	var refused *guestclient.Error
	mount.Path = "/data/two"
	if err := b.Mount(t.Context(), mount); !errors.As(err, &refused) || refused.Status != 409 {
		t.Errorf("a second place: %v", err)
	}
	must(t, b.PutFile(t.Context(), "/data/one/kept", 0o644, []byte("of value\n")))
	if got := b.out("df -P /data/one | tail -n 1"); !strings.HasSuffix(got, "/data/one") {
		t.Errorf("df: %q", got)
	}
	must(t, b.Sync(t.Context()))
	must(t, b.process.Kill(context.Background()))
	out, err := exec.Command("debugfs", "-R", "cat /kept", image).Output()
	if err != nil || string(out) != "of value\n" {
		t.Errorf("on the volume there is %q, %v", out, err)
	}
}

func owner(st os.FileInfo) int { return int(st.Sys().(*syscall.Stat_t).Uid) }
