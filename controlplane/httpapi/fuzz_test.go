package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"
	"unicode/utf8"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
)

// FuzzDecode: whatever a client sends is either decoded or refused with a 400
// that can be rendered, and what is decoded is what encoding/json makes of it.
func FuzzDecode(f *testing.F) {
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, in := range []any{&api.CreateSandbox{}, &api.Exec{}, &api.AddPeer{}, &api.Empty{}, &api.CreateApp{}, &api.PatchApp{}} {
			err := decodeJSON(body, in)
			if err == nil {
				if !json.Valid(body) || !utf8.Valid(body) || bytes.TrimSpace(body)[0] != '{' {
					t.Fatalf("took %q", body)
				}
				again, err := json.Marshal(in)
				if err != nil {
					t.Fatalf("what was read of %q cannot be written: %v", body, err)
				}
				if err := json.Unmarshal(again, in); err != nil {
					t.Fatalf("what was read of %q and written as %s cannot be read: %v", body, again, err)
				}
				continue
			}
			var e *apierror.Error
			if !errors.As(err, &e) || e.Code != apierror.EInvalid || e.Message == "" {
				t.Fatalf("refused %q with %v", body, err)
			}
			if !utf8.ValidString(e.Detail) || len(e.Detail) > 300 {
				t.Fatalf("refused %q with the detail %q", body, e.Detail)
			}
		}
	})
}
