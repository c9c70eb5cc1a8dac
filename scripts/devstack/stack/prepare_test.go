package stack

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// fakeBuilder returns options for a root with Berth's templates and a hostd that
// runs script, with the template's name in $name and the host's id in
// $BERTH_AGENT_ID.
func fakeBuilder(t *testing.T, script string) Options {
	t.Helper()
	repository, err := FindRoot()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := os.Symlink(filepath.Join(repository, "templates"), filepath.Join(root, "templates")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	program := "#!/bin/sh\nset -eu\ncd " + root + "\nname=$(basename $(dirname ${3:-.}))\n" + script + "\n"
	if err := os.WriteFile(filepath.Join(root, "bin", "hostd"), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	o, err := Options{Root: root, Templates: []string{"base", "python", "node"}}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestTemplatesAreBuiltBehindTheirOwnAndSideBySide(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("one CPU: one after the other")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	o := fakeBuilder(t, `
echo "$name on $BERTH_AGENT_ID"
touch begun.$name
case $name in
base) sleep 0.2; touch done ;;
python) test -e done; while ! test -e begun.node; do sleep 0.01; done ;;
node) test -e done; while ! test -e begun.python; do sleep 0.01; done ;;
esac
printf '%s is ready' $name; echo`)
	var out bytes.Buffer
	if err := o.buildTemplates(ctx, &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 6 || !strings.HasPrefix(lines[0], "base: base on build") || lines[1] != "base: base is ready" {
		t.Errorf("it said\n%s", &out)
	}
	for _, want := range []string{"python: python is ready", "node: node is ready"} {
		if !slices.Contains(lines, want) {
			t.Errorf("%q is missing in\n%s", want, &out)
		}
	}
	hosts := map[string]bool{}
	for _, l := range lines {
		if name, host, ok := strings.Cut(l, " on "); ok && !strings.HasPrefix(name, "base") {
			hosts[host] = true
		}
	}
	if len(hosts) != 2 {
		t.Errorf("two at once were on the hosts %v", hosts)
	}
}

func TestTemplateThatFailsEndsTheOthers(t *testing.T) {
	o := fakeBuilder(t, `
case $name in
base) ;;
python) while ! test -e begun.node; do sleep 0.01; done; echo no room >&2; exit 3 ;;
node) trap 'touch ended; exit 1' TERM; touch begun.node; while :; do sleep 0.01; done ;;
esac`)
	if runtime.NumCPU() < 2 {
		t.Skip("one CPU: one after the other")
	}
	var out bytes.Buffer
	err := o.buildTemplates(t.Context(), &out)
	if err == nil || !strings.Contains(err.Error(), "build template python: exit status 3") || !strings.Contains(out.String(), "python: no room\n") {
		t.Errorf("%v\n%s", err, &out)
	}
	if _, err := os.Stat(filepath.Join(o.Root, "ended")); err != nil {
		t.Errorf("the other was not told to end: %v", err)
	}
}

func TestUnknownTemplateIsRefusedBeforeAnyIsBuilt(t *testing.T) {
	o := fakeBuilder(t, "touch begun")
	o.Templates = []string{"base", "no-such"}
	var out bytes.Buffer
	if err := o.buildTemplates(t.Context(), &out); err == nil || !strings.Contains(err.Error(), "no-such") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(o.Root, "begun")); err == nil {
		t.Error("a build was begun")
	}
}
