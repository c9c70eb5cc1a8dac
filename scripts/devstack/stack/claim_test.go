package stack

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The lock is held from before the preparations, so what is missing for a second
// stack, such as memory, is not what the second `make up` hears of.
func TestClaimExcludesOthersUntilItIsReleased(t *testing.T) {
	o, err := Options{Root: t.TempDir()}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	lock, err := o.takeLock()
	if err != nil {
		t.Fatal(err)
	}
	c := &Claim{options: o, lock: locks{lock}}
	if _, err := o.takeLock(); !IsRefusal(err) || !strings.Contains(err.Error(), "already runs here") {
		t.Errorf("a second one: %v", err)
	}
	for range 2 {
		if err := c.Release(); err != nil {
			t.Error(err)
		}
	}
	again, err := o.takeLock()
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

// Two clones' hosts have the same namespaces, so that one would remove the other's.
func TestAnotherClonesStackIsNamedAndLeftAlone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the lock is below /run: run as root")
	}
	one := Options{Root: "/one", HostPrefix: "test" + strconv.Itoa(os.Getpid())}
	t.Cleanup(func() { os.Remove(one.hostsLock()) })
	held, err := one.takeHosts()
	if err != nil {
		t.Fatal(err)
	}
	other := one
	other.Root = t.TempDir()
	if _, err := other.takeHosts(); !IsRefusal(err) || !strings.HasSuffix(err.Error(), "make down in /one") {
		t.Errorf("a second one: %v", err)
	}
	if err := Down(t.Context(), other); !IsRefusal(err) {
		t.Errorf("down of another: %v", err)
	}
	held.Close()
	again, err := other.takeHosts()
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

func TestRunningStackIsNamedBeforeMissingMemory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("others are refused before: run as root")
	}
	// VMMs must be able to reach it.
	root := filepath.Join(t.TempDir(), "clone")
	for dir := filepath.Dir(root); dir != os.TempDir() && len(dir) > 1; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	o, err := Options{Root: root}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	lock, err := o.takeLock()
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	// A leftover that a second claim must not touch.
	record := filepath.Join(o.recordDir(), "r1.json")
	if err := os.MkdirAll(filepath.Dir(record), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(record, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewClaim(t.Context(), Options{Root: root}); !IsRefusal(err) || !strings.Contains(err.Error(), "already runs here") {
		if IsRefusal(err) && strings.Contains(err.Error(), "/dev/net/tun") {
			t.Skip(err)
		}
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(record); err != nil {
		t.Errorf("it touched the running stack: %v", err)
	}
}

// Ctrl-C reaches a terminal's whole group of processes, and we interrupt the build,
// too: the second signal would end it before it has removed its guest.
func TestBuildIsNotInOurGroupOfProcesses(t *testing.T) {
	o := fakeBuilder(t, `cut -d " " -f 5 /proc/$$/stat`)
	o.Templates = []string{BaseTemplate}
	var out bytes.Buffer
	if err := o.buildTemplates(t.Context(), &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if group, ours := strings.TrimSpace(out.String()), strings.Fields(processStat(t))[2]; group == "" || group == ours {
		t.Errorf("the build's group is %s, and ours", group)
	}
}

func processStat(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	return string(raw[bytes.LastIndexByte(raw, ')')+1:])
}

func TestKilledBuildIsPurgedAndARunningOneIsNot(t *testing.T) {
	o := fakeBuilder(t, `echo "$BERTH_AGENT_ID $*" >>told`)
	told := func() []string {
		raw, err := os.ReadFile(filepath.Join(o.Root, "told"))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return strings.Fields(string(raw))
	}
	dir := filepath.Join(t.TempDir(), "build3")
	purge := func() {
		t.Helper()
		if err := o.purgeBuild(t.Context(), 2, dir); err != nil {
			t.Fatal(err)
		}
	}
	if purge(); len(told()) > 0 {
		t.Errorf("there was no build, and it told hostd %q", told())
	}
	if err := os.Mkdir(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	running, err := os.Create(filepath.Join(dir, "build.lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(running.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if purge(); len(told()) > 0 {
		t.Errorf("a build runs, and it told hostd %q", told())
	}
	running.Close() // it was killed
	purge()
	if want := []string{"build3", "template", "list", "build3", "purge"}; !slices.Equal(told(), want) {
		t.Errorf("it told hostd %q, want %q", told(), want)
	}
}
