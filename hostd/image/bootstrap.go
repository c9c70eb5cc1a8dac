package image

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/berth-cloud/berth/vmm"
)

// The configuration of the host's package sources.
const (
	aptSources    = "/etc/apt/sources.list"
	aptSourcesDir = "/etc/apt/sources.list.d"
	// debianKeys are those that Debian's archive is signed with, on any Linux.
	debianKeys = "/usr/share/keyrings/debian-archive-keyring.gpg"
)

// excluded are paths that no root file system needs.
var excluded = []string{
	"path-exclude=/usr/share/doc/*", "path-include=/usr/share/doc/*/copyright",
	"path-exclude=/usr/share/man/*", "path-exclude=/usr/share/info/*",
	"path-exclude=/usr/share/locale/*", "path-exclude=/usr/share/lintian/*",
	"path-exclude=/usr/share/groff/*",
}

// bootstrapRoot fills dir, which must not exist, with a Debian root file system.
func bootstrapRoot(ctx context.Context, b Bootstrap, cas []authority, dir string, tell func(part float64, detail string)) error {
	sources, err := HostSources(b.Suite)
	if err != nil {
		return err
	}
	args := []string{
		"--variant=minbase", "--mode=root", "--format=directory", "--skip=cleanup/reproducible",
		"--aptopt=APT::Install-Recommends \"false\"",
		// An unfinished root is discarded, so nothing needs to be synced yet.
		"--dpkgopt=force-unsafe-io",
	}
	for _, path := range excluded {
		args = append(args, "--dpkgopt="+path)
	}
	for _, option := range HostAptOptions(ctx) {
		args = append(args, "--aptopt="+option)
	}
	if len(b.Packages) > 0 {
		packages := slices.Clone(b.Packages)
		slices.Sort(packages)
		args = append(args, "--include="+strings.Join(slices.Compact(packages), ","))
	}
	args = append(args, trustHooks(cas)...)
	args = append(args, b.Suite, dir, "-")
	if err := mmdebstrap(ctx, args, sources, tell); err != nil {
		return err
	}
	return cleanRoot(dir)
}

// HostSources returns the host's package sources for a suite, as stanzas. On a host that
// has none, because it is another Debian or another Linux, they are debian.org's.
func HostSources(suite string) ([]byte, error) {
	return hostSources(suite, aptSources, aptSourcesDir, debianKeys)
}

// hostSources reads sources in either of apt's formats. Guests do not need those of
// other suites.
func hostSources(suite, list, dir, keys string) ([]byte, error) {
	var out bytes.Buffer
	files := []string{list}
	for _, pattern := range []string{"*.list", "*.sources"} {
		more, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, err
		}
		files = append(files, more...)
	}
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("package sources: %w", err)
		}
		if strings.HasSuffix(name, ".sources") {
			pickStanzas(&out, raw, suite)
		} else {
			pickLines(&out, raw, suite)
		}
	}
	if out.Len() > 0 {
		return out.Bytes(), nil
	}
	if _, err := os.Stat(keys); err != nil {
		return nil, fmt.Errorf("%s and %s have no package source for the suite %s, and Debian's own could not be verified: %w: install debian-archive-keyring, on Fedora debian-keyring",
			list, dir, suite, err)
	}
	for _, s := range []struct{ archive, suites string }{
		{"debian", suite + " " + suite + "-updates"}, {"debian-security", suite + "-security"},
	} {
		fmt.Fprintf(&out, "Types: deb\nURIs: http://deb.debian.org/%s\nSuites: %s\nComponents: main\nSigned-By: %s\n\n", s.archive, s.suites, keys)
	}
	return out.Bytes(), nil
}

func ofSuite(word, suite string) bool {
	return word == suite || word == suite+"-updates" || word == suite+"-security"
}

// pickLines selects lines of the form "deb [options] uri suite component…".
func pickLines(out *bytes.Buffer, raw []byte, suite string) {
	for line := range strings.Lines(string(raw)) {
		text, _, _ := strings.Cut(line, "#")
		text = optionList.ReplaceAllString(text, " ")
		f := strings.Fields(text)
		if len(f) >= 3 && f[0] == "deb" && ofSuite(f[2], suite) {
			// Written as a stanza, because a file cannot mix the two formats.
			options := optionList.FindString(line)
			fmt.Fprintf(out, "Types: deb\nURIs: %s\nSuites: %s\n", f[1], f[2])
			if len(f) > 3 {
				fmt.Fprintf(out, "Components: %s\n", strings.Join(f[3:], " "))
			}
			for _, o := range strings.Fields(strings.Trim(options, "[] \t")) {
				if key, ok := strings.CutPrefix(o, "signed-by="); ok {
					fmt.Fprintf(out, "Signed-By: %s\n", key)
				}
				if o == "trusted=yes" {
					fmt.Fprintf(out, "Trusted: yes\n")
				}
			}
			out.WriteByte('\n')
		}
	}
}

var optionList = regexp.MustCompile(`\[[^\]]*\]`)

// pickStanzas selects deb822 stanzas whose suites are all of this suite.
func pickStanzas(out *bytes.Buffer, raw []byte, suite string) {
	for stanza := range strings.SplitSeq(string(raw), "\n\n") {
		var kept []string
		types, all, disabled := "", true, false
		suites := 0
		for line := range strings.Lines(stanza) {
			if strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
				continue
			}
			kept = append(kept, strings.TrimRight(line, "\n"))
			key, value, _ := strings.Cut(line, ":")
			switch strings.ToLower(key) {
			case "types":
				types = strings.TrimSpace(value)
			case "enabled":
				disabled = strings.TrimSpace(value) == "no"
			case "suites":
				for word := range strings.FieldsSeq(value) {
					suites++
					all = all && ofSuite(word, suite)
				}
			}
		}
		if suites > 0 && all && !disabled && slices.Contains(strings.Fields(types), "deb") {
			out.WriteString(strings.Join(kept, "\n") + "\n\n")
		}
	}
}

// aptOption matches the host's apt options that say how packages are reached:
// proxies, timeouts, and checks that are off.
var aptOption = regexp.MustCompile(`^Acquire::(https?::|Retries|Check-Valid-Until|Check-Date|ForceIPv4)`)

// HostAptOptions returns those of the host's apt.
func HostAptOptions(ctx context.Context) []string {
	out, err := exec.CommandContext(ctx, "apt-config", "dump", "--no-empty").Output()
	if err != nil {
		return nil // apt's defaults apply
	}
	var options []string
	for line := range strings.Lines(string(out)) {
		if aptOption.MatchString(line) {
			options = append(options, strings.TrimSuffix(strings.TrimSpace(line), ";"))
		}
	}
	return options
}

// expendable is replaced by a test: only the privileged can be spared.
var expendable = vmm.Expendable

// mmdebstrap runs mmdebstrap and reports progress from the lines that it prints.
func mmdebstrap(ctx context.Context, args []string, sources []byte, tell func(float64, string)) error {
	cmd := exec.CommandContext(ctx, "mmdebstrap", args...)
	// It ends with this program, and so does what it mounted and started. The kernel
	// watches the thread that started it, so that thread must not end.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Unshareflags: syscall.CLONE_NEWNS, Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL,
	}
	cmd.Stdin = bytes.NewReader(sources)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("mmdebstrap: %w", err)
	}
	expendable(cmd.Process.Pid)
	var last strings.Builder
	lines := bufio.NewScanner(out)
	lines.Split(scanLines)
	part := 0.0
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" {
			continue
		}
		last.WriteString(line + "\n")
		if stage, ok := strings.CutPrefix(line, "I: "); ok {
			for _, s := range bootstrapStages {
				if strings.HasPrefix(stage, s.prefix) {
					part = s.part
				}
			}
			tell(part, stage)
		}
	}
	_, _ = io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("mmdebstrap: %w: %s", err, tail(last.String()))
	}
	return nil
}

// bootstrapStages are mmdebstrap's stages, with the measured fraction of its time at
// which each begins.
var bootstrapStages = []struct {
	prefix string
	part   float64
}{
	{"running apt-get update", 0.02}, {"downloading packages", 0.06}, {"extracting archives", 0.12},
	{"installing essential", 0.16}, {"installing remaining", 0.3}, {"cleaning", 0.98},
}

// scanLines also ends a line at \r, for progress bars.
func scanLines(data []byte, atEOF bool) (int, []byte, error) {
	if i := bytes.IndexAny(data, "\r\n"); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// notShared must not be the same in all guests of a template, or come from the host
// that builds it. guestd creates these files, or the host sends them.
var notShared = []string{
	"etc/ssh/ssh_host_*_key", "etc/ssh/ssh_host_*_key.pub", "etc/hostname", "etc/hosts",
	"etc/machine-id", "var/lib/dbus/machine-id", "etc/resolv.conf", "var/lib/systemd/random-seed",
	"var/cache/apt/archives/*.deb", "var/cache/apt/*.bin", "var/cache/ldconfig/aux-cache",
	"var/log/*.log", "var/log/apt/*",
}

func cleanRoot(dir string) error {
	for _, pattern := range notShared {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return err
		}
		for _, p := range paths {
			if err := os.RemoveAll(p); err != nil {
				return fmt.Errorf("clean the root file system: %w", err)
			}
		}
	}
	return nil
}
