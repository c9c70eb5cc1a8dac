package controlplane

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/tier"
)

// Every route gets requests at and just beyond the limits of what /openapi.json
// allows. schemathesis makes the requests, as each kind of caller, and compares the
// answers with the document. It uses the sandboxes that it creates.
//
// Routes that change the members or restore a backup are excluded: an invented
// replica would cost the cluster its majority, and invented bytes are no backup.
func TestTheDocumentIsTheService(t *testing.T) {
	tier.Slow(t)
	tier.Root(t)
	s := newStack(t, unlimitedEnv+"=1") // one workspace makes thousands of requests
	s.join("h1", 256<<10).Change(func(_ *hostapi.Capacity, templates *[]hostapi.TemplateState, _ map[string]hostapi.Box) {
		// The document's example of a build is made from it.
		*templates = append(*templates, hostapi.TemplateState{Name: "node", BuildID: "b2", Status: "ready", CPU: 1, MemoryMB: 512, DiskMB: 2048})
		for _, name := range []string{"postgres-16", "postgres-16-4g", "postgres-16-16g"} { // small ones: there are many databases
			*templates = append(*templates, hostapi.TemplateState{Name: name, BuildID: "of-" + name, Status: "ready", CPU: 1, MemoryMB: 512, DiskMB: 2048})
		}
	})
	jwt, key := s.user("ann")
	if _, err := s.client(key).CreateSandbox(t.Context(), api.CreateSandbox{Template: "base"}, ""); err != nil {
		t.Fatal(err)
	}
	for _, run := range []struct {
		name, credential string
		only             []string
	}{
		{"tenant", key, append([]string{"--exclude-tag", "Administration", "--exclude-tag", "Identity"}, withoutGitHosts...)},
		{"person", jwt, []string{"--include-tag", "Identity"}},
		{"operator", adminToken, []string{"--include-tag", "Administration", "--exclude-operation-id", "addPeer", "--exclude-operation-id", "removePeer", "--exclude-operation-id", "restore"}},
	} {
		t.Run(run.name, func(t *testing.T) { s.asDocumented(t, run.credential, run.only...) })
	}
}

// withoutGitHosts excludes what answers 501 here: there is no GitHub, and no provider of
// payments.
var withoutGitHosts = []string{
	"--exclude-operation-id", "syncBilling",
	"--exclude-operation-id", "connectGithub", "--exclude-operation-id", "githubCallback", "--exclude-operation-id", "listGithubInstallations",
	"--exclude-operation-id", "deleteGithubInstallation", "--exclude-operation-id", "listGithubRepos",
	"--exclude-operation-id", "githubWebhook", "--exclude-operation-id", "gitlabWebhook", "--exclude-operation-id", "giteaWebhook",
}

// document is a file with what /openapi.json says: schemathesis itself waits only ten
// seconds for it.
func (s *stack) document(t *testing.T) string {
	t.Helper()
	_, doc := raw(t, http.MethodGet, s.leader().url+"/openapi.json", "", "")
	file := filepath.Join(t.TempDir(), "openapi.json")
	if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
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
		"run", s.document(t), "--url", s.leader().url, "--header", "Authorization: Bearer " + credential,
		"--phases", "coverage", "--continue-on-failure", "--generation-deterministic", "--warnings", "off", "--no-color",
	}, only...)
	cmd := exec.CommandContext(ctx, filepath.Join(root, ".tools", "schemathesis", "bin", "st"), args...)
	cmd.Dir = t.TempDir()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
