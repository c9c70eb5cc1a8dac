package githost_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/fakegithub"
	"github.com/berth-cloud/berth/controlplane/githost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/loops"
)

func (r *rig) term() *loops.Term {
	return loops.NewTerm(loops.Config{Store: r.Leader().Store, Clock: r.clock.Now, Logger: testcluster.Log()})
}

// gitlabPush is a push hook, as GitLab documents it.
func gitlabPush(cloneURL string, n int, p fakegithub.Push) ([]byte, http.Header) {
	commit := map[string]any{"id": p.After, "message": "Change\n", "title": "Change", "url": cloneURL, "author": map[string]any{"name": "Ann", "email": "ann@example.com"}, "added": []string{}}
	if !p.At.IsZero() {
		commit["timestamp"] = p.At.Format(time.RFC3339)
	}
	body, _ := json.Marshal(map[string]any{
		"object_kind": "push", "event_name": "push", "before": p.Before, "after": p.After, "ref": "refs/heads/main", "ref_protected": true, "checkout_sha": p.After,
		"user_id": 4, "user_name": "Ann", "user_username": "ann", "project_id": 15,
		"project":    map[string]any{"id": 15, "name": "shop", "git_http_url": cloneURL, "git_ssh_url": "git@x:acme/shop.git", "visibility_level": 0, "path_with_namespace": "acme/shop", "default_branch": "main"},
		"repository": map[string]any{"name": "shop", "git_http_url": cloneURL, "visibility_level": 0}, "commits": []any{commit}, "total_commits_count": 1,
	})
	return body, http.Header{"X-Gitlab-Event": {"Push Hook"}, "X-Gitlab-Token": {"a secret of gitlab"}, "X-Gitlab-Event-Uuid": {fmt.Sprint("u", n)}, "Idempotency-Key": {fmt.Sprint("k", n)}}
}

// gitlabSystemPush is a push of a system hook, as GitLab documents it: its project has no id.
func gitlabSystemPush(cloneURL string, n int, p fakegithub.Push) ([]byte, http.Header) {
	body, header := gitlabPush(cloneURL, n, p)
	var in map[string]any
	_ = json.Unmarshal(body, &in)
	delete(in["project"].(map[string]any), "id")
	delete(in, "object_kind")
	body, _ = json.Marshal(in)
	header.Set("X-Gitlab-Event", "System Hook")
	return body, header
}

// giteaPush is a push, as Gitea documents it.
func giteaPush(cloneURL string, n int, p fakegithub.Push) ([]byte, http.Header) {
	commit := map[string]any{
		"id": p.After, "message": "Change\n", "url": cloneURL, "author": map[string]any{"name": "Ann", "email": "ann@example.com", "username": "ann"}, "timestamp": p.At.Format(time.RFC3339),
	}
	body, _ := json.Marshal(map[string]any{
		"ref": "refs/heads/main", "before": p.Before, "after": p.After, "compare_url": "", "commits": []any{commit}, "total_commits": 1, "head_commit": commit,
		"repository": map[string]any{"id": 140, "name": "shop", "full_name": "acme/shop", "private": false, "clone_url": cloneURL, "default_branch": "main"},
		"pusher":     map[string]any{"id": 1, "login": "ann"}, "sender": map[string]any{"id": 1, "login": "ann"},
	})
	mac := hmac.New(sha256.New, []byte("a secret of gitea"))
	mac.Write(body)
	return body, http.Header{"X-Gitea-Event": {"push"}, "X-Github-Event": {"push"}, "X-Gitea-Delivery": {fmt.Sprint("g", n)}, "X-Gitea-Signature": {hex.EncodeToString(mac.Sum(nil))}}
}

func TestGitLabAndGitea(t *testing.T) {
	r := newRig(t)
	const url = "https://git.example.com/Acme/shop.git"
	r.app("ws", "app-a", "https://git.example.com/acme/shop", "main")
	p := fakegithub.Push{Before: sha('1'), After: sha('2'), At: r.clock.Now()}
	for _, c := range []struct {
		provider string
		make     func(string, int, fakegithub.Push) ([]byte, http.Header)
		spoil    func(http.Header)
	}{
		{githost.GitLab, gitlabPush, func(h http.Header) { h.Set("X-Gitlab-Token", "a secret of gitla") }},
		{githost.Gitea, giteaPush, func(h http.Header) { h.Set("X-Gitea-Signature", h.Get("X-Gitea-Signature")[2:]) }},
	} {
		body, header := c.make(url, 1, p)
		bad := header.Clone()
		c.spoil(bad)
		_, err := r.hosts().Receive(t.Context(), c.provider, bad, body)
		testplane.Want(t, err, apierror.EUnauthorized, "")
		for _, want := range []api.GitEventStatus{api.GitEventAccepted, api.GitEventDuplicate} {
			if out, err := r.hosts().Receive(t.Context(), c.provider, header, body); err != nil || out.Status != want {
				t.Errorf("%s: %s, %v, want %s", c.provider, out.Status, err, want)
			}
		}
		r.settled()
		got := r.apps.deployed()
		if last := got[len(got)-1]; last.App != "app-a" || last.Commit != p.After || last.Ref != "main" {
			t.Errorf("%s: %+v", c.provider, got)
		}
		p.Before, p.After, p.At = p.After, sha(p.After[0]+1), p.At.Add(time.Minute)
		header.Del("X-Gitlab-Event")
		header.Del("X-Gitea-Event")
		if out, err := r.hosts().Receive(t.Context(), c.provider, header, body); err != nil || out.Status != api.GitEventIgnored {
			t.Errorf("another event: %s, %v", out.Status, err)
		}
	}
	// They do not speak for the repositories of GitHub.
	r.app("ws", "app-b", r.github.URL+"/acme/shop", "main")
	body, header := giteaPush(r.github.URL+"/acme/shop", 9, p)
	if out, err := r.hosts().Receive(t.Context(), githost.Gitea, header, body); err != nil || out.Status != api.GitEventIgnored {
		t.Errorf("of GitHub: %s, %v", out.Status, err)
	}
	// The message of a private repository stays with those who can read it.
	if got := r.apps.deployed(); len(got) != 2 || got[0].Message != "" || got[1].Message != "Change" || got[1].Author != "Ann" {
		t.Errorf("%+v", got)
	}
}

// A hook of the whole GitLab announces pushes, and much else, all by the same header.
func TestTheSystemHooksOfGitLab(t *testing.T) {
	r := newRig(t)
	const url = "https://git.example.com/acme/shop.git"
	r.app("ws", "app-a", "https://git.example.com/acme/shop", "main")
	p := fakegithub.Push{Before: sha('1'), After: sha('2'), At: r.clock.Now()}
	body, header := gitlabSystemPush(url, 1, p)
	for i, other := range []string{"repository_update", "tag_push", "project_create", ""} {
		header.Set("Idempotency-Key", fmt.Sprint("other", i))
		of := strings.Replace(string(body), `"event_name":"push"`, `"event_name":"`+other+`"`, 1)
		if out, err := r.hosts().Receive(t.Context(), githost.GitLab, header, []byte(of)); err != nil || out.Status != api.GitEventIgnored {
			t.Errorf("%q: %s, %v", other, out.Status, err)
		}
	}
	header.Set("Idempotency-Key", "k")
	for _, want := range []api.GitEventStatus{api.GitEventAccepted, api.GitEventDuplicate} {
		if out, err := r.hosts().Receive(t.Context(), githost.GitLab, header, body); err != nil || out.Status != want {
			t.Errorf("a push: %s, %v, want %s", out.Status, err, want)
		}
	}
	r.settled()
	if got := r.apps.deployed(); len(got) != 1 || got[0].App != "app-a" || got[0].Commit != p.After {
		t.Errorf("%+v", got)
	}
}

func TestNames(t *testing.T) {
	for name, good := range map[string]bool{
		"main": true, "feature/a-b_c.d": true, "ünïcode": true, "a@b": true, "1": true, strings.Repeat("a", 255): true,
		"": false, "-x": false, "a b": false, "a..b": false, "a~1": false, "a^": false, "a:b": false, "a?": false, "a*": false, "a[": false, `a\b`: false, "/a": false,
		"a/": false, "a//b": false, ".a": false, "a/.b": false, "a.lock": false, "a.lock/b": false, "a.": false, "@": false, "a@{1}": false, "a\x7f": false,
		"a\x00": false, "a\nb": false, "\xff": false, strings.Repeat("a", 256): false,
	} {
		if githost.ValidBranch(name) != good {
			t.Errorf("branch %q", name)
		}
	}
	for name, good := range map[string]bool{
		"a/b": true, "A-1/b.c_d": true, "a": false, "a/": false, "/b": false, "a/b/c": false, "../b": false, "a/..": false, "a/.": false, "a/b?c": false, "a/b#": false, "ä/b": false,
	} {
		if githost.ValidFullName(name) != good {
			t.Errorf("name %q", name)
		}
	}
	for in, want := range map[string]string{
		"a\nb": "a", "\n\n a \r\n": "a", "\x1b[3m": "[3m", "a\xffb": "a\uFFFDb", strings.Repeat("ü", 10): "üü", "": "",
	} {
		if got := githost.OneLine(in, 5); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// No body makes a parser fail in another way than by an error, and what is taken from one
// can be given to git and to GitHub.
func FuzzPayload(f *testing.F) {
	g := &fakegithub.GitHub{URL: "https://github.com"}
	i := &fakegithub.Installation{ID: 7, Account: "acme"}
	at := time.Unix(1_700_000_000, 0)
	f.Add(g.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('1'), After: sha('2'), At: at}))
	f.Add(g.PullRequestPayload(i, fakegithub.PullRequest{Action: "opened", Repo: "shop", Number: 2, Branch: "x", Commit: sha('2'), At: at}))
	f.Add(g.InstallationPayload(i, "suspend", at))
	f.Add(g.InstallationPayload(i, "deleted", at))
	lab, _ := gitlabPush("https://gitlab.com/acme/shop.git", 1, fakegithub.Push{Before: sha('1'), After: sha('2'), At: at})
	f.Add(lab)
	system, _ := gitlabSystemPush("https://gitlab.com/acme/shop.git", 1, fakegithub.Push{Before: sha('1'), After: sha('2'), At: at})
	f.Add(system)
	tea, _ := giteaPush("https://gitea.com/acme/shop.git", 1, fakegithub.Push{Before: sha('1'), After: sha('2'), At: at})
	f.Add(tea)
	f.Add([]byte("payload=%7B%7D&payload=%"))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, e := range githost.ParseAll(body) {
			if p := e.Push; p != nil && (!githost.ValidBranch(p.Branch) || p.URL == "" || p.Commit != "" && strings.Trim(p.Commit, "0123456789abcdef") != "") {
				t.Errorf("%+v", p)
			}
			if p := e.PullRequest; p != nil && (!githost.ValidBranch(p.Branch) || !githost.ValidFullName(p.FullName) || p.URL == "" || p.Number < 1) {
				t.Errorf("%+v", p)
			}
		}
	})
}
