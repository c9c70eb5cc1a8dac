package sandbox

import (
	"bytes"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
)

// endless counts the bytes that are read from it. It never ends.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	e.read += len(p)
	copy(p, bytes.Repeat([]byte{'x'}, len(p)))
	return len(p), nil
}

// The memory for a guest's description of one entry is limited.
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

// A listing may be longer than the limit for one entry.
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

// A file may have a time that RFC 3339 has not, and must not hide the others.
func TestAFileOfAnyTimeIsListed(t *testing.T) {
	for sent, want := range map[string]string{
		"2026-11-20T13:05:09.412Z":      "2026-11-20T13:05:09.412Z",
		"2026-11-20T13:05:09.412+01:00": "2026-11-20T12:05:09.412Z",
		"11476-08-15T05:20:00.000Z":     "9999-12-31T23:59:59.999Z",
		"292277026596-12-04T15:30:07Z":  "9999-12-31T23:59:59.999Z",
		"9999-12-31T23:30:00.000-01:00": "9999-12-31T23:59:59.999Z",
		"0000-02-29T00:00:00.000Z":      "0001-01-01T00:00:00.000Z",
		"-0005-01-01T00:00:00.000Z":     "0001-01-01T00:00:00.000Z",
		"-11476-01-01T00:00:00.000Z":    "0001-01-01T00:00:00.000Z",
	} {
		var got []string
		err := entries(strings.NewReader(`{"path":"/a","entries":[{"name":"x","modified_at":"`+sent+`"},{"name":"y"}]}`), func(st api.FileStat) error {
			got = append(got, st.Name+" "+st.ModifiedAt.String())
			return nil
		})
		if err != nil || len(got) != 2 || got[0] != "x "+want {
			t.Errorf("%s: %q, %v, want %s", sent, got, err, want)
		}
	}
	for _, sent := range []string{`"yesterday"`, `"2026-13-20T13:05:09.412Z"`, `"11476"`, `"-5"`, `7`, `{}`} {
		err := entries(strings.NewReader(`{"path":"/a","entries":[{"name":"x","modified_at":`+sent+`}]}`), func(api.FileStat) error { return nil })
		if apierror.CodeOf(err) != apierror.EBadGateway {
			t.Errorf("%s: %v", sent, err)
		}
	}
}
