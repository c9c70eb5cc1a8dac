package hostapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// A replica that takes nothing, as one whose machine has stopped, costs its share of the
// time and no more.
func TestRenewalIsAskedOfTheNextReplica(t *testing.T) {
	defer func(before time.Duration) { renewalPatience = before }(renewalPatience)
	renewalPatience = 200 * time.Millisecond
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never says a word
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	serves := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(Renewed{Certificate: "new"})
	}))
	defer serves.Close()
	config := serves.Client().Transport.(*http.Transport).TLSClientConfig
	cert, err := AskRenewal(t.Context(), []string{silent.Addr().String(), serves.Listener.Addr().String()}, config, []byte("csr"))
	if err != nil || string(cert) != "new" {
		t.Errorf("%q, %v", cert, err)
	}
}

func TestErrorsOfSpansHaveNoURL(t *testing.T) {
	reason := errors.New("connection refused")
	err := fmt.Errorf("read file: %w", &url.Error{Op: "Get", URL: "https://h1/v1/boxes/x/fs?path=/home/secret", Err: reason})
	for _, err := range []error{err, reason} {
		if got := withoutURL(err); !errors.Is(got, reason) || strings.Contains(got.Error(), "secret") {
			t.Errorf("%v", got)
		}
	}
	if withoutURL(nil) != nil {
		t.Error("an error of nothing")
	}
}
