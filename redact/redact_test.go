package redact

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"net/url"
	"strings"
	"testing"
)

const id = "abcdefgh234567abcdefgh2345"

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"":         "",
		id:         "abcdefgh",
		id + id:    id + id, // 52 characters are no id
		id[:25]:    id[:25],
		"1" + id:   "1" + id,
		"A-" + id:  "A-abcdefgh",
		"no id 27": "no id 27",
		"80-" + id + ".preview.test, /boxes/" + id + "/fs": "80-abcdefgh.preview.test, /boxes/abcdefgh/fs",
	} {
		if got := Text(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
	if ID(id) != Text(id) || ID("short") != "short" {
		t.Errorf("%q, %q", ID(id), ID("short"))
	}
}

func TestNoLineHasAWholeID(t *testing.T) {
	for _, json := range []bool{false, true} {
		var out bytes.Buffer
		log := slog.New(NewHandler(&out, slog.LevelDebug, json))
		log.Debug("message of "+id, "sandbox_id", id, "error", errors.New("open "+id+": denied"), "n", 7, "nothing", nil)
		log.With("sandbox_id", id).WithGroup("g").Error("message", "url", &url.URL{Path: "/v1/" + id}, "address", netip.IPv6Loopback())
		if got := out.String(); strings.Contains(got, id) || strings.Count(got, "abcdefgh") != 5 || !strings.Contains(got, "::1") {
			t.Errorf("json %v: %s", json, got)
		}
		out.Reset()
		slog.New(NewHandler(&out, slog.LevelWarn, json)).Info("message")
		if out.Len() > 0 {
			t.Errorf("below its level: %s", &out)
		}
	}
}
