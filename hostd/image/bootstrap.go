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
)

// Where the host's package sources are configured.
const (
	aptSources    = "/etc/apt/sources.list"
	aptSourcesDir = "/etc/apt/sources.list.d"
)

// excluded from every root file system: what nobody reads in a sandbox.
var excluded = []string{
	"path-exclude=/usr/share/doc/*", "path-include=/usr/share/doc/*/copyright",
	"path-exclude=/usr/share/man/*", "path-exclude=/usr/share/info/*",
	"path-exclude=/usr/share/locale/*", "path-exclude=/usr/share/lintian/*",
	"path-exclude=/usr/share/groff/*",
}

// bootstrapRoot fills dir, which must not exist, with a Debian root file system.
func bootstrapRoot(ctx context.Context, b Bootstrap, cas []authority, dir string, tell func(part float64, detail string)) error {
	sources, err := hostSources(b.Suite, aptSources, aptSourcesDir)
	if err != nil {
		return err
	}
	args := []string{
		"--variant=minbase", "--mode=root", "--format=directory", "--skip=cleanup/reproducible",
		"--aptopt=APT::Install-Recommends \"false\"",
		// A root that is not finished is thrown away, so nothing need be synced yet.
		"--dpkgopt=force-unsafe-io",
	}
	for _, path := range excluded {
		args = append(args, "--dpkgopt="+path)
	}
	for _, option := range hostAptOptions(ctx) {
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

// hostSources returns the host's package sources for a suite, in whichever of
// apt's two formats they are. The host's other sources have no business in a
// guest.
func hostSources(suite, list, dir string) ([]byte, error) {
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
	if out.Len() == 0 {
		return nil, fmt.Errorf("%s and %s have no package source for the suite %s", list, dir, suite)
	}
	return out.Bytes(), nil
}

func ofSuite(word, suite string) bool {
	return word == suite || word == suite+"-updates" || word == suite+"-security"
}

// pickLines takes "deb [options] uri suite component…".
func pickLines(out *bytes.Buffer, raw []byte, suite string) {
	for line := range strings.Lines(string(raw)) {
		text, _, _ := strings.Cut(line, "#")
		text = optionList.ReplaceAllString(text, " ")
		f := strings.Fields(text)
		if len(f) >= 3 && f[0] == "deb" && ofSuite(f[2], suite) {
			// A stanza, because the two formats do not mix in one file.
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

// pickStanzas takes deb822 stanzas all of whose suites are this one's.
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

// aptOption is what of the host's apt configuration says how packages are
// reached: proxies, time-outs, and what is not to be checked.
var aptOption = regexp.MustCompile(`^Acquire::(https?::|Retries|Check-Valid-Until|Check-Date|ForceIPv4)`)

func hostAptOptions(ctx context.Context) []string {
	out, err := exec.CommandContext(ctx, "apt-config", "dump", "--no-empty").Output()
	if err != nil {
		return nil // apt's own defaults then
	}
	var options []string
	for line := range strings.Lines(string(out)) {
		if aptOption.MatchString(line) {
			options = append(options, strings.TrimSuffix(strings.TrimSpace(line), ";"))
		}
	}
	return options
}

// mmdebstrap runs it and tells its progress from the lines that it prints.
func mmdebstrap(ctx context.Context, args []string, sources []byte, tell func(float64, string)) error {
	cmd := exec.CommandContext(ctx, "mmdebstrap", args...)
	// It ends with this program, and what it mounted and started ends with it. The
	// kernel watches the thread that started it, so that thread must not end.
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

// bootstrapStages are mmdebstrap's own, with the part of its time that each
// begins at, measured.
var bootstrapStages = []struct {
	prefix string
	part   float64
}{
	{"running apt-get update", 0.02}, {"downloading packages", 0.06}, {"extracting archives", 0.12},
	{"installing essential", 0.16}, {"installing remaining", 0.3}, {"cleaning", 0.98},
}

// scanLines ends a line at \r, too: progress bars.
func scanLines(data []byte, atEOF bool) (int, []byte, error) {
	if i := bytes.IndexAny(data, "\r\n"); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// notShared must not be the same in all guests of a template, or be the build
// host's; guestd makes them, or the host sends them.
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
