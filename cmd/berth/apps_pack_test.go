package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestWhatIsIgnored(t *testing.T) {
	file := filepath.Join(t.TempDir(), ignoreFile)
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("\n# a comment\n*.log\n/build\ndocs/*.pdf\nassets/\nsecret?.txt\r\n")
	g, err := readIgnore(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"a.log": true, "x/y/b.log": true, "a.logs": false, "build": true, "build/x/y": true, "x/build/y": false,
		"docs/a.pdf": true, "docs/x/a.pdf": false, "x/docs/a.pdf": false, "assets/a": true, "x/assets/b/c": true,
		"secret1.txt": true, "secret.txt": false, "# a comment": false, "index.html": false,
	} {
		if g.match(name) != want {
			t.Errorf("%s is ignored: %v", name, !want)
		}
	}
	for _, bad := range []string{"a\n!keep", "**/x", "[", "x/**"} {
		write(bad)
		if _, err := readIgnore(file); err == nil || !strings.Contains(err.Error(), "is no pattern") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if g, err := readIgnore(filepath.Join(t.TempDir(), "none")); g != nil || err != nil {
		t.Errorf("%v, %v", g, err)
	}
}

// TestSubmodulesAreDeployed: they are files of the folder as all others are. A repository
// that only lies in the folder is not of it.
func TestSubmodulesAreDeployed(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"index.html": "", "theme/a.css": "", "theme/.gitignore": "*.tmp\n", "theme/x.tmp": "", "theme/fonts/f.woff": "", "other/b.css": "",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	git := func(in string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "advice.addEmbeddedRepo=false"}, args...)...)
		cmd.Dir = filepath.Join(dir, in)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	for _, in := range []string{".", "theme", "theme/fonts", "other"} {
		git(in, "init", "--quiet")
	}
	for _, in := range []string{"theme/fonts", "theme", "other"} {
		git(in, "add", ".")
		git(in, "commit", "--quiet", "-m", "x")
	}
	git(".", "add", "theme", "index.html")
	names, ok := gitFiles(t.Context(), dir)
	if want := []string{"index.html", "theme/.gitignore", "theme/a.css", "theme/fonts/f.woff"}; !ok || !slices.Equal(names, want) {
		t.Errorf("%v, want %v", names, want)
	}
}
