package sandbox

import (
	"bytes"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
)

// endless counts what is read of something that never ends.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	e.read += len(p)
	copy(p, bytes.Repeat([]byte{'x'}, len(p)))
	return len(p), nil
}

// What a guest says of one entry is never held beyond a bound.
func TestAListingWithoutEndIsGivenUp(t *testing.T) {
	const head = `{"path":"/a","entries":[`
	for name, begun := range map[string]string{
		"key":         `{"`,
		"path":        `{"path":"`,
		"other key":   `{"path":"/a","`,
		"first entry": head + `{"name":"`,
		"next entry":  head + `{"name":"a"},{"name":"`,
		"end":         head + `],"`,
	} {
		t.Run(name, func(t *testing.T) {
			rest := &endless{}
			err := entries(io.MultiReader(strings.NewReader(begun), io.LimitReader(rest, maxDirectory)), func(api.FileStat) error { return nil })
			if err == nil {
				t.Error("it was taken for a listing")
			}
			if rest.read > 2*maxShort {
				t.Errorf("%d bytes of it were read", rest.read)
			}
		})
	}
}

// A listing is longer than what one of its entries may take.
func TestALongListingIsReadToItsEnd(t *testing.T) {
	const want = 5000
	var b strings.Builder
	b.WriteString(`{"path":"/a","entries":[`)
	for i := range want {
		if i > 0 {
			b.WriteString(",\n")
		}
		b.WriteString(`{"name":"` + strconv.Itoa(i) + `","target":"` + strings.Repeat("x", i) + `"}`)
	}
	b.WriteString("]}\n")
	got := 0
	err := entries(strings.NewReader(b.String()), func(st api.FileStat) error {
		if st.Name != strconv.Itoa(got) {
			t.Fatalf("entry %d is %s", got, st.Name)
		}
		got++
		return nil
	})
	if err != nil || got != want {
		t.Errorf("%d entries: %v", got, err)
	}
}
