package server

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

func TestAHostSaysWhatKeepsItFromTakingBoxes(t *testing.T) {
	missing := ""
	h := New(Config{Boxes: &boxes{}, NotReady: func() string { return missing }, Log: slog.New(slog.DiscardHandler)}).handler()
	if status, body := serveHTTP(h, http.MethodGet, hostapi.PathReadyz, ""); status != http.StatusOK || strings.TrimSpace(body) != `{"status":"ok"}` {
		t.Errorf("%d %s", status, body)
	}
	missing = "disk: it does not answer"
	status, body := serveHTTP(h, http.MethodGet, hostapi.PathReadyz, "")
	if status != http.StatusServiceUnavailable || strings.TrimSpace(body) != `{"code":"draining","message":"not ready","detail":"disk: it does not answer"}` {
		t.Errorf("%d %s", status, body)
	}
}
