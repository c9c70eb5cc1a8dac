package main

import (
	"os"
	"path/filepath"
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
