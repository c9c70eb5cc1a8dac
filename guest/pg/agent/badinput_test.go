package agent

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/guest/pg/pgtest"
	"github.com/berth-cloud/berth/guest/pgapi"
)

func (g *guest) raw(t *testing.T, method, target string, body io.Reader) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(pgtest.Context(t), method, "http://guest"+target, body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := g.Transport().RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(out)
}

func TestRequestsThatAreNone(t *testing.T) {
	g := start(t)
	g.await(t, "ready", ready)
	const segment = "000000010000000000000001"
	for name, c := range map[string]struct {
		method, target, body string
		status               int
	}{
		"settings that are no JSON":        {"PUT", pgapi.PathSettings, "{", 400},
		"settings of another kind":         {"PUT", pgapi.PathSettings, `{"memory_mb":"1g"}`, 400},
		"settings that are large":          {"PUT", pgapi.PathSettings, `{"memory_mb":` + strings.Repeat(" ", maxBody) + `1}`, 400},
		"no settings":                      {"PUT", pgapi.PathSettings, "", 400},
		"credentials of the platform":      {"PUT", pgapi.PathCredentials, `{"database":"postgres","username":"berth","password":"some-password-1"}`, 400},
		"no credentials":                   {"PUT", pgapi.PathCredentials, "", 400},
		"a switch without a time":          {"POST", pgapi.PathSwitch, "", 400},
		"a switch that never ends":         {"POST", pgapi.PathSwitch, `{"timeout_seconds":100000}`, 400},
		"a wait that never ends":           {"GET", pgapi.PathWALNext + "?wait_seconds=100000", "", 400},
		"a wait that is none":              {"GET", pgapi.PathWALNext + "?wait_seconds=x", "", 400},
		"a WAL file that is none":          {"GET", "/v1/wal/PG_VERSION", "", 400},
		"a WAL file elsewhere":             {"GET", "/v1/wal/..%2fPG_VERSION", "", 400},
		"a WAL file that is not offered":   {"GET", "/v1/wal/" + segment, "", 404},
		"stored without being offered":     {"POST", "/v1/wal/" + segment + "/stored", `{"sha256":""}`, 404},
		"a backup without a label":         {"POST", pgapi.PathBackup, "", 400},
		"a backup with SQL for a label":    {"POST", pgapi.PathBackup, `{"label":"x', WAL true, LABEL 'y"}`, 400},
		"a restore without a base":         {"POST", pgapi.PathRestore, "", 409},
		"a target that is no time":         {"POST", pgapi.PathRestore, `{"target_time":"yesterday"}`, 400},
		"a file that nobody asked for":     {"DELETE", "/v1/fetch/" + segment, "", 409},
		"a fetch without a restore":        {"GET", pgapi.PathFetchNext, "", 409},
		"a file larger than a segment":     {"PUT", "/v1/fetch/" + segment, strings.Repeat("x", pgapi.SegmentBytes+2), 413},
		"a query before there is a tenant": {"POST", pgapi.PathQuery, `{"sql":"SELECT 1"}`, 409},
		"another route":                    {"GET", "/v1/other", "", 404},
		"another method":                   {"DELETE", pgapi.PathStatus, "", 405},
	} {
		t.Run(name, func(t *testing.T) {
			if status, body := g.raw(t, c.method, c.target, strings.NewReader(c.body)); status != c.status {
				t.Errorf("%d %.300s, want %d", status, body, c.status)
			}
		})
	}
	if st := g.await(t, "as before", ready); st.Restarts != 0 {
		t.Errorf("%+v", st)
	}
}

func TestOnlyTheGatewayIsAnswered(t *testing.T) {
	g := start(t, func(c *Config) { c.Peer = netip.MustParseAddr("127.0.0.2") })
	if _, err := g.Status(pgtest.Context(t)); err == nil {
		t.Error("another than the gateway was answered")
	}
}

func TestABackupThatIsCutIsNotTakenForOne(t *testing.T) {
	g := start(t)
	g.await(t, "ready", ready)
	ctx, cancel := context.WithCancel(pgtest.Context(t))
	var got bytes.Buffer
	_, err := g.Backup(ctx, pgapi.Backup{Label: "cut", MaxRateK: 1024}, writerFunc(func(p []byte) (int, error) {
		cancel()
		return got.Write(p)
	}))
	if err == nil {
		t.Error("it was taken for a whole one")
	}
	g.await(t, "given up", func(st pgapi.Status) bool { return st.Server != nil && st.Server.BaseBackups == 0 })
	// The server ends in the middle of one: the host sees that it was cut.
	done := make(chan error, 1)
	begun := make(chan struct{}, 1)
	go func() {
		_, err := g.Backup(pgtest.Context(t), pgapi.Backup{Label: "cut", MaxRateK: 1024}, writerFunc(func(p []byte) (int, error) {
			select {
			case begun <- struct{}{}:
			default:
			}
			return len(p), nil
		}))
		done <- err
	}()
	<-begun
	if err := g.Stop(pgtest.Context(t), pgapi.Stop{Immediate: true}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("a backup of a server that ended was taken for a whole one")
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
