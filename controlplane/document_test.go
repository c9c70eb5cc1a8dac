package controlplane

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Every route is asked what /openapi.json says may be asked, at the edges of it
// and just beyond them: schemathesis makes the requests and compares the answers
// with the document, as each kind of caller. Sandboxes that it creates it uses.
//
// Routes that change who is a replica, or put back a backup, are left out: a
// made-up replica costs the cluster its majority, and made-up bytes are no backup.
func TestTheDocumentIsTheService(t *testing.T) {
	if os.Getenv("BERTH_TEST_ROOT") == "" {
		t.Skip("needs schemathesis, which scripts/install-deps test installs; set BERTH_TEST_ROOT=1")
	}
	s := newStack(t, unlimitedEnv+"=1") // thousands of requests, of one workspace
	s.join("h1", 256<<10).Change(func(_ *hostapi.Capacity, templates *[]hostapi.TemplateState, _ map[string]hostapi.Box) {
		// The document's example of a build is made from it.
		*templates = append(*templates, hostapi.TemplateState{Name: "node", BuildID: "b2", Status: "ready", CPU: 1, MemoryMB: 512, DiskMB: 2048})
	})
	jwt, key := s.user("ann")
	if _, err := s.client(key).CreateSandbox(t.Context(), api.CreateSandbox{Template: "base"}, ""); err != nil {
		t.Fatal(err)
	}
	for _, run := range []struct {
		name, credential string
		only             []string
	}{
		{"tenant", key, []string{"--exclude-tag", "Administration", "--exclude-tag", "Identity"}},
		{"person", jwt, []string{"--include-tag", "Identity"}},
		{"operator", adminToken, []string{"--include-tag", "Administration", "--exclude-operation-id", "addPeer", "--exclude-operation-id", "removePeer", "--exclude-operation-id", "restore"}},
	} {
		t.Run(run.name, func(t *testing.T) { s.asDocumented(t, run.credential, run.only...) })
	}
}

func (s *stack) asDocumented(t *testing.T, credential string, only ...string) {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	args := append([]string{
		"--config-file", filepath.Join(root, "scripts", "schemathesis", "schemathesis.toml"),
		"run", s.leader().url + "/openapi.json", "--header", "Authorization: Bearer " + credential,
		"--phases", "coverage", "--checks", "all", "--continue-on-failure", "--generation-deterministic", "--warnings", "off", "--no-color",
	}, only...)
	cmd := exec.CommandContext(ctx, filepath.Join(root, ".tools", "schemathesis", "bin", "st"), args...)
	cmd.Dir = t.TempDir()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
