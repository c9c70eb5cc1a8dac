package api

import (
	"os"
	"regexp"
	"slices"
	"testing"
)

// What go.mod asks for, everybody who uses the client has to download, or at
// least to trust.
func TestTheModuleAsksForLittle(t *testing.T) {
	file, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range regexp.MustCompile(`(?m)^(?:require)?\s+(\S+) v\d`).FindAllSubmatch(file, -1) {
		got = append(got, string(m[1]))
	}
	if want := []string{"github.com/coder/websocket", "github.com/google/go-cmp", "go.uber.org/goleak"}; !slices.Equal(got, want) {
		t.Errorf("go.mod asks for %q, want %q", got, want)
	}
}
