package forward

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Bodies up to a limit are kept for a retry; larger ones are streamed.
func TestBodiesAreKeptWhileThereIsRoom(t *testing.T) {
	f := New(Config{Logger: slog.New(slog.DiscardHandler)})
	const text = "{}"
	keep := func() (*body, func()) {
		t.Helper()
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(text))
		b, release, err := f.keep(httptest.NewRecorder(), r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(b.reader())
		if err != nil || string(got) != text {
			t.Errorf("the body is %q, %v", got, err)
		}
		return b, release
	}
	f.kept.Store(maxKeptAtOnce - int64(len(text)))
	first, release := keep()
	if !first.replayable() {
		t.Error("the last for which there is room is not kept")
	}
	second, other := keep()
	if second.replayable() {
		t.Error("one for which there is no room is kept")
	}
	other()
	release()
	third, release := keep()
	if !third.replayable() {
		t.Error("the room does not come back")
	}
	release()
	if got := f.kept.Load(); got != maxKeptAtOnce-int64(len(text)) {
		t.Errorf("%d bytes count", got)
	}
}
