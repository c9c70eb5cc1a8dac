package httpapi

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/core"
)

// Somebody's keys are bounded in number only if it is known whose they are.
func TestWhoseIdempotencyKeysAre(t *testing.T) {
	for want, caller := range map[string]core.Caller{
		"ws-1":  {WorkspaceID: "ws-1", UserID: "usr-1", ViaJWT: true},
		"ws-2":  {WorkspaceID: "ws-2", UserID: "usr-1", KeyID: "key-1"},
		"usr-1": {UserID: "usr-1", ViaJWT: true}, // a member of no organization
		"":      {UserID: "operator:ann", Admin: true},
	} {
		c, _ := gin.CreateTestContext(httptest.NewRecorder())
		c.Request = httptest.NewRequest(http.MethodPost, "/v1/orgs", http.NoBody)
		c.Request.Header.Set("Idempotency-Key", "k")
		c.Set(keyCaller, caller)
		if i, err := idempotency(c); err != nil || i.Key != "k" || i.Owner != want {
			t.Errorf("%+v: %+v, %v", caller, i, err)
		}
	}
}
