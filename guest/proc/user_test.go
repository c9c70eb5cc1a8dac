package proc

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const passwd = `root:x:0:0:root:/root:/bin/bash
# a comment
broken line
app:x:1000:1000:App,,,:/home/app:/bin/zsh
42:x:2000:2000::/home/42:
nohome:x:3000:3000:::/usr/sbin/nologin
huge:x:99999999999:1::/:/bin/sh
`

const group = `root:x:0:
docker:x:999:other,app
audio:x:29:app
broken
`

func TestUsersAreLookedUp(t *testing.T) {
	dir := t.TempDir()
	passwdFile, groupFile := filepath.Join(dir, "passwd"), filepath.Join(dir, "group")
	for file, content := range map[string]string{passwdFile: passwd, groupFile: group} {
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	root := User{Name: "root", Home: "/root", Shell: "/bin/bash"}
	app := User{Name: "app", UID: 1000, GID: 1000, Groups: []uint32{999, 29}, Home: "/home/app", Shell: "/bin/zsh"}
	appGroup := app
	appGroup.GID, appGroup.Groups = 5, nil
	for who, want := range map[string]User{
		"":       root,
		"root":   root,
		"0":      root,
		"app":    app,
		"1000":   app,
		"app:5":  appGroup,
		"1000:5": appGroup,
		"42":     {Name: "42", UID: 2000, GID: 2000, Home: "/home/42", Shell: "/bin/sh"},
		"77":     {UID: 77, GID: 77, Home: "/", Shell: "/bin/sh"},
		"77:78":  {UID: 77, GID: 78, Home: "/", Shell: "/bin/sh"},
		"nohome": {Name: "nohome", UID: 3000, GID: 3000, Home: "/", Shell: "/usr/sbin/nologin"},
	} {
		got, err := lookUp(who, passwdFile, groupFile)
		if err != nil {
			t.Errorf("%q: %v", who, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", who, diff)
		}
	}
	for _, who := range []string{"nobody-here", "app:", "app:staff", ":5x", "-1", "99999999999", "app:99999999999", "huge", "a\x00b", "1:2:3"} {
		if got, err := lookUp(who, passwdFile, groupFile); !errors.Is(err, ErrNoUser) {
			t.Errorf("%q: got %+v, %v", who, got, err)
		}
	}
}

func TestRootNeedsNoPasswdFile(t *testing.T) {
	got, err := lookUp("", "/no/such/file", "/no/such/file")
	if err != nil || got.UID != 0 || got.Home != "/root" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func FuzzParsePasswd(f *testing.F) {
	for line := range strings.Lines(passwd) {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		u, ok := parsePasswd(line)
		if ok && (u.Name == "" || u.Home == "" || u.Shell == "") {
			t.Errorf("%q gives %+v", line, u)
		}
	})
}

func TestSignalNames(t *testing.T) {
	for name, number := range map[string]int{"KILL": 9, "SIGTERM": 15, "int": 2, "WINCH": 28, "nothing": 0, "": 0, "SIG": 0} {
		if got := int(ParseSignal(name)); got != number {
			t.Errorf("ParseSignal(%q) = %d, want %d", name, got, number)
		}
	}
	for number, name := range map[int]string{9: "KILL", 15: "TERM", 34: "RTMIN", 36: "RTMIN+2", 33: "RTMIN-1"} {
		if got := SignalName(syscall.Signal(number)); got != name {
			t.Errorf("SignalName(%d) = %q, want %q", number, got, name)
		}
	}
}
