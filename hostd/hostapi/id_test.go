package hostapi_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

func TestValidID(t *testing.T) {
	good := "abcdefghijklmnopqrstuvwx27"
	for id, want := range map[string]bool{
		good: true, "": false, good[1:]: false, good + "a": false, strings.ToUpper(good): false,
		good[:25] + "1": false, good[:25] + "/": false, good[:25] + "\x00": false, good[:24] + "é": false, "..": false,
	} {
		if got := hostapi.ValidID(id); got != want {
			t.Errorf("ValidID(%q) = %v", id, got)
		}
	}
	if got := hostapi.ShortID(good); got != "abcdefgh" {
		t.Errorf("ShortID = %q", got)
	}
}

// FuzzValidID: what is valid can be a file's name anywhere, and nothing else.
func FuzzValidID(f *testing.F) {
	f.Add("abcdefghijklmnopqrstuvwx27")
	f.Add("../../../../../etc/passwd1")
	f.Fuzz(func(t *testing.T, id string) {
		if hostapi.ValidID(id) && (filepath.Base(id) != id || filepath.Clean("/run/"+id) != "/run/"+id || strings.ToLower(id) != id) {
			t.Errorf("%q is no plain name", id)
		}
	})
}
