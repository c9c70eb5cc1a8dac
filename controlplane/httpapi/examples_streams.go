package httpapi

import "github.com/berth-cloud/berth/controlplane/api"

var (
	exampleStat = api.FileStat{
		Path: "/root/notes.txt", Name: "notes.txt", Type: api.FileRegular, SizeBytes: 12, Mode: "0644", ModifiedAt: exampleAt,
	}
	exampleDir   = api.Directory{Path: "/root", Entries: []api.FileStat{exampleStat}}
	exampleEvent = api.Event{
		TS: exampleStarted, SandboxID: exampleSandbox.ID, AgentID: "host-a", Type: "sandbox.running", Code: api.EventOK,
		Message: "running after 231 ms", Metadata: api.Object(`{"boot_ms":231,"boot_mode":"restore","from_snapshot":null,"warm":false}`),
	}
	exampleUnmanaged = api.Event{
		TS: exampleStarted, SandboxID: exampleSandbox.ID, AgentID: "host-a", Type: "recover.unmanaged", Code: api.EventWarn,
		Message: "what belongs to no sandbox is removed", Metadata: api.Object(`{"vm_was_running":true}`),
	}
	exampleNewPort = api.Port{
		Port: 3000, Protocol: "tcp", URL: "https://3000-k7m2qz4xw3v5n6a2j7p4t5r6sd.preview.example.com", Label: "web",
	}
	examplePort = api.Port{Port: 3000, Protocol: "tcp", Process: "node", URL: exampleNewPort.URL, Label: "web"}
)
