package hostd

import (
	"testing"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/database"
	"github.com/berth-cloud/berth/hostd/events"
	"github.com/berth-cloud/berth/hostd/internal/testca"
	"github.com/berth-cloud/berth/telemetry/telemetrytest"
)

// What the parts of a host export, as New and assemble put them together, and what
// docs/monitoring.md says they do.
func TestDocumentedMetricsAreTheMetrics(t *testing.T) {
	r := newRegistry()
	events.NewMetrics(r)
	box.NewMetrics(r)
	database.NewMetrics(r)
	d := boxtest.Start(t, boxtest.NewWorld(t))
	dir := t.TempDir()
	testca.New(t).WriteDir(t, dir, "host:h1")
	creds, err := loadCredentials(dir, "h1")
	if err != nil {
		t.Fatal(err)
	}
	databases := database.New(database.Config{Boxes: d.Host})
	r.MustRegister(d.Collect(), databases.Collect(), diskFree(t.TempDir()), ready(func() string { return "" }), certificates(creds.cert))
	telemetrytest.Exported(t, r, "../docs/monitoring.md", "### Hosts")
}
