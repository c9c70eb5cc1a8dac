package controlplane

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
)

// An event of a git host may reach any replica: the leader gets it byte by byte, with its
// signature.
func TestGitEventsReachTheLeader(t *testing.T) {
	const secret = "a secret of gitea webhooks"
	s := newStack(t, "BERTH_GITEA_WEBHOOK_SECRET="+secret)
	body := []byte(`{ "ref":"refs/heads/main","before":"` + strings.Repeat("1", 40) + `","after":"` + strings.Repeat("2", 40) +
		`","repository":{"id":1,"full_name":"a/b","clone_url":"https://git.example.com/a/b.git"},"padding":"` + strings.Repeat("x", 1<<20) + `"}` + "\n")
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(body)
	for _, at := range []*process{s.leader(), s.follower()} {
		for signature, status := range map[string]int{hex.EncodeToString(mac.Sum(nil)): 202, strings.Repeat("0", 64): 401} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at.url+"/v1/webhooks/gitea", bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("X-Gitea-Event", "push")
			r.Header.Set("X-Gitea-Signature", signature)
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != status {
				t.Fatalf("%s: %d %s, %v, want %d", at.id, resp.StatusCode, got, err, status)
			}
			var out api.GitEventReceipt
			if status == 202 && (json.Unmarshal(got, &out) != nil || out.Status != api.GitEventIgnored) {
				t.Errorf("%s: %s", at.id, got)
			}
		}
	}
	for _, path := range []string{"/v1/github/connect", "/v1/github/callback"} {
		_, key := s.user("ann")
		resp, got := raw(t, "GET", s.follower().url+path, key, "")
		if resp.StatusCode != http.StatusNotImplemented || !strings.Contains(got, "BERTH_GITHUB_APP_ID") {
			t.Errorf("%s: %d %s", path, resp.StatusCode, got)
		}
	}
}
