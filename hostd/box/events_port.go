package box

import "github.com/berth-cloud/berth/hostd/hostapi"

// Events is told what happens to boxes. It never blocks on the network and
// never fails a transition.
type Events interface {
	Open(id, workspaceID, template string) // a box is there (create, or recovered)
	Emit(id string, t hostapi.EventType, message string, metadata map[string]any)
	Close(id string) // after sandbox.deleted: the stream and its file go
}
