package identity

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/proc"
)

// fakeSystem is a kernel that remembers what it was told, in order.
type fakeSystem struct {
	calls    []string
	clock    time.Time
	hostname string
	fail     string // the call that fails
}

var errFake = errors.New("refused")

func (f *fakeSystem) call(name string) error {
	f.calls = append(f.calls, name)
	if name == f.fail {
		return errFake
	}
	return nil
}

func (f *fakeSystem) system() system {
	return system{
		thaw:           func() {},
		addEntropy:     func([]byte) error { return f.call("entropy") },
		setClock:       func(ns int64) error { f.clock = time.Unix(0, ns); return f.call("clock") },
		setHostname:    func(b []byte) error { f.hostname = string(b); return f.call("hostname") },
		setGateway:     func(string) error { return f.call("gateway") },
		cutConnections: func(netip.AddrPort) (int, error) { return 3, f.call("connections") },
	}
}

func testGuest(t *testing.T) (*Guest, *fakeSystem, string) {
	t.Helper()
	root := t.TempDir()
	sys := &fakeSystem{}
	g, err := newGuest(root, proc.Groups{}, sys.system())
	if err != nil {
		t.Fatal(err)
	}
	return g, sys, root
}

func testIdentity() *guestapi.Identity {
	return &guestapi.Identity{
		Generation: 7, UnixNanos: time.Date(2031, 1, 2, 3, 4, 5, 0, time.UTC).UnixNano(),
		Entropy: bytes.Repeat([]byte{1}, 64), Hostname: "box-1", MachineID: strings.Repeat("ab", 16),
		Env: map[string]string{"A": "1"}, Nameservers: []string{"198.18.0.1", "2001:db8::1"},
		SSHHostKeys: []guestapi.SSHHostKey{{Type: "ed25519", Private: "PRIVATE\nKEY\n", Public: "ssh-ed25519 AAAA"}},
		ResetTCP:    true, GatewayMAC: "52:54:00:be:47:01",
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func mode(t *testing.T, path string) os.FileMode {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return st.Mode().Perm()
}

func TestEveryPartTakesEffect(t *testing.T) {
	g, sys, root := testGuest(t)
	id := testIdentity()
	arrived := time.Now().Add(-time.Second)
	done, err := g.Apply(id, arrived, netip.AddrPort{})
	if err != nil {
		t.Fatal(err)
	}
	if done.Generation != 7 || done.EntropyBits != 512 || done.ConnectionsCut != 3 || done.ClockSteppedMS == 0 {
		t.Errorf("confirmed %+v", done)
	}
	if diff := cmp.Diff([]string{"entropy", "clock", "connections", "gateway", "hostname"}, sys.calls); diff != "" {
		t.Errorf("calls: %s", diff)
	}
	// A second passed since the request arrived.
	if off := sys.clock.Sub(time.Unix(0, id.UnixNanos)); off < time.Second || off > time.Since(arrived) {
		t.Errorf("the clock was set %s after the request's", off)
	}
	for path, want := range map[string]string{
		"/etc/hostname":                     "box-1\n",
		"/etc/hosts":                        defaultHosts + "127.0.1.1\tbox-1\n",
		"/etc/machine-id":                   strings.Repeat("ab", 16) + "\n",
		"/etc/resolv.conf":                  "nameserver 198.18.0.1\nnameserver 2001:db8::1\n",
		"/etc/ssh/ssh_host_ed25519_key":     "PRIVATE\nKEY\n",
		"/etc/ssh/ssh_host_ed25519_key.pub": "ssh-ed25519 AAAA\n",
		guestapi.GenerationPath:             "7\n",
	} {
		if got := read(t, root+path); got != want {
			t.Errorf("%s holds %q, want %q", path, got, want)
		}
	}
	if got := mode(t, root+"/etc/ssh/ssh_host_ed25519_key"); got != 0o600 {
		t.Errorf("private key has mode %o", got)
	}
	if got := mode(t, root+"/etc/ssh/ssh_host_ed25519_key.pub"); got != 0o644 {
		t.Errorf("public key has mode %o", got)
	}
}

// The host asks again when an answer is late, or took so long that the clock
// cannot be right. That sets the clock, and nothing else.
func TestSameIdentityAgainSetsTheClockAlone(t *testing.T) {
	g, sys, _ := testGuest(t)
	id := testIdentity()
	apply := func(want ...string) {
		t.Helper()
		sys.calls = nil
		done, err := g.Apply(id, time.Now(), netip.AddrPort{})
		if err != nil || done.Generation != id.Generation || done.EntropyBits != 512 {
			t.Errorf("confirmed %+v, %v", done, err)
		}
		if diff := cmp.Diff(want, sys.calls); diff != "" {
			t.Errorf("calls: %s", diff)
		}
	}
	all := []string{"entropy", "clock", "connections", "gateway", "hostname"}
	apply(all...)
	apply() // the same message, by another way
	id.UnixNanos += int64(time.Second)
	apply("clock")
	id.UnixNanos -= int64(time.Millisecond)
	apply() // overtaken
	id.Entropy[0]++
	apply(all...)
}

// A program that has the file open, or watches it, sees one change for each
// identity.
func TestGenerationIsWrittenInPlaceAndOnce(t *testing.T) {
	g, _, root := testGuest(t)
	f, err := os.Open(root + guestapi.GenerationPath)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	if _, err := unix.InotifyAddWatch(watch, f.Name(), unix.IN_MODIFY|unix.IN_ATTRIB|unix.IN_DELETE_SELF); err != nil {
		t.Fatal(err)
	}
	id := testIdentity()
	for _, want := range []string{"7\n", "8\n", "9\n", "10\n"} {
		id.Entropy[0]++
		if _, err := g.Apply(id, time.Now(), netip.AddrPort{}); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 8)
		if n, _ := f.ReadAt(got, 0); string(got[:n]) != want {
			t.Errorf("got %q, want %q", got[:n], want)
		}
		events := make([]byte, 4<<10)
		if n, err := unix.Read(watch, events); err != nil || n != unix.SizeofInotifyEvent {
			t.Errorf("%d bytes of events, %v; want one event", n, err)
		}
	}
}

func TestLaterIdentityReplacesTheWhole(t *testing.T) {
	g, _, root := testGuest(t)
	if _, err := g.Apply(testIdentity(), time.Now(), netip.AddrPort{}); err != nil {
		t.Fatal(err)
	}
	second := testIdentity()
	second.Generation, second.Hostname, second.Env = 10, "b", nil
	second.Entropy[0]++
	second.SSHHostKeys[0].Private = "P"
	if _, err := g.Apply(second, time.Now(), netip.AddrPort{}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/etc/hostname":                 "b\n",
		"/etc/hosts":                    defaultHosts + "127.0.1.1\tb\n",
		"/etc/ssh/ssh_host_ed25519_key": "P\n",
		guestapi.GenerationPath:         "10\n",
	} {
		if got := read(t, root+path); got != want {
			t.Errorf("%s holds %q, want %q", path, got, want)
		}
	}
}

// Whatever the workload changed since the last identity, the next one is in effect.
func TestWhatChangedIsLookedAt(t *testing.T) {
	write := func(path, content string) func(*testing.T, string) {
		return func(t *testing.T, root string) {
			if err := os.MkdirAll(filepath.Dir(root+path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(root+path, []byte(content), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	replace := func(path string) func(*testing.T, string) {
		return func(t *testing.T, root string) {
			write(path+".new", "own\n")(t, root)
			if err := os.Rename(root+path+".new", root+path); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(path string) func(*testing.T, string) {
		return func(t *testing.T, root string) {
			if err := os.Remove(root + path); err != nil {
				t.Fatal(err)
			}
		}
	}
	pipe := func(path string) func(*testing.T, string) {
		return func(t *testing.T, root string) {
			remove(path)(t, root)
			if err := unix.Mkfifo(root+path, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		change func(t *testing.T, root string)
		path   string // with what it holds after the next identity
		want   string
	}{
		"nothing":                   {func(*testing.T, string) {}, "/etc/hostname", "box-2\n"},
		"a file of no concern":      {write("/var/x", "x"), "/etc/hostname", "box-2\n"},
		"written through the link":  {write("/etc/hosts", "10.0.0.3 own\n"), "/etc/hosts", "10.0.0.3 own\n127.0.1.1\tbox-2\n"},
		"hosts, longer than it was": {write("/etc/hosts", strings.Repeat("10.0.0.3 own\n", 2000)), "/etc/hosts", strings.Repeat("10.0.0.3 own\n", 2000) + "127.0.1.1\tbox-2\n"},
		"a file for the link":       {replace("/etc/hostname"), "/etc/hostname", "box-2\n"},
		"own hosts":                 {replace("/etc/hosts"), "/etc/hosts", "own\n127.0.1.1\tbox-2\n"},
		"an own key":                {replace("/etc/ssh/ssh_host_ed25519_key"), "/etc/ssh/ssh_host_ed25519_key", "SECOND\n"},
		"a pipe for the link":       {pipe("/etc/hostname"), "/etc/hostname", "box-2\n"},
		"a pipe for hosts":          {pipe("/etc/hosts"), "/etc/hosts", "127.0.1.1\tbox-2\n"},
		"the link removed":          {remove("/etc/machine-id"), "/etc/machine-id", strings.Repeat("ab", 16) + "\n"},
		"a hook":                    {write(guestapi.HookDir+"/10", "#!/bin/sh\necho $BERTH_HOSTNAME > $0.ran\n"), guestapi.HookDir + "/10.ran", "box-2\n"},
	} {
		for _, times := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s, %d times", name, times), func(t *testing.T) {
				g, _, root := testGuest(t)
				id := testIdentity()
				apply := func() {
					t.Helper()
					id.Entropy[0]++
					if _, err := g.Apply(id, time.Now(), netip.AddrPort{}); err != nil {
						t.Fatal(err)
					}
				}
				apply()
				id.Hostname, id.SSHHostKeys[0].Private = "box-2", "SECOND"
				for range times {
					c.change(t, root)
					apply()
				}
				if got := read(t, root+c.path); got != c.want {
					t.Errorf("%s holds %q, want %q", c.path, got, c.want)
				}
			})
		}
	}
}

// A host that saw no answer gives the identity again, by a connection that must
// outlive what was late.
func TestSameIdentityAgainCutsNoConnection(t *testing.T) {
	g, sys, _ := testGuest(t)
	for i, want := range []int{3, 0} {
		done, err := g.Apply(testIdentity(), time.Now(), netip.AddrPort{})
		if err != nil || done.ConnectionsCut != want {
			t.Errorf("%d: confirmed %+v, %v", i, done, err)
		}
	}
	second := testIdentity()
	second.Entropy[0]++
	sys.fail = "hostname"
	if _, err := g.Apply(second, time.Now(), netip.AddrPort{}); !errors.Is(err, errFake) {
		t.Errorf("got %v", err)
	}
	sys.fail = ""
	if done, err := g.Apply(second, time.Now(), netip.AddrPort{}); err != nil || done.ConnectionsCut != 3 {
		t.Errorf("after one that failed: confirmed %+v, %v", done, err)
	}
}

func TestNothingIsConfirmedThatFailed(t *testing.T) {
	for _, part := range []string{"entropy", "clock", "connections", "gateway", "hostname"} {
		t.Run(part, func(t *testing.T) {
			g, sys, root := testGuest(t)
			sys.fail = part
			if _, err := g.Apply(testIdentity(), time.Now(), netip.AddrPort{}); !errors.Is(err, errFake) {
				t.Errorf("got %v", err)
			}
			if got := read(t, root+guestapi.GenerationPath); got != "" {
				t.Errorf("the generation is %q", got)
			}
		})
	}
}

func TestTenantsHostsAreKept(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(root+"/etc", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(root+"/etc/hosts", []byte("10.0.0.1 db\n127.0.1.1 template"), 0o644); err != nil {
		t.Fatal(err)
	}
	g, err := newGuest(root, proc.Groups{}, (&fakeSystem{}).system())
	if err != nil {
		t.Fatal(err)
	}
	id := testIdentity()
	apply := func() {
		t.Helper()
		id.Entropy[0]++
		if _, err := g.Apply(id, time.Now(), netip.AddrPort{}); err != nil {
			t.Fatal(err)
		}
	}
	apply()
	if got, want := read(t, root+"/etc/hosts"), "10.0.0.1 db\n127.0.1.1\tbox-1\n"; got != want {
		t.Errorf("the image's: got %q, want %q", got, want)
	}
	f, err := os.OpenFile(root+"/etc/hosts", os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("10.0.0.2 cache\n"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	apply()
	if got, want := read(t, root+"/etc/hosts"), "10.0.0.1 db\n10.0.0.2 cache\n127.0.1.1\tbox-1\n"; got != want {
		t.Errorf("what was written through the link: got %q, want %q", got, want)
	}
	// As sed -i does it.
	if err := os.Remove(root + "/etc/hosts"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(root+"/etc/hosts", []byte("10.0.0.3 own\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	apply()
	if got, want := read(t, root+"/etc/hosts"), "10.0.0.3 own\n127.0.1.1\tbox-1\n"; got != want {
		t.Errorf("a file in the link's place: got %q, want %q", got, want)
	}
}

func TestFileInTheLinksPlaceIsWrittenToo(t *testing.T) {
	g, _, root := testGuest(t)
	if err := os.Remove(root + "/etc/hostname"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(root+"/etc/hostname", []byte("tenant\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Apply(testIdentity(), time.Now(), netip.AddrPort{}); err != nil {
		t.Fatal(err)
	}
	if got := read(t, root+"/etc/hostname"); got != "box-1\n" {
		t.Errorf("got %q", got)
	}
}

func TestAgentThatStartsAgainKnowsTheLastIdentity(t *testing.T) {
	g, _, root := testGuest(t)
	if last, err := g.Last(); err != nil || last.Generation != 0 {
		t.Fatalf("before the first: %+v, %v", last, err)
	}
	if _, err := g.Apply(testIdentity(), time.Now(), netip.AddrPort{}); err != nil {
		t.Fatal(err)
	}
	again, err := newGuest(root, proc.Groups{}, (&fakeSystem{}).system())
	if err != nil {
		t.Fatal(err)
	}
	last, err := again.Last()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Last{Generation: 7, Env: map[string]string{"A": "1"}}, last); diff != "" {
		t.Error(diff)
	}
	if got := read(t, root+"/etc/hostname"); got != "box-1\n" {
		t.Errorf("the second agent reset the hostname to %q", got)
	}
}

func TestIncompleteIdentitiesAreRefused(t *testing.T) {
	if err := Check(testIdentity()); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*guestapi.Identity){
		"little entropy":        func(id *guestapi.Identity) { id.Entropy = id.Entropy[:63] },
		"too much entropy":      func(id *guestapi.Identity) { id.Entropy = make([]byte, 513) },
		"no clock":              func(id *guestapi.Identity) { id.UnixNanos = 0 },
		"no hostname":           func(id *guestapi.Identity) { id.Hostname = "" },
		"hostname of two lines": func(id *guestapi.Identity) { id.Hostname = "a\nb" },
		"hostname too long":     func(id *guestapi.Identity) { id.Hostname = strings.Repeat("a", 64) },
		"hostname with a dash":  func(id *guestapi.Identity) { id.Hostname = "-a" },
		"short machine id":      func(id *guestapi.Identity) { id.MachineID = "ab" },
		"zero machine id":       func(id *guestapi.Identity) { id.MachineID = strings.Repeat("0", 32) },
		"upper-case machine id": func(id *guestapi.Identity) { id.MachineID = strings.Repeat("AB", 16) },
		"host key of a path":    func(id *guestapi.Identity) { id.SSHHostKeys[0].Type = "../x" },
		"empty host key":        func(id *guestapi.Identity) { id.SSHHostKeys[0].Private = "" },
		"nameserver by name":    func(id *guestapi.Identity) { id.Nameservers = []string{"dns.example"} },
		"variable with a NUL":   func(id *guestapi.Identity) { id.Env["A"] = "\x00" },
		"variable with =":       func(id *guestapi.Identity) { id.Env["A=B"] = "" },
	} {
		t.Run(name, func(t *testing.T) {
			id := testIdentity()
			spoil(id)
			if err := Check(id); !errors.Is(err, ErrInvalid) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestNumberGrowsWithEachLife goes through what a guest may be restored as: its
// generation is the sandbox's, which says little of the guest's own past.
func TestNumberGrowsWithEachLife(t *testing.T) {
	g, f, root := testGuest(t)
	hook(t, root, "note", "echo $BERTH_GENERATION >> "+root+"/numbers", 0o755)
	path := root + guestapi.GenerationPath
	for _, c := range []struct {
		name             string
		generation, want uint64
		entropy          byte
		restart          bool
	}{
		{"a template's build", 0, 0, 1, false},
		{"its next step", 0, 0, 2, false},
		{"a sandbox", 1, 1, 3, false},
		{"the same asked again", 1, 1, 3, false},
		{"woken", 1, 2, 4, false},
		{"forked", 1, 3, 5, false},
		{"forked again", 1, 4, 6, false},
		{"a sandbox tried many times", 9, 9, 7, false},
		{"its fork", 1, 10, 8, false},
		{"after a start of the agent", 1, 11, 9, true},
	} {
		if c.restart {
			var err error
			if g, err = newGuest(root, g.groups, f.system()); err != nil {
				t.Fatal(err)
			}
		}
		id := testIdentity()
		id.Generation, id.Entropy = c.generation, bytes.Repeat([]byte{c.entropy}, 64)
		done, err := g.Apply(id, time.Now(), netip.AddrPort{})
		if err != nil || done.Generation != c.generation {
			t.Fatalf("%s: %+v, %v", c.name, done, err)
		}
		if got, want := read(t, path), fmt.Sprintln(c.want); got != want {
			t.Errorf("%s: the number is %q, want %q", c.name, got, want)
		}
	}
	if got := strings.Join(strings.Fields(read(t, root+"/numbers")), " "); got != "0 0 1 2 3 4 9 10 11" {
		t.Errorf("the hook was told %s", got)
	}
}
