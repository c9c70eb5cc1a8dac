package controlplane

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-cloud/berth/sdnotify"
)

// A replica tells systemd that it serves, makes progress, has read its tiers again, and
// stops.
func TestWhatAReplicaTellsSystemd(t *testing.T) {
	dir := t.TempDir()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	// told waits for a message that begins so, whatever else is told meanwhile.
	told := func(want string) string {
		t.Helper()
		if err := socket.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 4096)
		for {
			n, err := socket.Read(buf)
			if err != nil {
				t.Fatalf("nothing told of %s: %v", want, err)
			}
			if text := string(buf[:n]); strings.HasPrefix(text, want) {
				return text
			}
		}
	}
	tiers := filepath.Join(dir, "tiers.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(tiers, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("small:\n  sandboxes: 1\n")
	reload := make(chan os.Signal)
	s, stop := startRouter(t, func(c *Config) {
		c.Tiers, c.Reload = tiers, reload
		c.Notifier = sdnotify.New(socket.LocalAddr().String(), 400*time.Millisecond)
		c.DBDomain, c.DBDevCA = "db.example.com", filepath.Join(dir, "ca")
	})
	if got := told("READY=1"); got != "READY=1\nSTATUS=Serving the API on "+s.Addr() {
		t.Errorf("told %q", got)
	}
	told("WATCHDOG=1")
	awaitLeader(t, s)
	told("WATCHDOG=1")

	write("large:\n  sandboxes: 9\n")
	reload <- syscall.SIGHUP
	told("RELOADING=1\nMONOTONIC_USEC=")
	if got := told("READY=1"); strings.Contains(got, "could not") || !s.tiers.Known("large") || s.tiers.Known("small") {
		t.Errorf("told %q; the tiers are %v", got, s.tiers.Names())
	}
	write("large: [")
	reload <- syscall.SIGHUP
	if got := told("READY=1"); !strings.Contains(got, "; the tiers could not be read again: ") || !s.tiers.Known("large") {
		t.Errorf("told %q; the tiers are %v", got, s.tiers.Names())
	}
	stop()
	told("STOPPING=1")
}
