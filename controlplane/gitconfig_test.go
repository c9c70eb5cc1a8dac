package controlplane

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestGitHostSettings(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, content []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	pemKey := file("key.pem", pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	good := GitHosts{
		GitHubAppID: "12", GitHubAppSlug: "berth", GitHubPrivateKey: pemKey, GitHubWebhookSecret: file("secret", []byte("of sixteen bytes and more\n")),
		GitHubClientID: "Iv1.a", GitHubClientSecret: file("client", []byte("c\n")), GiteaWebhookSecret: "of sixteen bytes and more",
	}
	cfg, err := good.githosts(false)
	if err != nil || cfg.App.WebhookSecret != "of sixteen bytes and more" || cfg.App.ClientSecret != "c" || !cfg.App.PrivateKey.Equal(key) || cfg.GiteaSecret == "" || cfg.GitLabSecret != "" {
		t.Errorf("%+v, %v", cfg.App, err)
	}
	if cfg, err := (&GitHosts{GitHubAPI: "https://api.github.com"}).githosts(false); err != nil || cfg.App != nil {
		t.Errorf("nothing set: %+v, %v", cfg.App, err)
	}
	for name, c := range map[string]struct {
		change func(*GitHosts)
		want   string
	}{
		"no key":               {func(c *GitHosts) { c.GitHubPrivateKey = "" }, "BERTH_GITHUB_APP_ID is set without BERTH_GITHUB_PRIVATE_KEY"},
		"a key that is none":   {func(c *GitHosts) { c.GitHubPrivateKey = c.GitHubWebhookSecret }, "BERTH_GITHUB_PRIVATE_KEY"},
		"an absent file":       {func(c *GitHosts) { c.GitHubWebhookSecret = filepath.Join(dir, "absent") }, "BERTH_GITHUB_WEBHOOK_SECRET"},
		"a short secret":       {func(c *GitHosts) { c.GitHubWebhookSecret = "short" }, "at least 16"},
		"an empty file":        {func(c *GitHosts) { c.GitLabWebhookSecret = file("empty", nil) }, "BERTH_GITLAB_WEBHOOK_SECRET"},
		"an id that is a name": {func(c *GitHosts) { c.GitHubAppID = "berth" }, "want a number"},
		"half of OAuth":        {func(c *GitHosts) { c.GitHubClientID = "" }, "go together"},
		"an API in the clear":  {func(c *GitHosts) { c.GitHubAPI = "http://ghe.example.com" }, "BERTH_GITHUB_API"},
		"a web in the clear":   {func(c *GitHosts) { c.GitHubWeb = "http://ghe.example.com" }, "BERTH_GITHUB_WEB"},
	} {
		bad := good
		c.change(&bad)
		if err := bad.checkGitHosts(false); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if err := good.checkGitHosts(false); err != nil {
		t.Error(err)
	}
	good.GitHubWeb = "http://ghe.example.com"
	if err := good.checkGitHosts(true); err != nil {
		t.Errorf("for development: %v", err)
	}
}
