package vmm

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func diskUse(t *testing.T, path string) (size, used int64) {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Size, st.Blocks * 512
}

func TestALogIsTrimmedFromItsBeginning(t *testing.T) {
	path := filepath.Join(t.TempDir(), "serial.log")
	if err := os.WriteFile(path, bytes.Repeat([]byte("x"), 4*LogMax), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := trimLog(path, -1); err != nil {
		t.Fatal(err)
	}
	if size, used := diskUse(t, path); size != 4*LogMax || used > 2*logKeep {
		t.Errorf("size %d, %d bytes on disk", size, used)
	}
	link := path + ".link"
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if err := trimLog(link, -1); err == nil {
		t.Error("a link was followed")
	}
}

func TestTheEndOfALogIsItsOwn(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "vmm.log")
	if err := os.WriteFile(log, []byte(strings.Repeat("x", 5000)+"\nqemu: it is over\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := LogEnd(log, 4<<10); len(got) > 4<<10 || !strings.HasSuffix(got, "qemu: it is over") {
		t.Errorf("%q", got)
	}
	link, pipe := filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	if err := os.Symlink("/etc/passwd", link); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, pipe, filepath.Join(dir, "none"), dir} {
		if got := LogEnd(path, 4<<10); got != "" {
			t.Errorf("%s: %q", path, got)
		}
	}
}

// A VMM makes the console's file anew when its guest reboots.
func TestARebootedGuestsLastWordsAreKept(t *testing.T) {
	dir := t.TempDir()
	serial, events := filepath.Join(dir, "serial.log"), filepath.Join(dir, "events")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w := &rebootWatch{log: NewEventLog(events)}
	write(events, sampleEvent)
	write(serial, "Kernel panic - not syncing")
	if w.follow(serial) {
		t.Fatal("a reboot that was none")
	}
	write(serial, "another guest")
	write(events, sampleEvent+strings.Replace(sampleEvent, "booted", "rebooting", 1))
	if !w.follow(serial) {
		t.Fatal("the reboot is not seen")
	}
	if w.console != "Kernel panic - not syncing" {
		t.Errorf("kept %q", w.console)
	}
}

func TestEventsGoOnAfterThoseReadAreGivenBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	add := func(text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	w := &rebootWatch{log: NewEventLog(path)}
	for range 2 {
		add(strings.Repeat(sampleEvent, 4*LogMax/len(sampleEvent)) + sampleRemoved[:40])
		if w.poll() {
			t.Fatal("a reboot that was none")
		}
		w.trim()
		if size, used := diskUse(t, path); used > LogMax || size < 3*LogMax {
			t.Errorf("the events take %d of %d bytes", used, size)
		}
		add(sampleRemoved[40:])
	}
	add(strings.Replace(sampleEvent, "booted", "rebooting", 1))
	// One that begins now, as another daemon does, finds what is left.
	for who, w := range map[string]*rebootWatch{"the same": w, "another": {log: NewEventLog(path)}} {
		if !w.poll() {
			t.Errorf("%s reader does not see the reboot", who)
		}
		w.trim()
	}
}

// Else one that a guest has taken over would hold up who asks whether it rebooted,
// and the trimming.
func TestEventsWithoutEndAreReadInParts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	reboot := strings.Replace(sampleEvent, "booted", "rebooting", 1)
	text := strings.Repeat(sampleEvent, 3*maxPendingEvent/len(sampleEvent)) + reboot
	begun := int64(len(text))
	text += strings.Repeat(sampleEvent, 8*maxPendingEvent/len(sampleEvent))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w := &rebootWatch{log: NewEventLog(path)}
	w.readTo(begun)
	if !w.seen.Load() || w.log.off > begun+2*maxPendingEvent {
		t.Errorf("%d of %d bytes were read, where %d were there; reboot seen: %v", w.log.off, len(text), begun, w.seen.Load())
	}
}

func TestWhatAGuestMakesItsVMMWriteIsKeptShort(t *testing.T) {
	l := fake(t, "talkative")
	p := startFake(t, l)
	for path, text := range map[string]string{SerialPath(l.Dir): "x", EventsPath(l.Dir): sampleEvent} {
		if err := os.WriteFile(path, bytes.Repeat([]byte(text), 4*LogMax/len(text)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.Supervise()
	deadline := time.After(10 * time.Second)
	for _, path := range []string{LogPath(l.Dir), SerialPath(l.Dir), EventsPath(l.Dir)} {
		for {
			if size, used := diskUse(t, path); size >= 3*LogMax && used <= LogMax {
				break
			}
			select {
			case <-deadline:
				t.Fatalf("%s is still long", path)
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	if end := logTail(LogPath(l.Dir), 0); !strings.HasSuffix(end, "last words\n") {
		t.Errorf("the log ends %q", end)
	}
}
