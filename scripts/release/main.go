// Command release finishes a release's directory: a bill of materials of each program,
// archives of the client, and the list of checksums. The same programs make the same
// bytes, whenever and wherever it runs. `make release` builds the programs before.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// sumsFile lists the checksums of all other files.
const sumsFile = "SHA256SUMS"

type options struct {
	build   string // has <os>-<arch>/<program>
	to      string
	version string
	when    time.Time // of the commit
	extra   []string  // files to copy
}

func main() {
	var o options
	epoch := flag.Int64("epoch", 0, "time of the release, in seconds since 1970")
	flag.StringVar(&o.build, "build", "dist/build", "directory with <os>-<arch>/<program>")
	flag.StringVar(&o.to, "to", "dist", "directory of the release")
	flag.StringVar(&o.version, "version", "", "version of the release")
	flag.Parse()
	o.when, o.extra = time.Unix(*epoch, 0).UTC(), flag.Args()
	if err := finish(o); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func finish(o options) error {
	if o.version == "" {
		return errors.New("-version is missing")
	}
	programs, err := filepath.Glob(filepath.Join(o.build, "*-*", "*"))
	if err != nil {
		return err
	}
	if len(programs) == 0 {
		return fmt.Errorf("%s has no programs: make release builds them", o.build)
	}
	for _, path := range programs {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		platform := strings.ReplaceAll(filepath.Base(filepath.Dir(path)), "-", "_")
		name := filepath.Base(path) + "_" + platform
		bill, err := sbom(info, filepath.Base(path), o.version, o.when)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := os.WriteFile(filepath.Join(o.to, name+".cdx.json"), bill, 0o644); err != nil {
			return err
		}
		if filepath.Base(path) != "berth" {
			continue
		}
		if err := packed(filepath.Join(o.to, name+".tar.gz"), path, o.when); err != nil {
			return err
		}
	}
	for _, path := range o.extra {
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(o.to, filepath.Base(path)), raw, 0o644); err != nil {
			return err
		}
	}
	return sums(o.to)
}

// packed writes an archive of one program, with the licence.
func packed(to, program string, when time.Time) error {
	var buf bytes.Buffer
	z, err := gzip.NewWriterLevel(&buf, gzip.BestCompression)
	if err != nil {
		return err
	}
	w := tar.NewWriter(z)
	for _, f := range []struct {
		path string
		mode int64
	}{{program, 0o755}, {"LICENSE", 0o644}} {
		raw, err := os.ReadFile(f.path)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: filepath.Base(f.path), Mode: f.mode, Size: int64(len(raw)), ModTime: when, Format: tar.FormatUSTAR,
		}); err != nil {
			return err
		}
		if _, err := w.Write(raw); err != nil {
			return err
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		return err
	}
	return os.WriteFile(to, buf.Bytes(), 0o644)
}

// sums writes the checksums of every file of a directory, sorted by name, as sha256sum
// --check reads them.
func sums(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var lines []string
	for _, e := range entries {
		if !e.Type().IsRegular() || strings.HasPrefix(e.Name(), sumsFile) {
			continue
		}
		f, err := os.Open(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		h := sha256.New()
		_, err = io.Copy(h, f)
		f.Close()
		if err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("%x  %s\n", h.Sum(nil), e.Name()))
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[66:], b[66:]) })
	return os.WriteFile(filepath.Join(dir, sumsFile), []byte(strings.Join(lines, "")), 0o644)
}
