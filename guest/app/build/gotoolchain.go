package build

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// GoProxy is the module proxy that has Go itself, as the module golang.org/toolchain.
const GoProxy = "https://proxy.golang.org"

// InstallGoMode is the argument by which guestapp runs InstallGo.
const InstallGoMode = "install-go"

// goPlatform is the one of guests.
const goPlatform = "linux-amd64"

// InstallGo installs the newest Go that a module proxy has of those that are wanted
// (as "1.22", "1.22.3", ">=1.22", or "" for any) below dir, and returns its directory.
// One that is there from before is not fetched again.
func InstallGo(ctx context.Context, proxy, want, dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(dir, "unpacking-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	versions, listed, packed := proxy+"/golang.org/toolchain/@v/", filepath.Join(temp, "list"), filepath.Join(temp, "go.zip")
	if err := download(ctx, versions+"list", listed); err != nil {
		return "", err
	}
	list, err := os.ReadFile(listed)
	if err != nil {
		return "", err
	}
	version := newestGo(string(list), want)
	if version == "" {
		return "", fmt.Errorf("%s has no Go %s", proxy, want)
	}
	version = "v0.0.1-go" + version + "." + goPlatform
	module := "golang.org/toolchain@" + version
	goroot := filepath.Join(dir, filepath.FromSlash(module))
	if _, err := os.Stat(goroot); err == nil {
		return goroot, nil
	}
	if err := download(ctx, versions+version+".zip", packed); err != nil {
		return "", err
	}
	if err := unpackGo(packed, module+"/", temp); err != nil {
		return "", fmt.Errorf("unpack %s: %w", module, err)
	}
	if err := os.MkdirAll(filepath.Dir(goroot), 0o755); err != nil {
		return "", err
	}
	return goroot, os.Rename(filepath.Join(temp, filepath.FromSlash(module)), goroot)
}

var goRelease = regexp.MustCompile(`(?m)^v0\.0\.1-go([0-9.]+)\.` + goPlatform + `$`)

// newestGo is the newest release in a proxy's list that satisfies want; "": none does.
func newestGo(list, want string) (newest string) {
	for _, m := range goRelease.FindAllStringSubmatch(list, -1) {
		if satisfies(m[1], want) && (newest == "" || compare(m[1], newest) > 0) {
			newest = m[1]
		}
	}
	return newest
}

// download gets a URL into a file. It tries three times.
func download(ctx context.Context, url, file string) (err error) {
	for range 3 {
		if err = downloadOnce(ctx, url, file); err == nil || ctx.Err() != nil {
			break
		}
	}
	return err
}

func downloadOnce(ctx context.Context, url, file string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	to, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, resp.Body)
	return errors.Join(err, to.Close())
}

// unpackGo unpacks what a module's zip has below a prefix. Such files have no mode bits.
func unpackGo(packed, prefix, dir string) error {
	archive, err := zip.OpenReader(packed)
	if err != nil {
		return err
	}
	defer func() { _ = archive.Close() }()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for _, f := range archive.File {
		inside, ok := strings.CutPrefix(f.Name, prefix)
		if !ok || strings.HasSuffix(f.Name, "/") {
			continue
		}
		mode := fs.FileMode(0o644)
		if strings.HasPrefix(inside, "bin/") || strings.HasPrefix(inside, "pkg/tool/") {
			mode = 0o755
		}
		if err := unpackFile(root, f, mode); err != nil {
			return err
		}
	}
	return nil
}

func unpackFile(root *os.Root, f *zip.File, mode fs.FileMode) error {
	if err := root.MkdirAll(path.Dir(f.Name), 0o755); err != nil {
		return err
	}
	from, err := f.Open()
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	to, err := root.OpenFile(f.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from) //nolint:gosec // the tenant's disk is bounded, and so is the build's time
	return errors.Join(err, to.Close())
}
