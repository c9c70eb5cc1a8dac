package httpapi

import (
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

// The examples in the OpenAPI document. They are values of the handlers' types, so
// they cannot differ from the API.
var (
	exampleAt      = api.Time{Time: time.Date(2026, time.November, 20, 13, 5, 9, 412e6, time.UTC)}
	exampleStarted = api.Time{Time: exampleAt.Add(231 * time.Millisecond)}
	exampleExpires = api.Time{Time: exampleAt.Add(time.Hour)}
	exampleTTL     = int64(3600)
	exampleTimeout = int64(30)

	exampleVersion = api.VersionInfo{Version: "v0.1.0", Commit: "4f2c1d7e", GoVersion: "go1.26.0", API: api.Version}
)
