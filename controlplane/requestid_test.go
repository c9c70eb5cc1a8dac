package controlplane

import (
	"net/http"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/tier"
)

// The operator says how long a client's id of a request may be: wherever it comes in, at
// the API and at the edge of previews.
func TestTheLengthOfRequestIDsIsASetting(t *testing.T) {
	tier.Slow(t)
	const most = 100
	s := newStack(t, "BERTH_REQUEST_ID_MAX=100", "BERTH_PREVIEW_SUFFIX=box.test")
	for _, at := range []*process{s.leader(), s.follower()} {
		for _, host := range []string{"", "80-" + strings.Repeat("z", 26) + ".box.test"} {
			for length, reused := range map[int]bool{most: true, most + 1: false} {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at.url+"/v1/sandboxes", nil)
				if err != nil {
					t.Fatal(err)
				}
				id := strings.Repeat("x", length)
				r.Host = host
				r.Header.Set(api.HeaderRequestID, id)
				resp, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if want := map[bool]int{true: 401, false: 404}[host == ""]; resp.StatusCode != want {
					t.Errorf("%s, %s: %d, want %d", at.id, host, resp.StatusCode, want)
				}
				if got := resp.Header.Get(api.HeaderRequestID); (got == id) != reused || got == "" {
					t.Errorf("%s, %s, %d characters: %q", at.id, host, length, got)
				}
			}
		}
	}
}
