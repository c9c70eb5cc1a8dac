package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What the machines are told is what the document tells an operator.
func TestTheStepsAreThoseOfTheDocument(t *testing.T) {
	raw, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range documented {
		if !strings.Contains(string(raw), command) {
			t.Errorf("docs/operations.md has no %q", command)
		}
	}
}

// What only a later step needs is missed before an image is made and machines boot.
func TestMissingPartsAreMissedAtOnce(t *testing.T) {
	cache, dist := t.TempDir(), t.TempDir()
	tr := &trial{fleet: &fleet{dir: filepath.Join(cache, "machines")}, options: options{packages: dist, programs: dist}}
	for _, missing := range []struct {
		file, word string
	}{
		{filepath.Join(dist, "berth-controlplane_1_amd64.deb"), "berth-controlplane"},
		{filepath.Join(dist, "berth-hostd_1_amd64.deb"), "berth-hostd"},
		{filepath.Join(dist, "controlplane"), "controlplane"},
		{filepath.Join(dist, "berth"), "berth"},
		{filepath.Join(cache, "kernel", "vmlinux"), "vmlinux"},
	} {
		if err := tr.whole(); err == nil || !strings.Contains(err.Error(), missing.word) {
			t.Errorf("without %s: %v", missing.file, err)
		}
		if err := os.MkdirAll(filepath.Dir(missing.file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(missing.file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := tr.whole(); err != nil {
		t.Errorf("with everything there: %v", err)
	}
}
